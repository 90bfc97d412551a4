"""A value and how far chance may have moved it."""
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy import stats


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


def ratio(total_N, weight_N) -> tuple[float, float]:
    """Sum of total over sum of weight, and its standard error with rows as the sampling unit.

    Tokens of a row are not independent, so the error is that of a ratio estimator over rows, linearised
    (Cochran 1977, section 2.11).
    """
    total_N, weight_N = np.asarray(total_N, np.float64), np.asarray(weight_N, np.float64)
    n, weight = len(total_N), weight_N.sum()
    mean = total_N.sum() / weight
    spread = ((total_N - mean * weight_N) ** 2).sum() * n / max(n - 1, 1)
    return float(mean), float(math.sqrt(spread) / weight)
