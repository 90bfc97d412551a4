"""A value and how far chance may have moved it: scores as functions of sums over rows, means over seeds."""
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats


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


# Each a function of sums that stays what it is where all sums grow by one factor.
FUNCTIONS = {
    "mean": lambda total, weight: total / weight,
    "exp_mean": lambda total, weight: np.exp(total / weight),
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
    """A mean over seeds and its 95% interval (Student's t); the bounds are None for a single seed."""

    mean: float
    low: float | None
    high: float | None


def estimate(values: Iterable[float]) -> Estimate:
    values = np.asarray(list(values), np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean, None, None)
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return Estimate(mean, mean - half, mean + half)
