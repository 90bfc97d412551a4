"""The ladder, the optimizers and the search for defaults: what differs between rows, and by which rule they differ."""

import itertools
import re

import jax
import numpy as np
import pytest
from scipy import stats

from experiments import architectures, default_recipe, modern_bert, optimizers
from mlm.base import config, fields
from mlm.experiment import recipes, searches
from mlm.launch.sweep import sweep_points, table_rehearsal
from mlm.models import MODELS, lm
from mlm.report import compare, row_charts
from mlm.training.run import resolution


def count_parameters(own, vocab_size=1000):
    cfg = resolution.derive_fields(fields.override(config.Config(), own), own)  # without a corpus
    model = MODELS[cfg.model.family].build(cfg.model, vocab_size)
    return lm.count_parameters(jax.eval_shape(model.init, jax.random.key(0)))


def test_each_row_of_the_ladder_makes_one_change_to_the_row_that_it_is_compared_with():
    compared = {}
    for row, own in modern_bert.ROWS.items():
        assert modern_bert.find_row(own) == row
        other = modern_bert.find_compared(row)
        if row != modern_bert.FIRST_ROW:
            changed = {name: value for name, value in own.items() if modern_bert.ROWS[other].get(name) != value}
            assert changed in (modern_bert.CHANGES | modern_bert.LEARNED).values()
            compared.setdefault(other, []).append(changed)
    assert sum(map(len, compared.values())) == 2 * len(modern_bert.CHANGES)
    assert len(compared[modern_bert.FIRST_ROW]) == len(modern_bert.CHANGES) + 1
    for point in modern_bert.sweep("paper").values():
        assert point["model.local_window"] in (0, 128) and modern_bert.find_row(point) in modern_bert.ROWS


def test_a_chart_has_the_ladder_from_its_first_row_on_and_then_the_rest_by_score():
    own = {name: point for name, point in modern_bert.sweep("text").items() if name.endswith("seed0")}
    resolved = sweep_points.resolve_points(config.Config(), own, {"data.corpus": "language"})
    configs = [fields.override(cfg, {"workdir": f"{name}-0"}) for name, cfg in resolved.items()]
    results = [table_rehearsal.make_result(cfg, -number) for number, cfg in enumerate(configs)]  # the last is best
    rows, columns = modern_bert.table(results)
    (chart,) = (one for one in row_charts.build_interval_charts(results, rows, columns) if "excess" in one.name)
    alone = [row for row in modern_bert.ROWS if row.endswith(modern_bert.ALONE)]
    ladder = [row for row in modern_bert.ROWS if row not in alone]
    assert [entry["row"].removesuffix(", micro") for entry in chart.rows] == [*ladder, *reversed(alone)]


@pytest.mark.parametrize(("size", "rows"), [("micro", ("+ GeGLU", "+ QK-norm")), ("tiny", ("+ QK-norm",))])
def test_the_rows_of_the_ladder_have_as_many_parameters(size, rows):
    counts = [
        count_parameters(modern_bert.SHARED_FIELDS | modern_bert.ROWS[row] | {"model.size": size})["non_embedding"]
        for row in (modern_bert.FIRST_ROW, *rows)
    ]
    assert len(set(counts)) > 1
    assert max(abs(count / counts[0] - 1) for count in counts) < 0.03


def test_a_block_is_its_change_alone_and_only_a_shared_layer_has_fewer_parameters(monkeypatch):
    monkeypatch.setattr(architectures, "SEARCHES", {})
    points = {name.partition("-")[0]: point for name, point in architectures.sweep("blocks").items()}
    counts = {name: count_parameters(point)["non_embedding"] for name, point in points.items()}
    assert points == {name: points["transformer"] | architectures.BLOCK_CHANGES.get(name, {}) for name in points}
    assert counts["looped"] == counts["transformer"] == pytest.approx(counts["deberta"], rel=0.03)
    assert counts["albert"] == pytest.approx(counts["transformer"] / 2, rel=0.05)
    own = {name: point | {"workdir": name} for name, point in points.items()}
    resolved = sweep_points.resolve_points(config.Config(), own, {})
    rows, _ = architectures.table([table_rehearsal.make_result(cfg, 0) for cfg in resolved.values()])
    assert [row["model"] for row in rows if "seeds" in row] == [*points]


@pytest.mark.parametrize("experiment", [modern_bert, optimizers])
def test_all_rows_have_the_same_rows_and_evaluations_and_both_sizes_what_the_search_chose(experiment, monkeypatch):
    names = [name.removesuffix("-seed3") for name in experiment.sweep("trials")]
    chosen = {name: {"optim.learning_rate": 1e-3 + i / 1e4} for i, name in enumerate(names)}
    rows = {name: searches.RowSearch(values, [], {}) for name, values in chosen.items()}
    monkeypatch.setattr(experiment, "SEARCHES", {"trials": searches.Search("trials", rows, [1], "loss", -1, {})})
    spent = set()
    for scale in ("trials", "laptop"):
        for name, point in experiment.sweep(scale).items():
            spent.add(tuple(point.get(field) for field in ("train.steps", "train.batch_size", "train.eval_every")))
            assert "eval.mask_rate" not in point and (point["seed"] == 3) == (scale == "trials")
            row = re.sub("-(micro|tiny)-seed.$", "-micro", name)
            assert (point["optim.learning_rate"] == chosen[row]["optim.learning_rate"]) == (scale == "laptop")
    assert len(spent) == 1 and len(names) in (len(modern_bert.LANGUAGE_ROWS), len(optimizers.MEMBERS))


def test_two_rows_in_blocks_are_students_paired_test_and_many_share_their_spread():
    value_RxS = np.random.default_rng(0).normal(size=(4, 3)) + np.arange(4)[:, None]
    values = {name: dict(enumerate(value_S)) for name, value_S in zip("abcd", value_RxS, strict=True)}
    two = compare.compare_rows({name: values[name] for name in "ab"}, [("a", "b")])["a", "b"]
    paired = stats.ttest_rel(value_RxS[0], value_RxS[1])
    assert two.p == pytest.approx(paired.pvalue)
    assert two.difference == pytest.approx((value_RxS[0].mean() - value_RxS[1].mean(), *paired.confidence_interval()))
    # The mean of t squared over all pairs is the F of the rows in the analysis of variance with blocks.
    tests = compare.compare_rows(values, list(itertools.combinations("abcd", 2)))
    rest_RxS = value_RxS - value_RxS.mean(1)[:, None] - value_RxS.mean(0) + value_RxS.mean()
    f = (3 * value_RxS.mean(1).var(ddof=1)) / ((rest_RxS**2).sum() / 6)
    assert np.mean([stats.t.isf(test.p / 2, 6) ** 2 for test in tests.values()]) == pytest.approx(f)
    corrected = compare.correct_p(tests)
    order = sorted(tests, key=lambda pair: tests[pair].p)
    assert corrected[order[0]].p == pytest.approx(min(1, 6 * tests[order[0]].p))
    assert [corrected[pair].p for pair in order] == sorted(corrected[pair].p for pair in order)


def test_every_text_family_and_size_has_the_same_trials_of_the_recipe():
    grids = {}
    for name, point in default_recipe.sweep("trials").items():
        group = (point["data.path"], point["model.family"], point.get("model.cell"), point["model.size"])
        grids.setdefault(group, set()).add(name.partition(f"{point['model.size']}-")[2])
    assert len(grids) == 12 and len(set(map(frozenset, grids.values()))) == 1


@pytest.mark.parametrize(("name", "vocab_size", "millions"), [("bert", 30_522, 110), ("modernbert", 50_368, 150)])
def test_a_papers_recipe_has_the_parameters_that_it_is_named_by(name, vocab_size, millions):
    own = recipes.RECIPES[name].fields | {"objective": "mlm", "pack.mode": "", "pack.short_seq_prob": 0.0}
    assert count_parameters(own, vocab_size)["parameters"] == pytest.approx(millions * 1e6, rel=0.02)
