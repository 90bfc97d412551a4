"""At which layer a task is solved: by hand, and its interval over rows."""

import math

import numpy as np
import pytest

from mlm.base.estimates import SeedRange
from mlm.report import layers


@pytest.mark.parametrize(
    ("score_K", "layer"),
    [
        ((0.5, 0.8, 0.8), 1.0),
        ((0.5, 0.5, 0.8), 2.0),
        ((0.5, 0.6, 0.8), (1 * 0.1 + 2 * 0.2) / 0.3),
        ((0.5, 0.9, 0.8, 0.8), (1 * 0.4 - 2 * 0.1) / 0.3),  # a layer that makes it worse
        ((0.5, 0.4, 0.8), (-1 * 0.1 + 2 * 0.4) / 0.3),
    ],
)  # beyond the last
def test_the_expected_layer_weighs_layers_by_what_each_adds_and_clips_nothing(score_K, layer):
    assert layers.compute_expected_layer(score_K) == pytest.approx(layer)
    np.testing.assert_allclose(layers.compute_expected_layer([score_K, score_K]), layer)


def test_the_interval_of_the_centre_of_gravity_ends_at_the_last_layer():
    found = layers.estimate_center_of_gravity([1.9, 2.0, 1.95], 2)
    assert found.low < found.mean == pytest.approx(1.95) and found.high == 2


def test_no_layer_is_expected_where_no_probe_is_better():
    assert math.isnan(layers.compute_expected_layer([0.5, 0.5, 0.5])) and math.isnan(
        layers.compute_expected_layer([0.5, 0.7, 0.5])
    )


def test_over_seeds_each_one_s_probes_give_a_layer():
    assert layers.estimate_expected_layer([[0.5, 0.8, 0.8], [0.5, 0.5, 0.8]]) == SeedRange(1.5, 1, 2)
