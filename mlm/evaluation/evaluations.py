"""Evaluates a trained run case by case. evaluations.json keeps each result, so that no case is evaluated twice."""

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mlm.base import config, errors, fields, files
from mlm.data.rows import pack
from mlm.training.run import trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.run.progress import Progress
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

PROGRESS_INTERVAL = 5.0  # seconds between progress lines


class EvaluationCase(NamedTuple):
    """One unit of evaluation, whose result evaluations.json keeps under its task and name."""

    task: str  # a key of EVALUATION_TASKS
    name: str
    inputs: Any  # JSON; its SHA-256 identifies the case
    metadata: dict = {}  # noqa: RUF012  JSON, stored beside the result; a NamedTuple's default

    @property
    def sha256(self) -> str:
        """Returns the digest of the inputs as JSON, in hexadecimal; a stored result is valid for this digest only."""
        return hashlib.sha256(json.dumps(self.inputs).encode()).hexdigest()


class UnsupportedReason(Protocol):
    """Tells which runs a task can evaluate."""

    def __call__(self, cfg: config.Config) -> str:
        """Returns "" for a config whose runs the task can evaluate, else why it cannot."""
        ...


class ReportProgress(Protocol):
    """Receives the progress of an evaluation."""

    def __call__(self) -> None:
        """Marks one unit of work as done."""


class EvaluateCase(Protocol):
    """Evaluates a run on one case."""

    def __call__(self, run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
        """Returns the case's result, which JSON can hold; calls `progress` after each unit of work."""
        ...


class CountUnits(Protocol):
    """Counts the work of a case, for its progress."""

    def __call__(self, run: TrainedRun, case: EvaluationCase) -> int:
        """Returns the case's units of work."""
        ...


class Summarize(Protocol):
    """Summarises the results of a task."""

    def __call__(self, results: Mapping[str, dict]) -> dict:
        """Returns a summary of all results of a task, which are given by case name."""
        ...


class EvaluationTask(NamedTuple):
    """An entry of EVALUATION_TASKS."""

    get_unsupported_reason: UnsupportedReason
    evaluate: EvaluateCase
    count_units: CountUnits = lambda run, case: 1
    summarize: Summarize = lambda results: {}


def select_pending(stored: Mapping, cases: Sequence[EvaluationCase]) -> list[EvaluationCase]:
    """The cases of which `stored`, the contents of evaluations.json, has no result."""
    evaluations = stored.get("evaluations", {})
    return [case for case in cases if evaluations.get(case.task, {}).get(case.name, {}).get("sha256") != case.sha256]


def list_missing_cases(cfg: config.Config, cases: Sequence[EvaluationCase]) -> list[EvaluationCase]:
    """The cases of which a finished run has no result yet. Raises Damaged for a damaged evaluations.json."""
    stored = RunDirectory(cfg.workdir).read_evaluations()
    if (stored.get("fingerprint"), stored.get("step")) != (fields.fingerprint(cfg), cfg.train.steps):
        return list(cases)
    return select_pending(stored, cases)


def finish_evaluations(
    tasks: Mapping[str, EvaluationTask],
    cfg: config.Config,
    cases: Sequence[EvaluationCase],
    packed: pack.PackedDataset | None = None,
) -> dict:
    """Evaluates the missing cases of a finished run and returns the contents of evaluations.json.

    Args:
        tasks: the evaluation tasks by name.
        cfg: the run's config.
        cases: all cases that the run should have results of.
        packed: the run's data, if it is loaded already.

    Raises:
        ConfigError: a task does not support the run.
        FolderInUse: another process holds the run's directory.
    """
    pending = list(cases)
    with files.recover_damaged():
        pending = list_missing_cases(cfg, cases)
    if not pending:
        return RunDirectory(cfg.workdir).read_evaluations()
    local_fields = {
        name: value
        for name, value in fields.flatten(cfg).items()
        if name == "data.cache_dir" or name.startswith("downstream.")
    }
    run = trained_run.load(cfg.workdir, local_fields, packed or pack.load_dataset(cfg))
    with RunDirectory(cfg.workdir).lock() if parallel.is_primary() else contextlib.nullcontext():
        return evaluate(tasks, run, pending)


def evaluate(tasks: Mapping[str, EvaluationTask], run: TrainedRun, cases: Sequence[EvaluationCase]) -> dict:
    """Evaluates a run and returns the contents of evaluations.json.

    "fingerprint" and "step" identify the evaluated state, "evaluations" has the results by task and case, "summary" the
    summaries by task. Results of the same state are reused, and each new one is written at once. Raises ConfigError for
    a task that does not support the run.
    """
    for name in {case.task for case in cases}:
        reason = tasks[name].get_unsupported_reason(run.cfg)
        if reason:
            raise errors.ConfigError(f"run {run.cfg.workdir!r}: does not support the evaluation {name}: {reason}")
    contents = {"fingerprint": fields.fingerprint(run.cfg), "step": run.step, "evaluations": {}, "summary": {}}
    stored = {}
    with files.recover_damaged():
        stored = RunDirectory(run.cfg.workdir).read_evaluations(run.milestone)
    if all(stored.get(name) == contents[name] for name in ("fingerprint", "step")):
        contents = stored
    pending = select_pending(contents, cases)
    units = sum(tasks[case.task].count_units(run, case) for case in pending)
    bar = Progress(0, units, Path(run.cfg.workdir).name, "part") if parallel.is_primary() and pending else None
    last_shown = time.monotonic()

    def advance(name):
        nonlocal last_shown
        if bar is not None:
            bar.advance(bar.step + 1)
            if time.monotonic() - last_shown > PROGRESS_INTERVAL:
                last_shown = time.monotonic()
                bar.show(name)

    try:
        for case in pending:
            task = tasks[case.task]
            result = task.evaluate(run, case, lambda case=case: advance(case.name))
            task_results = contents["evaluations"].setdefault(case.task, {})
            task_results[case.name] = {"sha256": case.sha256, **case.metadata, **result}
            if summary := task.summarize(task_results):
                contents["summary"][case.task] = summary
            if parallel.is_primary():
                RunDirectory(run.cfg.workdir).write_evaluations(contents, run.milestone)
    finally:
        if bar is not None:
            bar.close()
    return contents
