"""Fuzz tests: runs the commands with inputs that a user could get wrong, and counts how each ends; 1 if one ends badly.

    python -m tests.fuzz [--no-commands] [--verbose]

Configs are checked in forked children as a run would check them, without training; --no-commands leaves out the real
processes. Bad ends are: a traceback, no end within 10 s (20 for a process, which imports first), an abort, an error of
more than one line, a workdir left behind. "accepted" means that the value is fine, or that no check knows better.
"""

import argparse
import collections
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import cases

LIMIT_SECONDS, IMPORT_SECONDS = 10, 10  # for a case, and in addition for a process's imports
BAD = ("traceback", "hang", "abort", "more than one line")
ROOT = Path(__file__).parents[2]


def check_config(changes: dict) -> None:
    """All checks of `mlm train` before it creates anything."""
    from mlm.base import config
    from mlm.training.run import loop, resolution

    loop.check(resolution.resolve(config.Config(), changes))


def run_in_fork(function: Callable, *arguments) -> tuple[str, str]:
    """How a call ends in a forked child, and its message."""
    from mlm.base.errors import ConfigError

    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_SECONDS)
        try:
            function(*arguments)
            output = "accepted\n"
        except ConfigError as error:
            output = f"refused\n{error}"
        except BaseException as error:
            output = f"traceback\n{type(error).__name__}: {error}"
        os.write(write_end, output.encode("utf-8", "replace")[:60_000])
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        verdict, _, message = file.read().decode("utf-8", "replace").partition("\n")
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        verdict = "hang" if os.WTERMSIG(status) == signal.SIGALRM else "abort"
    elif verdict == "refused" and "\n" in message:
        verdict = "more than one line"
    return verdict, message


def run_command(words: list[str]) -> tuple[str, str]:
    """How `python -m mlm` with these words ends, and its last line on stderr."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mlm", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS + IMPORT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "hang", ""
    error_lines = [line for line in done.stderr.splitlines() if line.startswith(("error:", "Traceback", "FATAL"))]
    last_line = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode < 0:
        return "abort", last_line
    if "Traceback (most recent call last)" in done.stderr:
        return "traceback", last_line
    if len(error_lines) > 1 or (done.returncode and (not error_lines or error_lines[-1] != last_line)):
        return "more than one line", done.stderr
    return {0: "accepted", 1: "refused, exit 1", 2: "refused"}.get(done.returncode, "traceback"), last_line


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument(
        "--commands",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also run real processes, which take a few seconds each",
    )
    parser.add_argument("--verbose", action="store_true", help="print each case and how it ended")
    options = parser.parse_args()
    import mlm.training.run.loop

    counts, bad = collections.Counter(), []

    def record(case, verdict, message):
        counts[verdict] += 1
        if verdict in BAD:
            bad.append(f"{verdict}: {case}: {message[:200]}")
        if options.verbose:
            print(f"{verdict}: {case}: {message[:160]}")

    for changes in [*cases.list_field_cases(), *cases.CONTRADICTIONS]:
        record(changes, *run_in_fork(check_config, changes))
    with tempfile.TemporaryDirectory() as folder:
        cases.write_files(Path(folder))
        small = [
            f"--config.{name}"
            for name in (
                f"workdir={folder}/run",
                f"data.cache_dir={folder}/cache",
                "train.steps=1",
                "data.language.train_documents=64",
                "model.size=micro",
            )
        ]
        for name, group in cases.COMMANDS.items() if options.commands else ():
            for words in group:
                words = [word.replace("{}", folder) for word in words]
                defaults = [
                    flag
                    for flag in (small if name == "train" else ())
                    if not any(word.startswith(flag.partition("=")[0]) for word in words)
                    and not (flag.startswith("--config.data.language") and any("data." in word for word in words))
                ]
                words = [*name.split(), *defaults, *words]
                record(words, *run_command(words))
        leftovers = [path.name for path in Path(folder).iterdir() if path.name == "run"]
        if leftovers:
            bad.append(f"a refused run left {leftovers} behind")
    print(
        f"{sum(counts.values())} inputs: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    )
    print("\n".join(bad))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
