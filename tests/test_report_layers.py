"""At which layer a task is solved: by hand, and its interval over rows."""
import math

import numpy as np
import pytest

from mlm.base.estimates import OverRows, Range, Score
from mlm.report import compare, layers

F1 = Score("f1", "F1", ("right", "found", "there", "weight"), "f1", better=1)


@pytest.mark.parametrize(("score_K", "layer"), [
    ((0.5, 0.8, 0.8), 1.0), ((0.5, 0.5, 0.8), 2.0), ((0.5, 0.6, 0.8), (1 * 0.1 + 2 * 0.2) / 0.3),
    ((0.5, 0.9, 0.8, 0.8), (1 * 0.4 - 2 * 0.1) / 0.3),   # a layer that makes it worse
    ((0.5, 0.4, 0.8), (-1 * 0.1 + 2 * 0.4) / 0.3)])      # beyond the last
def test_the_expected_layer_weighs_layers_by_what_each_adds_and_clips_nothing(score_K, layer):
    assert layers.expected(score_K) == pytest.approx(layer)
    np.testing.assert_allclose(layers.expected([score_K, score_K]), layer)


def test_the_centre_of_gravity_counts_the_embeddings_as_0():
    assert layers.gravity([1, 0, 0]) == 0 and layers.gravity([0.5, 0.25, 0.25]) == pytest.approx(0.75)
    found = layers.gravity_over_seeds([1.9, 2.0, 1.95], 2)
    assert found.low < found.mean == pytest.approx(1.95) and found.high == 2  # no layer beyond the last


def test_no_layer_is_expected_where_no_probe_is_better():
    assert math.isnan(layers.expected([0.5, 0.5, 0.5]))


def test_over_seeds_each_one_s_probes_give_a_layer():
    assert layers.expected_over_seeds([[0.5, 0.8, 0.8], [0.5, 0.5, 0.8]]) == Range(1.5, 1, 2)


def drawn(rng, rows=1000):
    """Probes of depths 0, 1 and 2 on the same rows: right, found, there and weight by row."""
    weight_N = rng.integers(1, 6, rows)
    easy_N = rng.choice([0.1, 1.0], rows)  # what is hard for one depth is for the others
    right_KxN = np.array([rng.binomial(weight_N, chance * easy_N) for chance in (0.5, 0.7, 0.95)])
    found_KxN = np.maximum(right_KxN, rng.binomial(weight_N, 0.9, (3, rows)))
    return np.stack([right_KxN, found_KxN, *np.broadcast_to(weight_N, (2, 3, rows))], -1)


def test_the_interval_over_rows_has_the_spread_of_new_rows_and_is_of_the_same_rows_at_each_depth():
    rng = np.random.default_rng(0)
    given_KxNxC = drawn(rng)
    found = layers.expected_over_rows(F1, given_KxNxC, resamples=1000)
    assert isinstance(found, OverRows)
    assert found.mean == layers.expected([2 * r / (f + t) for r, f, t, _ in given_KxNxC.sum(1)])
    new = [layers.expected(compare.of_sums(F1, drawn(rng).sum(1))) for _ in range(300)]
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.std(new), rel=0.25)
    again = layers.expected_over_rows(F1, given_KxNxC, resamples=1000)
    assert again == found
    alike = np.broadcast_to(given_KxNxC[:, :1], given_KxNxC.shape)
    assert np.ptp(layers.expected_over_rows(F1, alike, resamples=50)) < 1e-9  # rows that do not differ leave no spread
