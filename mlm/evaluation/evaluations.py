"""What an evaluation is, and how a trained run is evaluated case by case.

evaluations.json keeps each result, so that no case is evaluated twice.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mlm.base import config, errors, fields, files
from mlm.base.evaluation_score import EvaluationScore
from mlm.data.rows import pack
from mlm.report.table import Column
from mlm.training.run import trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.run.progress import Progress
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

PROGRESS_INTERVAL = 5.0  # seconds between progress lines
SPLITS = {"dev": "validation", "test": "test"}  # the splits of a run's data that cases are named after
ReportProgress = Callable[[], None]  # marks one unit of an evaluation's work as done


class EvaluationCase(NamedTuple):
    """One unit of evaluation, whose result evaluations.json keeps under its task and name."""

    task: str  # a key of EVALUATIONS
    name: str
    inputs: Any  # JSON; its SHA-256 identifies the case
    metadata: dict = {}  # noqa: RUF012  JSON, stored beside the result; a NamedTuple's default
    announcement: str = ""  # a line that mlm evaluate prints before it starts
    settings: Mapping[str, Any] = {}  # what else `evaluate` needs, such as where files lie: no part of the digest

    @property
    def sha256(self) -> str:
        """Returns the digest of the inputs as JSON, in hexadecimal; a stored result is valid for this digest only."""
        return hashlib.sha256(json.dumps(self.inputs).encode()).hexdigest()


class EvaluationTable(NamedTuple):
    """A table of one run's results, which mlm evaluate prints."""

    rows: list[dict]
    columns: Sequence[Column]
    heading: str = ""


class Evaluation(NamedTuple):
    """An entry of EVALUATIONS: what its module defines under these names, and the defaults of what it does not.

    "Contents" are those of a run's evaluations.json: {"evaluations": {task: {case: result}}, "summary": {task: ...}}.

    Attributes:
        evaluate: (run, case, progress) -> the case's result, which JSON can hold; calls `progress` after each unit.
        get_unsupported_reason: "" for a config whose runs can be evaluated, else why they cannot.
        list_due_cases: the cases of a config to evaluate when a run's training ends.
        check: raises ConfigError where the due cases cannot be evaluated on this machine.
        count_units: the units of work of a case, for its progress.
        summarize: the results by case -> their summary; {} for none.
        read_flags: reads what its flags of mlm evaluate (flags.py) name; returns the function from a run to its cases.
        list_scores: contents -> the scores that tables of several runs show.
        build_tables: contents -> the tables that mlm evaluate prints of one run.
    """

    evaluate: Callable[[TrainedRun, EvaluationCase, ReportProgress], dict]
    get_unsupported_reason: Callable[[config.Config], str] = lambda cfg: ""
    list_due_cases: Callable[[config.Config], list[EvaluationCase]] = lambda cfg: []
    check: Callable[[config.Config], None] = lambda cfg: None
    count_units: Callable[[TrainedRun, EvaluationCase], int] = lambda run, case: 1
    summarize: Callable[[Mapping[str, dict]], dict] = lambda results: {}
    read_flags: Callable[[argparse.Namespace], Callable[[TrainedRun], list[EvaluationCase]]] | None = None
    list_scores: Callable[[Mapping[str, Any]], Iterable[EvaluationScore]] = lambda contents: ()
    build_tables: Callable[[Mapping[str, Any]], Iterable[EvaluationTable]] = lambda contents: ()


def make_evaluation(module: ModuleType) -> Evaluation:
    """The evaluation that a module defines."""
    return Evaluation(**{name: value for name, value in vars(module).items() if name in Evaluation._fields})


def get_results(contents: Mapping[str, Any], task: str) -> dict[str, dict]:
    """The results of an evaluation by case; empty if there are none."""
    return contents["evaluations"].get(task, {})


def get_summary(contents: Mapping[str, Any], task: str) -> dict[str, dict]:
    """The summary of an evaluation; empty if there is none."""
    return contents["summary"].get(task, {})


def group_results(results: Mapping[str, dict]) -> dict[str, dict[str, dict]]:
    """The results by the part of their case's name before the "/", then by the part after it."""
    groups: dict[str, dict[str, dict]] = {}
    for name, result in results.items():
        group, _, member = name.partition("/")
        groups.setdefault(group, {})[member] = result
    return groups


def list_due_cases(
    evaluations: Mapping[str, Evaluation], cfg: config.Config, *, is_checked: bool = True
) -> list[EvaluationCase]:
    """The cases to evaluate when a run's training ends: those its config names and those its corpus has answers to.

    Raises ConfigError for what cannot be evaluated on this machine, where is_checked is set.
    """
    cases = [case for evaluation in evaluations.values() for case in evaluation.list_due_cases(cfg)]
    for evaluation in evaluations.values() if is_checked else ():
        evaluation.check(cfg)
    return cases


def select_pending(stored: Mapping, cases: Sequence[EvaluationCase]) -> list[EvaluationCase]:
    """The cases of which `stored`, the contents of evaluations.json, has no result."""
    evaluations = stored.get("evaluations", {})
    return [case for case in cases if evaluations.get(case.task, {}).get(case.name, {}).get("sha256") != case.sha256]


def read_contents(run: TrainedRun) -> dict:
    """The contents of evaluations.json; without results where those there are of another state of the run."""
    contents = {"fingerprint": fields.fingerprint(run.cfg), "step": run.step, "evaluations": {}, "summary": {}}
    stored = {}
    with files.recover_damaged():
        stored = RunDirectory(run.cfg.workdir).read_evaluations(run.milestone)
    return stored if all(stored.get(name) == contents[name] for name in ("fingerprint", "step")) else contents


def list_pending(
    evaluations: Mapping[str, Evaluation], run: TrainedRun, contents: Mapping, cases: Sequence[EvaluationCase]
) -> list[EvaluationCase]:
    """The cases that a run is still to be evaluated on; raises ConfigError for one that it does not support."""
    for name in {case.task for case in cases}:
        reason = evaluations[name].get_unsupported_reason(run.cfg)
        if reason:
            raise errors.ConfigError(f"run {run.cfg.workdir!r}: does not support the evaluation {name}: {reason}")
    return select_pending(contents, cases)


def list_missing_cases(cfg: config.Config, cases: Sequence[EvaluationCase]) -> list[EvaluationCase]:
    """The cases of which a finished run has no result yet. Raises Damaged for a damaged evaluations.json."""
    stored = RunDirectory(cfg.workdir).read_evaluations()
    if (stored.get("fingerprint"), stored.get("step")) != (fields.fingerprint(cfg), cfg.train.steps):
        return list(cases)
    return select_pending(stored, cases)


def finish_evaluations(
    evaluations: Mapping[str, Evaluation], cfg: config.Config, packed: pack.PackedDataset | None = None
) -> dict:
    """Evaluates the missing cases of a finished run and returns the contents of evaluations.json.

    Args:
        evaluations: those of which the run should have all due cases, by name.
        cfg: the run's config.
        packed: the run's data, if it is loaded already.

    Raises:
        ConfigError: an evaluation does not support the run.
        FolderInUse: another process holds the run's directory.
    """
    cases = pending = list_due_cases(evaluations, cfg)
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
    with RunDirectory(cfg.workdir).lock():
        return evaluate(evaluations, run, pending)


def evaluate(evaluations: Mapping[str, Evaluation], run: TrainedRun, cases: Sequence[EvaluationCase]) -> dict:
    """Evaluates a run and returns the contents of evaluations.json.

    "fingerprint" and "step" identify the evaluated state, "evaluations" has the results by task and case, "summary" the
    summaries by task. Results of the same state are reused, and each new one is written at once. Raises ConfigError for
    an evaluation that does not support the run.
    """
    contents = read_contents(run)
    pending = list_pending(evaluations, run, contents, cases)
    units = sum(evaluations[case.task].count_units(run, case) for case in pending)
    bar = Progress(0, units, Path(run.cfg.workdir).name, "part") if parallel.is_primary() and pending else None

    def advance(name):
        if bar is not None:
            bar.advance(bar.step + 1)
            if time.monotonic() - max(bar.last_shown, bar.start_time) > PROGRESS_INTERVAL:
                bar.show(name)

    try:
        for case in pending:
            evaluation = evaluations[case.task]
            result = evaluation.evaluate(run, case, lambda case=case: advance(case.name))
            task_results = contents["evaluations"].setdefault(case.task, {})
            task_results[case.name] = {"sha256": case.sha256, **case.metadata, **result}
            if summary := evaluation.summarize(task_results):
                contents["summary"][case.task] = summary
            if parallel.is_primary():
                RunDirectory(run.cfg.workdir).write_evaluations(contents, run.milestone)
    finally:
        if bar is not None:
            bar.close()
    return contents
