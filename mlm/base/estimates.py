"""A value and how far chance may have moved it: scores as functions of sums over rows, means over seeds, shares."""
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Score(NamedTuple):
    """A number that is a function of sums over rows: plain data, so that a result carries what its numbers mean."""

    name: str                  # its key in a result; NAME_se is its standard error
    title: str
    columns: tuple[str, ...]   # of which the sums are taken; the last is what the others are counted by
    of: str = "mean"           # which of FUNCTIONS
    unit: str = ""
    form: str = ".3f"
    better: int = 0            # +1: the higher the better, -1: the lower
    share: bool = False        # lies between 0 and 1
    chart: bool = False        # is worth a curve
    reference: str = ""        # whose it is, where it is not the model's: "unigram", "exact optimum"
    beside: str = ""           # of a reference: the model's score that it is to be read beside


def scores_of(result: Mapping) -> list[Score]:
    """The scores that a result carries."""
    return [Score(**saved) for saved in result["scores"]]


def _f1(right, found, there, weight):
    """2 right / (found + there), the harmonic mean of precision and recall; 0 where nothing is found or there."""
    return _ratio(2 * right, found + there, np.real(found + there) > 0)


def _matthews(correct, *rest):
    """R_K of the confusion matrix of K classes (Gorodkin 2004), of two the phi coefficient.

    rest: how often each class was predicted, how often each is there, and the weight. 0 where all predictions, or all
    labels, are one class.
    """
    *counts, weight = rest
    found_K, there_K = counts[:len(counts) // 2], counts[len(counts) // 2:]
    agree = correct * weight - sum(found * there for found, there in zip(found_K, there_K, strict=True))
    one, other = (sum(count * (weight - count) for count in of_K) for of_K in (found_K, there_K))
    vary = np.minimum(np.real(one), np.real(other)) > NONE * np.real(weight) ** 2
    return _ratio(agree, np.sqrt(np.where(vary, one * other, 1)), vary)


def _pearson(x, y, xx, yy, xy, weight):
    """Pearson's correlation from sums of two values, their squares and their product; 0 where one does not vary."""
    one, other = weight * xx - x * x, weight * yy - y * y
    vary = ((np.real(one) > NONE * np.real(weight * xx)) & (np.real(other) > NONE * np.real(weight * yy)))
    return _ratio(weight * xy - x * y, np.sqrt(np.where(vary, one * other, 1)), vary)


def _ratio(over, under, where):
    """over / under, of numbers or arrays, and 0 where that is not asked."""
    return np.where(where, over / np.where(where, under, 1), 0.0)[()]


def _entropy(part, weight):
    """Nats of telling, each time alike, whether something is of a part of all; 0 where it always is, or never."""
    share = part / weight
    varies = (np.real(share) > NONE) & (np.real(share) < 1 - NONE)
    sure = np.where(varies, share, 0.5)
    return np.where(varies, -sure * np.log(sure) - (1 - sure) * np.log(1 - sure), 0.0)[()]


NONE = 1e-12  # a variance that is no more than this share of what it could be is rounding, or a complex step's square
# Each a function of sums, numbers or arrays, that stays what it is where all sums grow by one factor.
FUNCTIONS = {
    "mean": lambda total, weight: total / weight,
    "entropy": _entropy,
    "exp_mean": lambda total, weight: np.exp(total / weight),
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
}
STEP = 2.0 ** -100  # of the complex step: a power of two, whose products are exact


def measure(score: Score, columns: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """The score of these columns, a number a row each, and its standard error with rows as the sampling unit.

    The error is the delta method's: each row moves the score by the slopes of its function at the sums, times the row's
    own sums. Slopes by the complex step (Squire & Trapp 1998), exact to rounding. Of a ratio of sums it is the ratio
    estimator's error (Cochran 1977, section 2.11).
    """
    value_CxN = [np.asarray(columns[name], np.float64) for name in score.columns]
    sums, rows, of = [value_N.sum() for value_N in value_CxN], len(value_CxN[0]), FUNCTIONS[score.of]
    weight = sums[-1]
    at = [total / weight for total in sums]
    moved_N = sum(_slope(of, at, place) * value_N for place, value_N in enumerate(value_CxN))
    spread = (moved_N ** 2).sum() * rows / max(rows - 1, 1)
    return float(of(*at)), float(math.sqrt(spread) / weight)


def _slope(of, at, place) -> float:
    moved = [value + STEP * 1j if i == place else value for i, value in enumerate(at)]
    return of(*moved).imag / STEP


def ratio(total_N, weight_N) -> tuple[float, float]:
    """Sum of total over sum of weight, and its standard error, as `measure` gives them."""
    return measure(Score("ratio", "", ("total", "weight")), {"total": total_N, "weight": weight_N})


class Estimate(NamedTuple):
    """A value and its bounds, None where there are none. `of` says what they are, `how` more about it."""

    mean: float
    low: float | None
    high: float | None

    of, how = "95% interval over seeds", "Student's t, from three seeds on"


class Range(Estimate):
    """A mean over seeds too few, or too much alike, for an interval."""

    __slots__ = ()
    of, how = "lowest and highest seed", "two, or all that agree, give no interval"


class OverItems(Estimate):
    """Of one run: how far other items of the same kind would move it, and not how far another seed would."""

    __slots__ = ()
    of, how = "95% interval over items", "of this one seed, which says nothing of another"


class OverRows(Estimate):
    """Of one run: how far other held-out rows would move it."""

    __slots__ = ()
    of, how = "95% interval over held-out rows", "of this one seed, which says nothing of another"


REAL, SHARE, PERCENT = (-math.inf, math.inf), (0.0, 1.0), (0.0, 100.0)  # within which values can lie


def estimate(values: Iterable[float], within: tuple[float, float] = REAL) -> Estimate:
    """The mean over seeds with what so many of them can say: nothing of one, of two the lower and the higher.

    Student's interval of two is 12.7 standard errors wide to each side, that of seeds without any spread has no width.
    within: the bounds of what the values are, beyond which no interval goes.
    """
    values = np.asarray(list(values), np.float64)
    mean, least, most = spread(values)
    if len(values) < 2:
        return Estimate(mean, None, None)
    if len(values) == 2 or least == most:
        return Range(mean, least, most)
    from scipy import special  # a fifth of a second, which runs would wait for; stats is half a second

    half = float(special.stdtrit(len(values) - 1, 0.975) * values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, max(mean - half, within[0]), min(mean + half, within[1]))


def spread(values: Sequence[float]) -> Range:
    """The mean with the lowest and highest of some values, between which it lies: rounding may put it beside them."""
    least, most = float(np.min(values)), float(np.max(values))
    return Range(min(max(float(np.mean(values)), least), most), least, most)


def wilson(share: float, items: float) -> tuple[float, float]:
    """The 95% interval of a share of independent items, by its score test (Wilson 1927).

    It lies within 0 and 1, and has a width where all items agree. items: a number above 0, whole or not.
    """
    from scipy import special

    z2 = float(special.ndtri(0.975)) ** 2
    middle = (share + z2 / (2 * items)) / (1 + z2 / items)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * items)) / items) / (1 + z2 / items)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def clustered(share: float, error: float, items: int) -> OverItems:
    """A share of items that are alike in groups, such as those of a row; error: its standard error over the groups.

    Wilson's interval of as many independent items as would have that error (Korn & Graubard 1998), at most all.
    """
    alone = share * (1 - share) / error**2 if error > 0 else items
    return OverItems(share, *wilson(share, min(max(alone, 1.0), items)))


def mean_share(shares: Sequence[float], items: Sequence[int]) -> tuple[float, float]:
    """The 95% interval of the mean of shares, each of other independent items, every share weighing the same.

    Wilson's interval of as many items of one kind as would have the mean's variance, for which each share is taken with
    one more item that is like the mean: none is certain that was only never seen to fail.
    """
    share_S, items_S = np.asarray(shares, np.float64), np.asarray(items, np.float64)
    mean = float(share_S.mean())
    smooth_S = (items_S * share_S + mean) / (items_S + 1)
    variance = float((smooth_S * (1 - smooth_S) / items_S).sum()) / len(share_S) ** 2
    alike = len(share_S) ** 2 / float((1 / items_S).sum())  # as many items where all shares are the same
    return wilson(mean, mean * (1 - mean) / variance if variance > 0 else alike)
