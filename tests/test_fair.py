"""Experiments compare what they say they compare: the same rows and masks, and learning rates that favour nobody."""

import json
from itertools import product

import numpy as np
import pytest
from scipy import stats
from test_experiments import FLOORS, result

from experiments import architectures, masking_rate, modern_bert
from mlm.base import config, fields
from mlm.experiment.recipes import MODERN_BLOCK
from mlm.objectives import mlm
from mlm.report import compare


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
    assert {name: value for name, value in last.items() if name.startswith("model.")} == MODERN_BLOCK
    points = architectures.sweep("laptop").items()
    assert {name.partition("-seed")[0] for name, point in points if point.items() >= MODERN_BLOCK.items()} == {
        "modern-micro",
        "modern-tiny",
    }


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


def test_the_masking_rate_s_rows_are_compared_with_15_and_a_move_is_seen():
    budgets = {8_000: 0.0, 50_000: 0.2}  # nats that 40% gains on 15%
    results, losses, random = [], {}, np.random.default_rng(0)
    for name, point in masking_rate.sweep("laptop").items():
        examples = point["train.steps"] * point["train.batch_size"]
        if point["mask.rate"] in (0.15, 0.4) and examples in budgets:
            loss = 3.0 - budgets[examples] * (point["mask.rate"] == 0.4) + random.normal(scale=0.003)
            losses.setdefault((point["model.size"], examples, point["mask.rate"]), []).append(loss)
            one = result(name.partition("-seed")[0], point["seed"], loss, (*mlm.SCORES, *FLOORS[:3]))
            one["config"] = fields.flatten(config.Config()) | point | one["config"] | {"mask.rate": point["mask.rate"]}
            one["evaluation"] |= {"floor": 2.0, "window_floor": 2.1, "excess_loss": loss - 2, "excess_loss_se": 0.01}
            results.append(one)
    rows, _ = masking_rate.table(results)
    cells = {(row["size"], row["examples"], row["rate"]): row for row in rows if "rate" in row}
    assert cells["micro", 50_000, "40%"]["difference"].mean == pytest.approx(-0.2, abs=0.01)
    assert cells["micro", 50_000, "40%"]["p"] < 0.01 and "p" not in cells["micro", 50_000, "15%"]
    (moves,) = masking_rate.tables(results)
    gains = {at: np.subtract(losses[*at, 0.4], losses[*at, 0.15]) for at in product(("micro", "tiny"), budgets)}
    pairs = [(("micro", 8_000), ("micro", 50_000)), (("tiny", 8_000), ("tiny", 50_000))]
    pairs += [(("micro", 8_000), ("tiny", 8_000)), (("micro", 50_000), ("tiny", 50_000))]
    values = np.array([gains[at] for at in gains])  # two ways without interaction: what is left of rows and seeds
    rest = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    freedom = (len(values) - 1) * (values.shape[1] - 1)
    error = np.sqrt((rest**2).sum() / freedom * 2 / values.shape[1])
    p = [2 * stats.t.sf(abs(gains[more].mean() - gains[less].mean()) / error, freedom) for less, more in pairs]
    assert [(row["less"], row["more"]) for row in moves.rows] == [
        tuple("{}, {:,} examples".format(*at) for at in pair) for pair in pairs
    ]
    assert [row["difference"].mean for row in moves.rows] == pytest.approx(
        [gains[more].mean() - gains[less].mean() for less, more in pairs]
    )
    assert [row["p"] for row in moves.rows] == pytest.approx(compare.holm_p(np.array(p)).tolist())
    assert [row["p"] < 0.05 for row in moves.rows] == [True, True, False, False]
    (chart,) = masking_rate.charts(results)
    assert [line.name for line in chart.series][:2] == ["micro, 8,000 examples", "micro, 50,000 examples"]
    assert chart.series[1].x == [0.15, 0.4] and chart.series[1].y[1].mean < chart.series[1].y[0].mean
    for one in results:  # as by --budget=flops, by which each rate has other steps
        one["config"]["train.steps"] -= round(100 * one["config"]["mask.rate"])
    other_rows, _ = masking_rate.table(results)
    assert [row.get("p") for row in other_rows] == [row.get("p") for row in rows]
    assert [row["examples"] for row in other_rows if "rate" in row][:2] == [7_760, 7_360]
