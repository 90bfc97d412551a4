"""Scores with standard errors, and estimates with intervals: over held-out examples, over items, over seeds."""

# NumPy 2.5 types some functions in part.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Sum = Any  # a number, or an array of numbers


class Score(NamedTuple):
    """A number computed from sums of columns over examples. Plain data, which a result stores beside its values."""

    name: str  # its key in a result; NAME_se is its standard error
    title: str
    columns: tuple[str, ...]  # the columns that are summed; the last is the weight
    function: str = "mean"  # of the sums: a key of SCORE_FUNCTIONS
    unit: str = ""
    format: str = ".3f"
    better: int = 0  # +1: higher is better, -1: lower is better
    share: bool = False  # lies between 0 and 1
    chart: bool = False  # is plotted as a curve
    reference: str = ""  # whose score it is if not the model's: "unigram", "Bayes optimum"
    reference_for: str = ""  # name of the model's score that a reference is compared with


def make_reference(score: Score, name: str, title: str, columns: Sequence[str], reference: str) -> Score:
    """A score as something else than the model has it, of its own columns and the same weight."""
    return score._replace(
        name=name,
        title=title,
        columns=(*columns, score.columns[-1]),
        better=0,
        chart=False,
        reference=reference,
        reference_for=score.name,
    )


def read_scores(result: Mapping[str, Any]) -> list[Score]:
    """The scores that a result stores."""
    return [Score(**saved) for saved in result["scores"]]


def read_first_score(result: Mapping[str, Any]) -> Score:
    """The score that runs are compared by."""
    return Score(**result["scores"][0])


def _f1(right: Sum, predicted: Sum, labeled: Sum, weight: Sum) -> Sum:
    """The harmonic mean of precision and recall, 2 right / (predicted + labeled); 0 if that is 0 / 0."""
    return _ratio(2 * right, predicted + labeled, np.real(predicted + labeled) > 0)


def _matthews(correct: Sum, *rest: Sum) -> Sum:
    """R_K of the confusion matrix of K classes (Gorodkin 2004), of two the phi coefficient.

    rest: the count of predictions of each class, the count of labels of each class, and the weight. 0 if all
    predictions, or all labels, are one class.
    """
    *counts, weight = rest
    predicted_K, label_K = counts[: len(counts) // 2], counts[len(counts) // 2 :]
    products = (predicted * label for predicted, label in zip(predicted_K, label_K, strict=True))
    covariance = correct * weight - sum(products)
    variance_x, variance_y = (sum(count * (weight - count) for count in count_K) for count_K in (predicted_K, label_K))
    varies = np.minimum(np.real(variance_x), np.real(variance_y)) > ROUNDING * np.real(weight) ** 2
    return _ratio(covariance, np.sqrt(np.where(varies, variance_x * variance_y, 1)), varies)


def _pearson(x: Sum, y: Sum, xx: Sum, yy: Sum, xy: Sum, weight: Sum) -> Sum:
    """Pearson's correlation from the sums of two values, their squares and their product; 0 if a value is constant."""
    variance_x, variance_y = weight * xx - x * x, weight * yy - y * y
    varies_x = np.real(variance_x) > ROUNDING * np.real(weight * xx)
    varies = varies_x & (np.real(variance_y) > ROUNDING * np.real(weight * yy))
    return _ratio(weight * xy - x * y, np.sqrt(np.where(varies, variance_x * variance_y, 1)), varies)


def _ratio(numerator: Sum, denominator: Sum, defined: Sum) -> Sum:
    """numerator / denominator, of numbers or arrays; 0 where it is not `defined`."""
    return np.where(defined, numerator / np.where(defined, denominator, 1), 0.0)[()]


def _entropy(part: Sum, weight: Sum) -> Sum:
    """The entropy, in nats, of a yes-or-no event with the probability part / weight."""
    share = part / weight
    varies = (np.real(share) > ROUNDING) & (np.real(share) < 1 - ROUNDING)
    inside = np.where(varies, share, 0.5)
    return np.where(varies, -inside * np.log(inside) - (1 - inside) * np.log(1 - inside), 0.0)[()]


ROUNDING = 1e-12  # a variance of at most this share of its maximum is rounding error, or the square of a complex step
# Functions of sums (numbers or arrays) that do not change if all sums are multiplied by one factor.
SCORE_FUNCTIONS: dict[str, Callable[..., Sum]] = {
    "mean": operator.truediv,
    "entropy": _entropy,
    "exp_mean": lambda *sums: np.exp(SCORE_FUNCTIONS["mean"](*sums)),
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
}
COMPLEX_STEP = 2.0**-100  # a power of two, whose products are exact


def compute_score(score: Score, columns: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """The score of columns with a number for each example, and its standard error with examples as the sampling unit.

    The error follows from the delta method: an example changes the score by the partial derivatives of its function at
    the sums, times the example's own values. The derivatives are complex-step derivatives (Squire & Trapp 1998), exact
    up to rounding. For a ratio of sums this is the error of the ratio estimator (Cochran 1977, section 2.11).
    """
    value_CxN = [np.asarray(columns[name], np.float64) for name in score.columns]
    sums, count, function = [value_N.sum() for value_N in value_CxN], len(value_CxN[0]), SCORE_FUNCTIONS[score.function]
    weight = sums[-1]
    means = [total / weight for total in sums]
    changes = (_partial_derivative(function, means, index) * value_N for index, value_N in enumerate(value_CxN))
    change_N = sum(changes, np.zeros(count))
    variance = (change_N**2).sum() * count / max(count - 1, 1)
    return float(function(*means)), float(math.sqrt(variance) / weight)


def _partial_derivative(function: Callable[..., Sum], point: Sequence[Sum], index: int) -> float:
    moved = [value + COMPLEX_STEP * 1j if i == index else value for i, value in enumerate(point)]
    return function(*moved).imag / COMPLEX_STEP


def compute_ratio(total_N: np.ndarray, weight_N: np.ndarray) -> tuple[float, float]:
    """The sum of total divided by the sum of weight, and its standard error (see `compute_score`)."""
    return compute_score(Score("ratio", "", ("total", "weight")), {"total": total_N, "weight": weight_N})


class Estimate(NamedTuple):
    """A mean and its bounds, None if there are none. Tables print what the bounds are and how they are computed."""

    mean: float
    low: float | None
    high: float | None

    bounds_title, bounds_method = "95% interval over seeds", "Student's t, from three seeds on"


class SeedRange(Estimate):
    """A mean over seeds that are too few, or too similar, for an interval."""

    __slots__ = ()
    bounds_title, bounds_method = "lowest and highest seed", "no interval of two seeds, or of seeds that all agree"


class ItemInterval(Estimate):
    """The value of one run, with the uncertainty over items but not over seeds."""

    __slots__ = ()
    bounds_title, bounds_method = "95% interval over items", "of this one seed; it says nothing about other seeds"


class ExampleInterval(Estimate):
    """The value of one run, with the uncertainty over held-out examples but not over seeds."""

    __slots__ = ()
    bounds_title = "95% interval over held-out examples"
    bounds_method = "of this one seed; it says nothing about other seeds"


UNBOUNDED, FRACTION, PERCENT = (-math.inf, math.inf), (0.0, 1.0), (0.0, 100.0)  # bounds of values


def estimate_mean(values: Iterable[float], bounds: tuple[float, float] = UNBOUNDED) -> Estimate:
    """The mean over seeds: without bounds for one seed, with the range for two, else with Student's 95% interval.

    Two seeds have no interval because it would be 12.7 standard errors wide to each side; seeds that all agree have
    none because it would have no width. bounds: those of possible values, to which the interval is cut.
    """
    values = np.asarray(list(values), np.float64)
    mean, least, most = seed_range(values)
    if len(values) < 2:
        return Estimate(mean, None, None)
    if len(values) == 2 or np.ptp(values) <= 1e-12 * abs(mean):  # equal but for how they were added up
        return SeedRange(mean, least, most)
    from scipy import special  # imported late: 0.2 s; scipy.stats would take 0.5 s

    half = float(special.stdtrit(len(values) - 1, 0.975) * values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, max(mean - half, bounds[0]), min(mean + half, bounds[1]))


def seed_range(values: Sequence[float] | np.ndarray) -> SeedRange:
    """The mean with the lowest and highest value; the mean is cut to these, which rounding may exceed."""
    least, most = float(np.min(values)), float(np.max(values))
    return SeedRange(min(max(float(np.mean(values)), least), most), least, most)


def normal_interval(values: Mapping[str, float], name: str) -> ItemInterval:
    """A value with its 95% interval from the standard error, which `values` hold as NAME_se."""
    half_width = 1.96 * values[f"{name}_se"]
    return ItemInterval(values[name], values[name] - half_width, values[name] + half_width)


def wilson_interval(share: float, items: float) -> tuple[float, float]:
    """Wilson's (1927) 95% interval of a share of independent items, of which there may be any number above 0."""
    from scipy import special

    z2 = float(special.ndtri(0.975)) ** 2
    middle = (share + z2 / (2 * items)) / (1 + z2 / items)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * items)) / items) / (1 + z2 / items)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def clustered_interval(share: float, error: float, items: int) -> ItemInterval:
    """The interval of a share of items that depend on each other in groups, such as the items of one example.

    It is Wilson's interval of the effective number of independent items, which would have the same standard error
    (Korn & Graubard 1998). error: the standard error over the groups.
    """
    effective_items = share * (1 - share) / error**2 if error > 0 else items
    return ItemInterval(share, *wilson_interval(share, min(max(effective_items, 1.0), items)))


def mean_share_interval(shares: Sequence[float], items: Sequence[int]) -> tuple[float, float]:
    """The 95% interval of the unweighted mean of shares, each of its own independent items.

    It is Wilson's interval of the number of items that would give the mean's variance. For the variance each share gets
    one more item, which equals the mean, so that a share without failures does not count as certain.
    """
    share_S, items_S = np.asarray(shares, np.float64), np.asarray(items, np.float64)
    mean = float(share_S.mean())
    smooth_S = (items_S * share_S + mean) / (items_S + 1)
    variance = float((smooth_S * (1 - smooth_S) / items_S).sum()) / len(share_S) ** 2
    if_equal = len(share_S) ** 2 / float((1 / items_S).sum())  # the number of items if all shares are the same
    return wilson_interval(mean, mean * (1 - mean) / variance if variance > 0 else if_equal)


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
    items: int = 0  # of an accuracy: how many answers are right or wrong; 0: the score is none

    def estimate(self) -> Estimate | None:
        """The value with its 95% interval, over fine-tuning seeds if there are several, else over examples."""
        value, (low, high), error = self.value, self.metric.bounds, self.error or 0.0
        if value is None:
            return None
        if len(self.values) > 1:
            return estimate_mean(self.values, self.metric.bounds)
        if self.items:
            return ItemInterval(*(high * np.array(clustered_interval(value / high, error / high, self.items))).tolist())
        if self.interval or self.error is None:
            return ItemInterval(value, *self.interval) if self.interval else Estimate(value, None, None)
        return ItemInterval(value, max(low, value - 1.96 * error), min(high, value + 1.96 * error))
