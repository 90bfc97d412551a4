"""The phase of a command, observed from outside by the files in a trial's folder."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from mlm.base import files
from mlm.training.run.directory import RunDirectory
from tests.chaos import experiment, workloads

CACHE_PHASES = {
    "tokenizer": "vocabulary",
    "rows": "packing",
    "floor": "references",
    "optimum": "references",
    "parts": "references",
}  # by the first word of the name of a folder of the cache


class PhaseObserver:
    """Compares the folder with its state when a process started there."""

    def __init__(self, folder: Path, arguments: Sequence[str]):
        self.folder, self.is_sweep = folder, "sweep" in arguments
        self.old_partials = {*self.list_partial_folders(), *self.list_partial_checkpoints()}
        self.num_starts = {workdir: len(RunDirectory(workdir).read_provenance()) for workdir in self.list_workdirs()}
        self.num_logs = len(self.list_worker_logs())

    def list_partial_folders(self) -> list[Path]:
        return list(self.folder.glob(f"{workloads.CACHE}/.*.part-*"))

    def list_partial_checkpoints(self) -> list[Path]:
        return [
            *self.folder.glob(f"{workloads.RUNS}/*/checkpoints/*tmp*"),
            *self.folder.glob(f"{workloads.RUNS}/*/tasks/*/checkpoints/*tmp*"),
        ]

    def list_worker_logs(self) -> list[Path]:
        return list(self.folder.glob(f"{workloads.RUNS}/logs/*"))

    def list_workdirs(self) -> list[Path]:
        return [
            path
            for pattern in ("*", "*/tasks/*")
            for path in self.folder.glob(f"{workloads.RUNS}/{pattern}")
            if (path / "config.json").exists()
        ]

    def find_phase(self) -> str:
        """The current phase; after a kill, the phase of the kill."""
        for path in self.list_partial_folders():
            if path not in self.old_partials:
                return CACHE_PHASES[path.name[1:].partition("-")[0]]
        started = [
            workdir for workdir in self.list_workdirs() if len(read_starts(workdir)) > self.num_starts.get(workdir, 0)
        ]
        fine_tunings = [workdir for workdir in started if workdir.parent.name == "tasks"]
        if any(not is_done(workdir) for workdir in fine_tunings):
            return "fine-tuning"
        if any(path not in self.old_partials for path in self.list_partial_checkpoints()):
            return "saving"
        active = [workdir for workdir in started if workdir not in fine_tunings and not is_done(workdir)]
        if active:
            return find_run_phase(active[-1])
        if self.is_sweep and len(self.list_worker_logs()) > self.num_logs:
            return "sweeping"
        return "starting"


def read_starts(workdir: Path) -> list[dict]:
    with contextlib.suppress(files.DamagedFile):
        return RunDirectory(workdir).read_provenance()
    return []


def is_done(workdir: Path) -> bool:
    """Whether a run has its result and the last of its evaluations."""
    with contextlib.suppress(files.DamagedFile, json.JSONDecodeError):
        evaluations = RunDirectory(workdir).read_evaluations().get("evaluations", {})
        last = {"tasks": "predictions", workloads.RUNS: "tasks"}[workdir.parent.name]
        return RunDirectory(workdir).result.exists() and last in evaluations
    return False


def find_run_phase(workdir: Path) -> str:
    """The phase of an active run."""
    first_step, metrics = read_starts(workdir)[-1]["step"], RunDirectory(workdir).metrics
    num_steps, eval_every = experiment.SMALL["train.steps"], experiment.SMALL["train.eval_every"]
    records = [record for record in files.read_complete_lines(metrics)[0] if record["step"] > first_step]
    if RunDirectory(workdir).result.exists():
        return "results"
    old = not metrics.exists() or metrics.stat().st_mtime_ns < (workdir / "provenance.json").stat().st_mtime_ns
    if old or not records:
        return "results" if first_step == num_steps else "compiling"
    last = records[-1]
    if any(name.startswith("eval_") for name in last):
        return "results" if last["step"] == num_steps else "training"
    return "evaluating" if last["step"] % eval_every == 0 else "training"
