"""A score of an evaluation of a trained run, from which reports make a column of a table and a cell."""

from collections.abc import Mapping
from typing import NamedTuple

from mlm.base.estimates import UNBOUNDED


class EvaluationMetric(NamedTuple):
    """What several runs can have in common: a metric on identical texts or tasks."""

    name: str  # key of the table's column
    title: str
    sha256: str  # of the texts and settings of the evaluation
    subject: str = ""  # the data that is evaluated on, which stands before the title
    unit: str = ""
    format: str = ".3f"
    bounds: tuple[float, float] = UNBOUNDED  # lowest and highest possible value
    better: int = 1  # +1: higher is better, -1: lower is better, 0: neither
    variant: str | None = None  # settings of a fine-tuning, separated by spaces; None: no fine-tuning
    log_scale: bool = False  # charts show it on a logarithmic axis


class EvaluationScore(NamedTuple):
    """The result of an evaluation of one run."""

    metric: EvaluationMetric
    value: float | None  # None: undefined
    error: float | None = None  # standard error over examples
    note: str = ""  # about the evaluation, for the note below the table
    undefined: str = ""  # why it is undefined
    values: tuple[float, ...] = ()  # over fine-tuning seeds, whose mean is `value`
    failed: tuple[int, ...] = ()  # the fine-tuning seeds without success
    references: Mapping[str, float] = {}
    baseline: str = ""  # the reference that a run should not be below
    interval: tuple[float, float] | None = None  # 95%, over examples, of a score without an error
