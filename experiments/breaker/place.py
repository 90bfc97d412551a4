"""Where trials are made, and what becomes of a subject there: bit-equal, named, or bad."""
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.breaker import outcome, subject
from experiments.breaker.processes import Started
from mlm.base import files

SHARED = "compiled"   # in the place of all trials: the compiled programs that they share
EQUAL, NAMED, BAD, SKIPPED = "bit-equal", "named", "bad", "skipped"


class Ending(NamedTuple):
    how: str      # EQUAL; NAMED: refused in a line, and bit-equal once the fault was gone; BAD; SKIPPED
    said: str     # the line, what is wrong, or why it was skipped


class Place:
    """Trials are made in a fresh folder each, always of the same name, since a run's files name it."""

    def __init__(self, out: Path):
        self.out, self.folder, self.log = out, out / "now", out / "log.txt"
        out.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        subject.write(self.folder)
        self.log.write_bytes(b"")

    def start(self, words: Sequence[str], *, cold: bool = False, more: Mapping[str, str] | None = None,
              prefix: Sequence[str] = ()) -> Started:
        """Starts Python with these arguments; cold: with compiled programs of the folder's own."""
        compiled = self.folder / subject.COLD if cold else self.out / SHARED
        return Started([*prefix, *subject.python(words)], self.folder,
                       subject.environment(self.folder, compiled) | (more or {}), self.log)

    def call(self, words: Sequence[str], **how) -> tuple[int, str]:
        """Exit code, and all that it said; of a command that nobody disturbs any more."""
        started = self.start(words, **how)
        code = started.wait()
        started.alone()
        return code, started.said()

    def finish(self, what: subject.Subject, wanted: Mapping[str, str], *, but: str = "", **how) -> Ending:
        """Calls the subject's commands, which must make what is wanted; but: see `compared`."""
        for words in what.commands:
            code, said = self.call(words, **how)
            if code != 0:
                return Ending(BAD, f"exit code {code}: {said.strip()[-500:]}")
        return self.compared(wanted, but)

    def compared(self, wanted: Mapping[str, str], but: str = "") -> Ending:
        """but: how the names of parts end that may be others."""
        wrong = [name for name in outcome.differences(outcome.outcome(self.folder), wanted)
                 if not but or not name.endswith(but)]
        return Ending(BAD, f"differs: {'; '.join(wrong[:5])}") if wrong else Ending(EQUAL, "")

    def keep(self, name: str) -> Path:
        """Puts the folder and the log of a trial that went wrong aside, to be looked at."""
        kept = self.out / name
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.folder, kept)
        shutil.copy(self.log, kept / "log.txt")
        return kept


def named(code: int, said: str) -> str:
    """The line by which a command that could not go on says why; raises ValueError where that is no line."""
    lines = [line for line in said.splitlines() if line.strip()]
    if code <= 0 or "Traceback" in said or not lines:
        raise ValueError(f"exit code {code} and no line that says why: {said.strip()[-500:]}")
    return lines[-1]


def broken(folder: Path) -> list[str]:
    """The files in their place that are not whole."""
    found = []
    for path in folder.rglob("*.json"):
        if "checkpoints" in path.parts or path.name.startswith(".") or ".part-" in str(path):
            continue
        try:
            files.unseal(json.loads(path.read_bytes()), path)
        except (files.Damaged, ValueError) as error:
            found.append(str(error))
    return found
