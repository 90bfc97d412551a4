"""A rehearsal of an experiment's table on made-up results, so that its bugs show before anything is trained.

The results have the scores that follow from each point's config, and no evaluations of the trained model, as those of a
point that has just been trained. Only errors that no other values would avoid count, such as a misspelt name.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlm.base import config, errors, fields, user_code
from mlm.base.estimates import Score
from mlm.data.rows import pack
from mlm.data.text import parallel_text
from mlm.report import series, table
from mlm.training.run.log import TIMING_TOTALS
from mlm.training.step import program
from mlm.training.validation import floors, references

BUGS = (AttributeError, ImportError, KeyError, NameError, TypeError)  # that no other results would avoid
REFERENCE_LOSSES = {"unigram": 5.0, references.FLOOR_TITLES["floor"]: 2.0}  # nats; of all other references 4
NUM_EXAMPLES, VOCAB_SIZE = 8, 1000  # VOCAB_SIZE: where the corpus decides it


class UnknownValue(KeyError):
    """The table reads a value that only a real result has: nothing is known of what follows."""


class PartialResults(dict):
    """The values of a run's result that can be known before it is trained."""

    def __missing__(self, key):
        raise UnknownValue(key)


def check_table(experiment, points: Sequence[config.Config]) -> None:
    """Raises ConfigError, with the line, if the experiment's table or claims have a bug."""
    results = []
    with contextlib.suppress(errors.ConfigError):  # training names a file that is missing
        results = [make_result(cfg, number) for number, cfg in enumerate(points)]
    if not results:
        return
    path = experiment.__file__
    try:
        with user_code.report_errors("experiment", path):
            if hasattr(experiment, "claims"):
                check_claims(experiment, list(series.group_runs(series.assign_groups(experiment, results))))
            shown = [experiment.table(results)]
            is_pair = isinstance(shown[0], tuple | list) and len(shown[0]) == 2
            errors.require(is_pair, f"experiment {path}: what table() returns", shown[0], "the rows and the columns")
            if hasattr(experiment, "tables"):
                shown += [(extra.rows, extra.columns) for extra in experiment.tables(results)]
            if hasattr(experiment, "charts"):
                experiment.charts(results)
        with user_code.report_errors("experiment", path, loading=True):  # the file's, though the line is ours
            for rows, columns in shown:
                table.to_markdown(rows, columns)
    except errors.ConfigError as error:
        bug = error.__context__  # none: a refusal of ours, such as of a column's name
        is_format = isinstance(bug, ValueError) and "format" in str(bug)
        if bug is None or is_format or (isinstance(bug, BUGS) and not isinstance(bug, UnknownValue)):
            raise errors.ConfigError(f"{error} (in the table of made-up results, before anything is trained)") from None
    except Exception:  # none of the file's
        return


def check_claims(experiment, names: Sequence[str]) -> None:
    """Raises ConfigError for a claim about a row that no scale has; names: the rows of this one."""
    claimed = [name for pair in experiment.claims(names) for name in pair]
    if hasattr(experiment, "group"):  # which names the rows of other scales by their results
        return
    rows = {*names}
    for scale in experiment.SCALES:
        with contextlib.suppress(errors.ConfigError):  # of a scale that wants what is not here
            rows |= {series.group_name({"config": {"workdir": f"{point}-000000"}}) for point in experiment.sweep(scale)}
    for name in claimed:
        errors.require_one_of(f"experiment {experiment.__file__}: a row that claims() names", name, sorted(rows))


def make_result(cfg: config.Config, number: int) -> dict:
    """A result as RunDirectory.read_finished returns it. number: of the point, so that its scores are its own."""
    vocab_size, steps = cfg.tokenizer.vocab_size or VOCAB_SIZE, max(cfg.train.steps, 1)
    _, objective = program.build_model_and_objective(cfg, pack.build_dataset_info(cfg, vocab_size))
    scores = (*objective.scores, *list_references(cfg, objective))
    evaluation: dict[str, float] = {"rows": NUM_EXAMPLES, "predictions": 100}
    for score in scores:
        evaluation |= {score.name: make_value(score, number), f"{score.name}_se": 0.01}
    weights = cfg.model.num_layers * 12 * cfg.model.width**2
    num_tokens = float(steps * cfg.train.batch_size * cfg.pack.seq_len)
    totals = {name: num_tokens for name in ("tokens", "predictions", *objective.totals, *TIMING_TOTALS)}
    totals |= {"tokens_per_second": 1000.0} | {score.name: 0.5 for score in objective.train_scores}
    training = {"loss": 3.0, "gradient_norm": 1.0, "parameter_norm": 1.0, "learning_rate": 1e-3, **totals}
    record = PartialResults(training | {f"eval_{name}": value for name, value in evaluation.items()})
    return {
        "fingerprint": fields.fingerprint(cfg),
        **fields.build_identity(cfg, {}),
        "steps": steps,
        "vocab_size": vocab_size,
        "parameters": weights + vocab_size * cfg.model.width,
        "non_embedding": weights,
        "flops": 6.0 * weights * num_tokens,
        "evaluation": PartialResults(evaluation),
        "scores": [score._asdict() for score in scores],
        **totals,
        "provenance": [PartialResults(step=0)],
        "evaluations": PartialResults(),
        "summary": PartialResults(),
        "evaluation_scores": [],
        "history": [PartialResults(record, step=step) for step in sorted({(steps + 1) // 2, steps})],
        "held_out": PartialResults({name: np.ones(NUM_EXAMPLES) for score in scores for name in score.columns}),
    }


def list_references(cfg: config.Config, objective) -> list[Score]:
    """The reference scores that follow from the config alone."""
    names = {loss: ("floor", *spec.weaker_floors) for loss, spec in floors.select_floors(cfg, objective).items()}
    if parallel_text.is_generated(cfg.data):
        names = {objective.scores[0]: ("floor",)}
    unknown: Any = {loss: dict.fromkeys(floor_names) for loss, floor_names in names.items()}
    floors_found = [score for loss in names for score in references.make_floor_references(loss, unknown[loss]).scores]
    return [*references.make_ngram_scores(cfg, objective.scores[0]), *floors_found]


def make_value(score: Score, number: int) -> float:
    """A value that such a score may have: a loss below the unigram's and above the floor."""
    loss = REFERENCE_LOSSES.get(score.reference, 4.0) if score.reference else 3.0 + number / 1000
    if score.columns[0].endswith(series.EXCESS):
        return loss - REFERENCE_LOSSES[references.FLOOR_TITLES["floor"]]
    share = 0.5 if score.reference else 0.5 + number / 10_000  # references are equal in runs on the same examples
    return float(np.exp(loss)) if score.function == "exp_mean" else share if score.share else loss
