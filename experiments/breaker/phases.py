"""Which phase a command is in, told from outside: by the files of a trial's folder."""
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from experiments.breaker import queue, subject
from mlm.base import files
from mlm.train.run import directory

PHASES = ("starting", "vocabulary", "packing", "references", "compiling", "training", "saving", "evaluating", "results",
          "fine-tuning", "sweeping", "submitting")
MAKING = {"tokenizer": "vocabulary", "rows": "packing", "floor": "references", "optimum": "references",
          "parts": "references"}   # by what the name of a folder of the cache begins with


class Look:
    """The folder as it was when a process started there, by which what is new can be told."""

    def __init__(self, folder: Path, words: Sequence[str]):
        self.folder, self.submits = folder, "submit" in words
        self.sweep = not {"mlm.launch.sweep", "experiments.breaker.queue"}.isdisjoint(words)
        self.left = {*self.parts(), *self.saving()}
        self.starts = {workdir: len(directory.read_provenance(workdir)) for workdir in self.workdirs()}
        self.logs, self.handed = len(self.workers()), self.submitting()

    def parts(self) -> list[Path]:
        return list(self.folder.glob(f"{subject.CACHE}/.*.part-*"))

    def saving(self) -> list[Path]:
        return [*self.folder.glob(f"{subject.RUNS}/*/checkpoints/*tmp*"),
                *self.folder.glob(f"{subject.RUNS}/*/tasks/*/checkpoints/*tmp*")]

    def workers(self) -> list[Path]:
        return list(self.folder.glob(f"{subject.RUNS}/logs/*"))

    def submitting(self) -> list[tuple[Path, int]]:
        """What of a submission is there, and since when."""
        found = []
        for path in [*self.folder.glob(f"{subject.RUNS}/*"), *self.folder.glob(f"{subject.RUNS}/jobs/**/*"),
                     *self.folder.glob(f"{subject.RUNS}/code/*"), self.folder / queue.FILE]:
            with contextlib.suppress(FileNotFoundError):
                found.append((path, path.stat().st_mtime_ns))
        return found

    def workdirs(self) -> list[Path]:
        return [path for pattern in ("*", "*/tasks/*") for path in self.folder.glob(f"{subject.RUNS}/{pattern}")
                if (path / "config.json").exists()]

    def phase(self) -> str:
        """The phase of now; of a folder whose processes were killed, that in which they died."""
        if self.submits:
            return "submitting" if self.submitting() != self.handed else "starting"
        for path in self.parts():
            if path not in self.left:
                return MAKING[path.name[1:].partition("-")[0]]
        new = [workdir for workdir in self.workdirs() if len(starts(workdir)) > self.starts.get(workdir, 0)]
        tuned = [workdir for workdir in new if workdir.parent.name == "tasks"]
        if any(not done(workdir) for workdir in tuned):
            return "fine-tuning"
        if any(path not in self.left for path in self.saving()):
            return "saving"
        runs = [workdir for workdir in new if workdir not in tuned]
        at_work = [workdir for workdir in runs if not done(workdir)]
        if at_work:
            return of_run(at_work[-1])
        if self.sweep and len(self.workers()) > self.logs:
            return "sweeping"
        return "starting"


def starts(workdir: Path) -> list[dict]:
    with contextlib.suppress(files.Damaged):
        return directory.read_provenance(workdir)
    return []


def done(workdir: Path) -> bool:
    """Whether a run has its result and has answered what this breaker's runs are asked last."""
    with contextlib.suppress(files.Damaged, json.JSONDecodeError):
        asked = directory.read_evaluations(workdir).get("answers", {})
        last = {"tasks": "predictions", subject.RUNS: "tasks"}[workdir.parent.name]
        return directory.end(workdir).exists() and last in asked
    return False


def of_run(workdir: Path) -> str:
    """The phase of a run that a process is at."""
    begun, metrics = starts(workdir)[-1]["step"], directory.metrics(workdir)
    records = [record for record in files.complete_lines(metrics)[0] if record["step"] > begun]
    if directory.end(workdir).exists():
        return "results"
    old = not metrics.exists() or metrics.stat().st_mtime_ns < (workdir / "provenance.json").stat().st_mtime_ns
    if old or not records:
        return "results" if begun == subject.SMALL["train.steps"] else "compiling"
    last = records[-1]
    if any(name.startswith("eval_") for name in last):
        return "results" if last["step"] == subject.SMALL["train.steps"] else "training"
    return "evaluating" if last["step"] % subject.SMALL["train.eval_every"] == 0 else "training"
