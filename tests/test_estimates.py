"""Intervals of proportions cover what they claim and have a width at 0 and 1; two seeds have none."""

import numpy as np
import pytest
from scipy import stats

from mlm.base import estimates


def test_wilsons_interval_is_scipys_and_has_a_width_where_all_agree():
    for right, items in ((0, 15), (15, 15), (7, 15), (1, 1), (930, 1000)):
        expected = stats.binomtest(right, items).proportion_ci(0.95, "wilson")
        assert estimates.wilson_interval(right / items, items) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("shares", "items"),
    [
        ((0.97,), (15,)),
        ((0.97, 0.98, 0.6), (15, 15, 20)),
        ((0.3, 0.95), (3, 300)),
        ((0.99,) * 20, (10,) * 20),
        (np.linspace(0.3, 1, 67), (10,) * 67),
    ],
)
def test_the_interval_of_a_mean_of_shares_covers_it_nineteen_times_in_twenty(shares, items):
    rng, tables = np.random.default_rng(0), 1000
    counts_TxS = rng.binomial(items, shares, (tables, len(shares)))
    covered = 0
    for counts_S in counts_TxS:
        low, high = estimates.mean_share_interval(counts_S / np.array(items), items)
        covered += low <= np.mean(shares) <= high
        assert 0 <= low < high <= 1
    assert covered / tables > 0.92
    assert estimates.mean_share_interval((1.0, 1.0), (15, 15)) == pytest.approx(estimates.wilson_interval(1.0, 30))
    assert estimates.mean_share_interval((0.4,), (15,)) == pytest.approx(estimates.wilson_interval(0.4, 15))


def test_items_that_are_alike_in_groups_count_as_fewer():
    assert estimates.clustered_interval(1.0, 0.0, 15) == (1.0, *estimates.wilson_interval(1.0, 15))
    alone = (0.8 * 0.2 / 100) ** 0.5
    assert estimates.clustered_interval(0.8, alone, 100) == pytest.approx((0.8, *estimates.wilson_interval(0.8, 100)))
    assert estimates.clustered_interval(0.8, 2 * alone, 100) == pytest.approx(
        (0.8, *estimates.wilson_interval(0.8, 25))
    )
    assert estimates.clustered_interval(0.8, alone / 9, 100) == pytest.approx(
        (0.8, *estimates.wilson_interval(0.8, 100))
    )


def test_a_mean_over_seeds_says_as_much_as_its_seeds():
    assert estimates.estimate_mean([3.0]) == (3.0, None, None)
    two = estimates.estimate_mean([3.0, 4.0])
    assert two == (3.5, 3.0, 4.0) and isinstance(two, estimates.SeedRange)
    assert isinstance(estimates.estimate_mean([1.0, 1.0, 1.0]), estimates.SeedRange)
    rounded = [190 / 350, 190 / 350, np.nextafter(190 / 350, 0)]  # the same share, added up in another order
    assert isinstance(estimates.estimate_mean(rounded), estimates.SeedRange)
    alike = (0.1,) * 3
    assert np.mean(alike) > max(alike) and estimates.estimate_mean(alike) == estimates.seed_range(alike) == alike
    values = [1.0, 2.0, 4.0]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    found = estimates.estimate_mean(values)
    assert found == pytest.approx((np.mean(values), low, high)) and type(found) is estimates.Estimate


def test_no_interval_of_a_share_leaves_what_shares_can_be():
    assert estimates.estimate_mean([0.1, 0.9, 0.95], estimates.FRACTION)[1:] == (0.0, 1.0)
    assert estimates.estimate_mean([10.0, 90.0, 95.0], estimates.PERCENT)[1:] == (0.0, 100.0)
    assert estimates.estimate_mean([0.1, 0.9, 0.95]).low < 0
    metric = estimates.EvaluationMetric("f1", "F1", "", bounds=estimates.PERCENT)
    for value, interval in ((99.0, (99 - 1.96 * 2, 100)), (1.0, (0, 1 + 1.96 * 2))):
        assert estimates.EvaluationScore(metric, value, 2.0).estimate()[1:] == pytest.approx(interval)


@pytest.mark.parametrize("of", estimates.SCORE_FUNCTIONS)
def test_scores_of_many_sums_at_once_are_those_of_each(of):
    """As resamples are judged (report/compare.py), those among them in which nothing is there, or all is alike."""
    rng = np.random.default_rng(0)
    value_N, other_N = rng.integers(0, 2, (2, 40)).astype(float)
    columns = {
        "mean": [value_N],
        "exp_mean": [value_N],
        "entropy": [value_N],
        "f1": [value_N * other_N, value_N, other_N],
        "matthews": [value_N == other_N, 1 - value_N, value_N, 1 - other_N, other_N],
        "pearson": [value_N, other_N, value_N**2, other_N**2, value_N * other_N],
    }[of]
    sums_RxC = np.array([*columns, np.ones(40)]).reshape(-1, 10, 4).sum(-1).T
    every_RxC = np.concatenate([sums_RxC, sums_RxC * [*[0] * len(columns), 1]])
    together = estimates.SCORE_FUNCTIONS[of](*every_RxC.T)
    alone = [estimates.SCORE_FUNCTIONS[of](*sums_C) for sums_C in every_RxC.tolist()]
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    assert np.isfinite(together).all() and np.ptp(together) > 0
