"""Attacks the commands with inputs that a user could get wrong, and counts how each ends; 1 where one ends badly.

    python -m experiments.attack [--commands=0]

Fields are tried in forked children that check a config as a run would, without training; --commands=0 leaves out the
real processes. Badly: a traceback, no end within 10 s (20 of a process, which imports first), an abort, more than one
line, a workdir left behind. "accepted": the value is fine, or no check knows better.
"""
import collections
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from absl import app, flags

from experiments.attack import cases

LIMIT, START = 10, 10   # seconds for a case, and for a process to import what it needs beside
BAD = ("traceback", "hang", "abort", "more than one line")
ROOT = Path(__file__).parents[2]


def checked(changes: dict) -> None:
    """What mlm.cli.train does of a config before it makes anything."""
    from mlm.base import config
    from mlm.train.run import initialization, loop

    loop.check(initialization.resolve(config.Config(), changes))


def forked(call: Callable, *arguments) -> tuple[str, str]:
    """How a call ends in a child of its own, with what it says."""
    from mlm.base.errors import ConfigError

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        try:
            call(*arguments)
            said = "accepted\n"
        except ConfigError as error:
            said = f"refused\n{error}"
        except BaseException as error:
            said = f"traceback\n{type(error).__name__}: {error}"
        os.write(write, said.encode("utf-8", "replace")[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        how, _, said = file.read().decode("utf-8", "replace").partition("\n")
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        how = "hang" if os.WTERMSIG(status) == signal.SIGALRM else "abort"
    elif how == "refused" and "\n" in said:
        how = "more than one line"
    return how, said


def process(command: list[str]) -> tuple[str, str]:
    """How a command ends, with its last line on stderr."""
    try:
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True,
                              timeout=LIMIT + START, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return "hang", ""
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error:", "Traceback", "FATAL"))]
    said = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode < 0:
        return "abort", said
    if "Traceback (most recent call last)" in done.stderr:
        return "traceback", said
    if len(lines) > 1 or (done.returncode and (not lines or lines[-1] != said)):
        return "more than one line", done.stderr
    return {0: "accepted", 1: "refused, exit 1", 2: "refused"}.get(done.returncode, "traceback"), said


def main(_) -> None:
    import mlm.train.run.loop  # noqa: F401  what every child needs, imported once; its devices each starts itself

    counts, bad = collections.Counter(), []

    def note(case, how, said):
        counts[how] += 1
        if how in BAD:
            bad.append(f"{how}: {case}: {said[:200]}")
        if flags.FLAGS.verbose:
            print(f"{how}: {case}: {said[:160]}")

    for changes in [*cases.fields_alone(), *cases.PAIRS]:
        note(changes, *forked(checked, changes))
    with tempfile.TemporaryDirectory() as folder:
        cases.files(Path(folder))
        safe = [f"--config.{name}" for name in (f"workdir={folder}/run", f"data.cache={folder}/cache", "train.steps=1",
                                               "data.language.train_documents=64", "model.size=micro")]
        groups = (("mlm.cli.train", cases.RUN, safe), ("mlm.launch.sweep", cases.SWEEP, []), ("mlm.cli.evaluate",
                                                                                              cases.JUDGE, []),
                  ("mlm.cli.finetune", cases.FINETUNE, []), ("mlm.cli.use", cases.USE, []), ("mlm.cli.convert",
                                                                                             cases.CONVERT, []))
        for name, group, more in groups if flags.FLAGS.commands else ():
            for words in group:
                words = [word.replace("{}", folder) for word in words]
                own = [word for word in more if not any(other.startswith(word.partition("=")[0]) for other in words)
                       and not (word.startswith("--config.data.language") and any("data." in other for other in words))]
                note([name, *words], *process([name, *own, *words]))
        left = [path.name for path in Path(folder).iterdir() if path.name == "run"]
        if left:
            bad.append(f"a refused run left {left} behind")
    print(f"{sum(counts.values())} inputs: " + ", ".join(f"{number} {how}" for how, number in counts.most_common()))
    print("\n".join(bad))
    sys.exit(bool(bad))


if __name__ == "__main__":
    flags.DEFINE_bool("commands", True, "Real processes too, which take a few seconds each.")
    flags.DEFINE_bool("verbose", False, "Each case and how it ended.")
    app.run(main)
