"""Points are combined without one setting another's field, and a sweep's names are its own."""

import contextlib
import doctest

import pytest

from mlm.base import config, errors, fields
from mlm.base.errors import ConfigError
from mlm.experiment import grid
from mlm.launch.sweep import sweep_points
from mlm.report import series

WIDTHS = grid.make_axis("model.width", 8, 16, name="w{}")
SEEDS = grid.make_axis("seed", 0, 1)


def test_the_example_holds():
    assert doctest.testmod(grid) == (0, 2)


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


def test_a_point_wins_over_the_shared_fields():
    points = grid.cross_points(WIDTHS, grid.make_seeds(2))
    named = grid.name_points(points, {"model.width": 4, "train.steps": 9})
    assert list(named) == ["w8-seed0", "w8-seed1", "w16-seed0", "w16-seed1"]
    assert named["w16-seed1"] == {"model.width": 16, "seed": 1, "train.steps": 9}


def test_two_parts_that_disagree_are_refused_and_two_that_agree_are_not():
    assert grid.cross_points(SEEDS[:1], SEEDS[:1]) == [{"seed": 0}]
    with pytest.raises(ConfigError, match=r"seed = 1: another group of the sweep sets it to 0"):
        grid.cross_points(SEEDS, SEEDS)


@pytest.mark.parametrize("points", [SEEDS, [*WIDTHS, WIDTHS[0]]])
def test_a_point_without_a_name_of_its_own_is_refused(points):
    with pytest.raises(ConfigError, match="expected a unique name"):
        grid.name_points(points)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ({"a-seed0": {"seed": 0}, "a-seed1": {"seed": 1}, "b-seed0": {"mask.rate": 0.4}}, ""),
        (
            {"a-seed0": {}, "a-seed1": {"seed": 1, "mask.rate": 0.4}},
            "points a-seed0 and a-seed1: .* differ in mask.rate",
        ),
    ],
)
def test_a_row_is_one_recipe_and_a_recipe_one_row(points, words):
    configs = {name: fields.override(config.Config(), changes) for name, changes in points.items()}
    with pytest.raises(errors.ConfigError, match=words) if words else contextlib.nullcontext():
        assert sweep_points.check_groups(configs, series.group_name) == ""
    for names in (("a-s0", "a-s1"), ("seed0-a", "seed1-a")):
        twins = {name: config.Config(seed=seed) for seed, name in enumerate(names)}
        assert f"points {names[0]} and {names[1]} are one recipe" in sweep_points.check_groups(twins, series.group_name)


@pytest.mark.parametrize(("name", "near"), [("optim.lr", "optim.learning_rate"), ("model.hidden_size", "model.width")])
def test_the_hint_for_another_library_s_name_is_ours(name, near):
    assert fields.ALIASES.keys().isdisjoint(fields.DEFAULT) and set(fields.ALIASES.values()) <= set(fields.DEFAULT)
    with pytest.raises(errors.ConfigError, match=f"did you mean config.{near}"):
        fields.check_name(name)
