"""Differences between rows that all have the same seeds, with the spread over seeds pooled over the rows.

With two or three seeds a paired test of two rows hardly knows how much seeds differ. In a randomized block design (Box,
Hunter & Hunter 2005, section 4.2) all rows say it together: what remains of the values once each row's and each seed's
mean is taken off. It supposes that seeds spread the rows' values alike; rows that spread more make the test of the
others stricter, and their own milder. For two rows it is Student's paired test.

Letters in array names: R rows, S seeds.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import special

from mlm.base.estimates import Estimate
from mlm.report import compare

K = TypeVar("K", bound=Hashable)


class BlockInterval(Estimate):
    """A difference between two rows, with the spread over seeds pooled over all rows."""

    __slots__ = ()
    bounds_title, bounds_method = "95% interval over seeds", "seeds as blocks, their spread pooled over rows"


class BlockTest(NamedTuple):
    """The first row's mean minus the second's, and the two-sided p of no difference."""

    difference: Estimate
    p: float


def compare_rows(values: Mapping[K, Mapping[int, float]], pairs: Iterable[tuple[K, K]]) -> dict[tuple[K, K], BlockTest]:
    """The test of each pair of rows, without a correction for their number.

    Args:
        values: of each row, by seed; seeds that a row lacks are left out for all.
        pairs: of rows; those with a row that is missing are left out.

    Returns:
        A test for each pair; none at all with less than two seeds or rows, or if nothing spreads.
    """
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in values.values()))) if values else []
    if len(seeds) < 2 or len(values) < 2:
        return {}
    value_RxS = np.array([[by_seed[seed] for seed in seeds] for by_seed in values.values()], np.float64)
    mean_R = value_RxS.mean(1)
    rest_RxS = value_RxS - mean_R[:, None] - value_RxS.mean(0) + value_RxS.mean()
    freedom = (len(values) - 1) * (len(seeds) - 1)
    error = math.sqrt(float((rest_RxS**2).sum()) / freedom * 2 / len(seeds))
    means = dict(zip(values, mean_R.tolist(), strict=True))
    if not error:
        return {}
    half = float(special.stdtrit(freedom, 0.975)) * error
    tests = {}
    for first, second in pairs:
        if first in means and second in means:
            difference = means[first] - means[second]
            p = 2 * float(special.stdtr(freedom, -abs(difference) / error))
            tests[first, second] = BlockTest(BlockInterval(difference, difference - half, difference + half), p)
    return tests


def correct_p(tests: Mapping[K, BlockTest]) -> dict[K, BlockTest]:
    """The tests with Holm's correction of p for their number; the intervals stay those of one difference each."""
    p_P = compare.holm_p(np.array([test.p for test in tests.values()]))
    return {key: test._replace(p=p) for (key, test), p in zip(tests.items(), p_P.tolist(), strict=True)}
