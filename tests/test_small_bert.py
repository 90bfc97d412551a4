"""The table of small BERTs: budgets in tokens, a search apart from the table, and BLiMP by phenomenon."""

from experiments import small_bert
from mlm.experiment import searches

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
