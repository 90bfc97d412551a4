"""The folder where trials run, and the result of a trial: bit-equal, named, or bad."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import files
from tests.chaos import digests, workloads
from tests.chaos.processes import CommandSession

SHARED_CACHE = "compiled"  # in the folder of all trials: the compiled programs that they share
EQUAL, NAMED, BAD, SKIPPED = "bit-equal", "named", "bad", "skipped"


class TrialResult(NamedTuple):
    verdict: str  # EQUAL; NAMED: an error line, and bit-equal once the fault was gone; BAD; SKIPPED
    message: str  # the error line, what is wrong, or why it was skipped


class Workspace:
    """Each trial gets a fresh folder, always of the same name, since a run's files contain it."""

    def __init__(self, out: Path):
        self.out, self.folder, self.log = out, out / "now", out / "log.txt"
        out.mkdir(parents=True, exist_ok=True)

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        workloads.write_inputs(self.folder)
        self.log.write_bytes(b"")

    def start(
        self, arguments: Sequence[str], *, cold: bool = False, environment: Mapping[str, str] | None = None
    ) -> CommandSession:
        """Starts Python with these arguments; cold: without the shared compiled programs."""
        compiled = self.folder / workloads.COLD_CACHE if cold else self.out / SHARED_CACHE
        return CommandSession(
            workloads.python_command(arguments),
            self.folder,
            workloads.make_environment(self.folder, compiled),
            self.log,
        )

    def run_command(self, arguments: Sequence[str], **options) -> tuple[int, str]:
        """Runs a command undisturbed; returns its exit code and output."""
        session = self.start(arguments, **options)
        exit_code = session.wait()
        session.wait_for_all()
        return exit_code, session.read_output()

    def finish_workload(self, workload: workloads.Workload, expected: Mapping[str, str], **options) -> TrialResult:
        """Runs the workload's commands undisturbed, and compares the outcome."""
        for arguments in workload.commands:
            exit_code, output = self.run_command(arguments, **options)
            if exit_code != 0:
                return TrialResult(BAD, f"exit code {exit_code}: {output.strip()[-500:]}")
        return self.compare(expected)

    def compare(self, expected: Mapping[str, str], *, without_history: bool = False) -> TrialResult:
        """without_history: a run's records of its steps may differ."""
        differences = [
            name
            for name in digests.list_differences(digests.collect_digests(self.folder), expected)
            if not (without_history and name.endswith(": history"))
        ]
        return TrialResult(BAD, f"differs: {'; '.join(differences[:5])}") if differences else TrialResult(EQUAL, "")

    def save_copy(self, name: str) -> Path:
        """Copies the folder and the log of a bad trial, for a look at them."""
        copy = self.out / name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)
        shutil.copy(self.log, copy / "log.txt")
        return copy


def find_error_line(exit_code: int, output: str) -> str:
    """The line by which a failed command says why. Raises ValueError if there is none."""
    lines = [line for line in output.splitlines() if line.strip()]
    if exit_code <= 0 or "Traceback" in output or not lines:
        raise ValueError(f"exit code {exit_code} and no line that says why: {output.strip()[-500:]}")
    return lines[-1]


def find_damaged_files(folder: Path) -> list[str]:
    """Errors of the JSON files that are damaged, except temporary ones."""
    damaged = []
    for path in folder.rglob("*.json"):
        if "checkpoints" in path.parts or path.name.startswith(".") or ".part-" in str(path):
            continue
        try:
            files.verify_digest(json.loads(path.read_bytes()), path)
        except (files.DamagedFile, ValueError) as error:
            damaged.append(str(error))
    return damaged
