"""Experiments compare what they say they compare: the same rows and masks, and learning rates that favour nobody."""

import json

import pytest

from experiments import architectures, masking_rate, modern_bert, objectives


def test_every_architecture_takes_in_the_same_rows_and_was_tried_on_them():
    scales = {name: architectures.sweep(name) for name in ("quick", "trials", "laptop")}
    points = [point for sweep in scales.values() for point in sweep.values()]
    spent = {
        (
            point["train.steps"] * point["train.batch_size"],
            point["train.eval_every"] * point["train.batch_size"],
            point["mask.rate"],
            point["data.language.train_documents"],
        )
        for point in points
    }
    assert spent == {(32_000, 1_600, 0.3, 32_000)}
    fields = ("optim.learning_rate", "train.batch_size", "train.steps", "train.eval_every", "seed")

    tried = {}
    for name, point in scales["trials"].items():
        tried.setdefault(name.partition("-")[0], set()).add(tuple(point[field] for field in fields))
    assert tried.keys() == architectures.TUNED.keys() and len(set(map(frozenset, tried.values()))) == 1
    assert len(tried["lstm"]) == 4 * 2 * 3  # learning rates, batches, seeds
    assert {tuple(point[field] for field in fields) for point in scales["quick"].values()} <= tried["lstm"]
    for name, point in scales["quick"].items():
        assert point.items() >= architectures.TUNED[name.partition("-")[0]].items()
    rows = architectures.SEARCHES["laptop"].rows
    rungs = {tuple(sorted(len(trial.scores) for trial in row.trials)) for row in rows.values()}
    assert rungs == {(1,) * 6 + (2,) * 2}  # of eight trials the best two are trained to the end
    for name, point in scales["laptop"].items():
        assert point.items() >= rows[name.rpartition("-seed")[0]].chosen.items()


def test_the_modern_transformer_is_the_ladder_s_last_block():
    last = modern_bert.ROWS[f"+ {modern_bert.LAST}"]
    assert {name: value for name, value in last.items() if name.startswith("model.")} == architectures.MODERN_BLOCK
    points = architectures.sweep("laptop").items()
    assert {
        name.partition("-seed")[0] for name, point in points if point.items() >= architectures.MODERN_BLOCK.items()
    } == {"modern-micro", "modern-tiny"}


@pytest.mark.parametrize("scale", ["quick", "laptop", "text", "paper"])
def test_every_masking_rate_has_the_same_search_and_rows(scale):
    chosen = [*masking_rate.search_space({})]  # a rate's own; nothing else may differ
    by_rate = {}
    for point in masking_rate.sweep(scale).values():
        group = (point["model.size"], point["mask.mask_token_prob"])
        rest = {name: value for name, value in point.items() if name not in ("mask.rate", *chosen)}
        by_rate.setdefault(group, {}).setdefault(point["mask.rate"], set()).add(json.dumps(rest, sort_keys=True))
    for group, trained in by_rate.items():
        assert len(set(map(frozenset, trained.values()))) == 1, group
    rates = {point["optim.learning_rate"] for point in masking_rate.sweep(scale).values() if point.get(chosen[0])}
    assert scale in ("laptop", "text") or len(rates) == 1
    trials = masking_rate.sweep("trials")
    laptop = masking_rate.sweep("laptop")
    assert {point["mask.rate"] for point in trials.values()} == {point["mask.rate"] for point in laptop.values()}
    assert not {point["seed"] for point in trials.values()} & {point["seed"] for point in laptop.values()}


def test_generators_differ_in_what_they_share_alone():
    points, chosen = objectives.sweep("sharing"), objectives.SEARCHES["laptop"].rows[objectives.GENERATOR_ROW].chosen
    rows = [{name: value for name, value in point.items() if name != objectives.SHARING} for point in points.values()]
    assert rows == 3 * rows[:3] and all(row.items() >= chosen.items() for row in rows)
    assert {point.get(objectives.SHARING) for point in points.values()} == {None, "shared", "disentangled"}
