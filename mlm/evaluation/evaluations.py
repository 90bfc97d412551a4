"""What an evaluation is, and how a trained run is evaluated case by case.

evaluations.json keeps each result, so that no case is evaluated twice.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import tqdm

from mlm.base import config, errors, fields, files, groups
from mlm.base.estimates import EvaluationScore
from mlm.data.rows import pack
from mlm.inference import batching, forward_passes
from mlm.report.table import Column
from mlm.training.run import trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

BAR = "{desc}: {percentage:3.0f}%|{bar:20}| {elapsed}<{remaining}{postfix}"
SPLITS = {"dev": "validation", "test": "test"}  # the splits of a run's data that cases are named after
ReportProgress = Callable[[float], Any]  # takes the share of a case's work that is done


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
    """

    # The case's result, which JSON can hold; a long one calls the last argument.
    evaluate: Callable[[TrainedRun, EvaluationCase, ReportProgress], dict]
    # "" for a config whose runs can be evaluated, else why they cannot.
    get_unsupported_reason: Callable[[config.Config], str] = lambda cfg: ""
    # The cases of a config to evaluate when a run's training ends.
    list_due_cases: Callable[[config.Config], list[EvaluationCase]] = lambda cfg: []
    # Raises ConfigError where the due cases cannot be evaluated on this machine.
    check: Callable[[config.Config], None] = lambda cfg: None
    # The results by case -> their summary; {} for none.
    summarize: Callable[[Mapping[str, dict]], dict] = lambda results: {}
    # Reads what its flags of mlm evaluate (flags.py) name; returns the function from a run to its cases.
    read_flags: Callable[[argparse.Namespace], Callable[[TrainedRun], list[EvaluationCase]]] | None = None
    # Contents -> the scores that tables of several runs show.
    list_scores: Callable[[Mapping[str, Any]], Iterable[EvaluationScore]] = lambda contents: ()
    # Contents -> the tables that mlm evaluate prints of one run.
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
    parts = ((name.partition("/"), result) for name, result in results.items())
    by_group = groups.group_values((group, (member, result)) for (group, _, member), result in parts)
    return {group: dict(members) for group, members in by_group.items()}


def list_due_cases(evaluations: Mapping[str, Evaluation], cfg: config.Config) -> list[EvaluationCase]:
    """The cases to evaluate when a run's training ends: those its config names and those its corpus has answers to."""
    return [case for evaluation in evaluations.values() for case in evaluation.list_due_cases(cfg)]


def _select_pending(stored: Mapping, cases: Sequence[EvaluationCase]) -> list[EvaluationCase]:
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
    evaluations: Mapping[str, Evaluation], run: TrainedRun, cases: Sequence[EvaluationCase]
) -> list[EvaluationCase]:
    """The cases that a run is still to be evaluated on; raises ConfigError for one that it does not support."""
    for name in {case.task for case in cases}:
        if reason := evaluations[name].get_unsupported_reason(run.cfg):
            raise errors.ConfigError(f"run {run.cfg.workdir!r}: does not support the evaluation {name}: {reason}")
    return _select_pending(read_contents(run), cases)


def list_missing_cases(cfg: config.Config, cases: Sequence[EvaluationCase]) -> list[EvaluationCase]:
    """The cases of which a finished run has no result yet. Raises Damaged for a damaged evaluations.json."""
    stored = RunDirectory(cfg.workdir).read_evaluations()
    if (stored.get("fingerprint"), stored.get("step")) != (fields.fingerprint(cfg), cfg.train.steps):
        return list(cases)
    return _select_pending(stored, cases)


def finish_evaluations(
    evaluations: Mapping[str, Evaluation], cfg: config.Config, packed: pack.PackedDataset | None = None
) -> dict:
    """Evaluates the missing cases of a finished run and returns the contents of evaluations.json.

    evaluations: those of which the run should have all due cases, by name. packed: the run's data, if it is loaded
    already. Raises ConfigError if an evaluation does not support the run, FolderInUse if another process holds its
    directory.
    """
    cases = pending = list_due_cases(evaluations, cfg)
    with files.recover_damaged():
        pending = list_missing_cases(cfg, cases)
    if not pending:
        return RunDirectory(cfg.workdir).read_evaluations()
    local = ("data.cache_dir", "downstream.")  # fields that are this machine's, and prefixes of such
    local_fields = {name: value for name, value in fields.flatten(cfg).items() if name.startswith(local)}
    run = trained_run.load_run(cfg.workdir, local_fields, packed or pack.load_dataset(cfg))
    with RunDirectory(cfg.workdir).lock():
        return evaluate(evaluations, run, pending)


def evaluate(evaluations: Mapping[str, Evaluation], run: TrainedRun, cases: Sequence[EvaluationCase]) -> dict:
    """Evaluates a run and returns the contents of evaluations.json.

    "fingerprint" and "step" identify the evaluated state, "evaluations" has the results by task and case, "summary" the
    summaries by task. Results of the same state are reused, and each new one is written at once. Raises ConfigError for
    an evaluation that does not support the run.
    """
    contents, pending = read_contents(run), list_pending(evaluations, run, cases)
    quiet = 0.0 if sys.stderr.isatty() else forward_passes.QUIET_SECONDS
    settings = {"delay": quiet, "mininterval": max(quiet, 0.1), "disable": not (parallel.is_primary() and pending)}
    with tqdm.tqdm(total=len(pending), desc=Path(run.cfg.workdir).name, bar_format=BAR, **settings) as bar:
        for number, case in enumerate(pending):
            bar.set_postfix_str(case.name, refresh=False)
            advance = lambda share, number=number: bar.update(number + share - bar.n)
            evaluation = evaluations[case.task]
            result = evaluation.evaluate(run, case, advance)
            advance(1.0)
            task_results = contents["evaluations"].setdefault(case.task, {})
            task_results[case.name] = {"sha256": case.sha256, **case.metadata, **result}
            if summary := evaluation.summarize(task_results):
                contents["summary"][case.task] = summary
            if parallel.is_primary():
                RunDirectory(run.cfg.workdir).write_evaluations(contents, run.milestone)
    return contents


def map_sequences(
    run: TrainedRun, sequences: Sequence[Sequence[int]], function: Callable, progress: ReportProgress, *static_args: Any
) -> list:
    """Each sequence's part of function(model, *static_args, params, ids_BxL, hparams), in full batches, which the
    devices share.
    """
    run_batch = forward_passes.make_scorer(
        run.program.model, run.program.partitioner, run.state, function, *static_args
    )
    batches = batching.iterate_batches(sequences, run.cfg.pack.seq_len, run.cfg.eval.batch_size, full_batches=True)
    return batching.collect_outputs(batches, lambda indices, ids_BxL: run_batch(ids_BxL), len(sequences), progress)
