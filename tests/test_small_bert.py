"""The table of small BERTs: budgets in tokens, a search apart from the table, and BLiMP by phenomenon."""

import pytest
from test_experiments import FLOORS, result

from experiments import small_bert
from mlm.experiment import searches
from mlm.objectives import mlm

SEQUENCE = 128 * 16  # tokens of a step


def test_a_budget_is_a_number_of_tokens_and_each_size_has_what_its_search_chose(monkeypatch):
    trials = small_bert.sweep("trials")
    names = [name.removesuffix("-seed3") for name in trials]
    chosen = {name: {"optim.learning_rate": 1e-3 + i / 1e4} for i, name in enumerate(names)}
    rows = {name: searches.RowSearch(values, [], {}) for name, values in chosen.items()}
    search = searches.Search("trials", rows, [1], "loss", -1, {})
    monkeypatch.setattr(small_bert, "SEARCHES", {"trials": search})
    points = small_bert.sweep("laptop")
    for name, point in points.items():
        budget = float(name.split("-seed")[0].split("-")[-1].removesuffix("M"))
        assert 0 <= budget * 1_000_000 - point["train.steps"] * SEQUENCE < SEQUENCE
        rate = chosen[f"{point['model.size']}-1M"]["optim.learning_rate"]
        assert point["optim.learning_rate"] == rate
    assert {point["seed"] for point in trials.values()}.isdisjoint(point["seed"] for point in points.values())
    assert small_bert.sweep("trials") == trials  # a search starts from the same recipe whatever another one chose
    causal = [point for point in points.values() if point.get("objective") == "causal"]
    assert len(causal) == 1 and causal[0]["eval.ngram_order"] == 5


def make_run(seed, accuracy, name="micro-1M"):
    one = result(name, seed, 3.0, (*mlm.SCORES, *FLOORS[:1]))
    suite = {
        "suite": "blimp",
        "sha256": "0",
        "phenomena": {"island_effects": {"pll_word_l2r_accuracy": accuracy}},
        "overall": {"pll_word_l2r_accuracy": accuracy, "pairs": 10, "paradigms": 1},
    }
    return one | {"summary": {"minimal_pairs": {"key": suite}} if accuracy else {}}


def test_blimp_stands_by_phenomenon_where_every_seed_was_asked():
    asked, over_training = small_bert.tables([make_run(0, 0.6), make_run(1, 0.7), make_run(2, 0.65)])
    assert [column.title for column in asked.columns] == ["row", "island effects"]
    assert asked.rows[0]["row"] == "micro-1M" and asked.rows[0]["island_effects"].mean == pytest.approx(65)
    assert over_training.rows == []
    more = make_run(0, 0.6, "tiny-1M")
    more["summary"]["minimal_pairs"]["key"]["phenomena"]["ellipsis"] = {"pll_word_l2r_accuracy": 0.3}
    shown = small_bert.tables([make_run(0, 0.6), more])[0].columns
    assert [column.title for column in shown] == ["row", "island effects", "ellipsis"]
    assert small_bert.tables([make_run(0, 0.6), make_run(1, None)])[0].rows == []


def test_blimp_over_training_has_the_milestones_where_every_seed_was_asked():
    accuracies = {40: 0.5, 80: 0.7}, {40: 0.6}
    runs = [
        make_run(seed, 0.9) | {"milestones": {step: make_run(seed, accuracy) for step, accuracy in by_step.items()}}
        for seed, by_step in enumerate(accuracies)
    ]
    asked, over_training = small_bert.tables(runs)
    assert asked.rows[0]["island_effects"].mean == pytest.approx(90)
    assert [column.title for column in over_training.columns] == ["run", "step", "island effects"]
    assert [(row["run"], row["step"]) for row in over_training.rows] == [("micro-1M", 40)]
    assert over_training.rows[0]["island_effects"].mean == pytest.approx(55)


def test_milestones_are_of_the_table_s_runs():
    points, table = small_bert.sweep("milestones"), small_bert.sweep("laptop")
    assert points and points.items() <= table.items()
