"""Points are combined without one setting another's field, and a sweep's names are its own."""

import doctest

import pytest

from mlm.base.errors import ConfigError
from mlm.experiment import grid

WIDTHS = grid.make_axis("model.width", 8, 16, name="w{}")
SEEDS = grid.make_axis("seed", 0, 1)


def test_the_example_holds():
    assert doctest.testmod(grid) == (0, 3)


def test_product_zip_and_chain():
    assert grid.cross_points(WIDTHS, SEEDS) == [
        {"model.width": width, "seed": seed, "name": f"w{width}"} for width in (8, 16) for seed in (0, 1)
    ]
    assert grid.zip_points(WIDTHS, SEEDS) == [
        {"model.width": 8, "seed": 0, "name": "w8"},
        {"model.width": 16, "seed": 1, "name": "w16"},
    ]
    assert grid.chain_points(WIDTHS, SEEDS) == WIDTHS + SEEDS
    with pytest.raises(ValueError):
        grid.zip_points(WIDTHS, SEEDS[:1])


def test_two_parts_that_disagree_are_refused_and_two_that_agree_are_not():
    assert grid.cross_points(SEEDS[:1], SEEDS[:1]) == [{"seed": 0}]
    with pytest.raises(ConfigError, match=r"seed = 1: another group of the sweep sets it to 0"):
        grid.cross_points(SEEDS, SEEDS)


@pytest.mark.parametrize("points", [SEEDS, [*WIDTHS, WIDTHS[0]]])
def test_a_point_without_a_name_of_its_own_is_refused(points):
    with pytest.raises(ConfigError, match="expected a unique name"):
        grid.name_points(points)
