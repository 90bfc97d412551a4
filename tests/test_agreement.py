"""How far two corpora agree on what changes are worth: by scipy, by brute force, and on differences whose own is known."""

import numpy as np
import pytest
from scipy import stats

from experiments import transfer
from mlm.base import config, fields
from mlm.data.language import grammar
from mlm.training.run import resolution


def test_measures_are_those_of_scipy_and_of_least_squares():
    rng = np.random.default_rng(0)
    x_PxN = rng.normal(size=(3, 9)).round(1)  # with ties
    y_PxN = x_PxN + rng.normal(size=(3, 9)).round(1)
    found = transfer.compute_measures(x_PxN, y_PxN)
    taus = [stats.kendalltau(x_N, y_N).statistic for x_N, y_N in zip(x_PxN, y_PxN, strict=True)]
    slopes = [np.linalg.lstsq(x_N[:, None], y_N, rcond=None)[0][0] for x_N, y_N in zip(x_PxN, y_PxN, strict=True)]
    assert found["tau"].mean == pytest.approx(np.mean(taus), abs=1e-12)
    assert found["slope"].mean == pytest.approx(np.mean(slopes), abs=1e-12)
    assert found["agreement"].mean == pytest.approx(np.mean(np.sign(x_PxN) == np.sign(y_PxN)), abs=1e-12)
    for estimate in found.values():
        assert estimate.low <= estimate.mean <= estimate.high


def test_intervals_are_those_of_resampled_changes(monkeypatch):
    """Every resample of four changes, once: the quantiles of scipy's tau over them are the interval's ends."""
    count = np.array([np.bincount(index, minlength=4) for index in np.ndindex(4, 4, 4, 4)], np.float64)
    monkeypatch.setattr(transfer.compare, "draw_counts", lambda rng, n, resamples: count)
    x_N, y_N = np.array([-1.0, 0.2, 0.5, 2.0]), np.array([-0.5, 1.0, 0.7, 0.9])
    measures = transfer.compute_measures(x_N[None], y_N[None])
    slopes = (count @ (x_N * y_N)) / (count @ x_N**2)
    found = measures["slope"]
    assert (found.low, found.high) == pytest.approx(np.quantile(slopes, (0.025, 0.975)), abs=1e-12)
    found = measures["tau"]
    taus = []
    for count_N in count.astype(int):
        own = stats.kendalltau(np.repeat(x_N, count_N), np.repeat(y_N, count_N)).statistic
        taus.append(0 if np.isnan(own) else own)
    assert (found.low, found.high) == pytest.approx(np.quantile(taus, (0.025, 0.975)), abs=1e-12)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(transfer.compare, "RESAMPLES", 200)


def make_results(scale, worth):
    """Runs of a scale whose losses are as if an intervention were worth `worth(corpus, model)` nats."""
    results = []
    for point in transfer.sweep(scale):
        name, _, seed = point.rpartition("-seed")
        corpus, _, model = name.split("-", 2)
        chain = [model]
        while chain[-1] != transfer.PLAIN:
            chain.append(transfer.INTERVENTIONS[chain[-1]].base)
        loss = 5 + int(seed) + sum(worth(corpus, each) for each in chain[:-1])  # a seed moves base and changed alike
        config = {"workdir": f"runs/{point}-012345", "seed": int(seed)}
        results.append({"config": config, "evaluation": {"loss": loss}})
    return results


def test_a_language_that_halves_each_difference_agrees_with_texts_and_its_slope_is_two():
    order = {name: i - 11.5 for i, name in enumerate(transfer.INTERVENTIONS)}
    worth = lambda corpus, model: order[model] * (0.05 if corpus in transfer.PRESETS else 0.1)
    differences, measure = transfer.tables(make_results("laptop", worth))
    names = {row["change"]: row for row in differences.rows if row["length"] == "long"}
    assert len(names) == len(transfer.INTERVENTIONS) - 1 >= 24 and set(transfer.HALVES.values()) == {"choose", "report"}
    gates = names["lstm-short-gates"]["wikitext"].mean  # against the LSTM, not the Transformer
    assert gates == pytest.approx(0.1 * order["lstm-short-gates"])
    rows = [row for row in measure.rows if row["corpus"] == "language"]
    assert len(rows) == 4 and sorted(row["count"] for row in rows) == [14, 15, 15, 15]
    for row in rows:
        assert [row[name].mean for name in ("agreement", "tau", "slope")] == pytest.approx([1, 1, 2])
    ceiling = [row for row in measure.rows if row["corpus"] == transfer.CEILING]
    assert all(row["pairs"] == 12 and row["slope"].mean == pytest.approx(1) for row in ceiling)
    charts = transfer.charts(make_results("laptop", worth))
    assert [chart.name for chart in charts] == [f"transfer-{corpus}" for corpus in transfer.PRESETS]
    for chart in charts:
        assert len(chart.rows) == len(transfer.INTERVENTIONS) - 1
        assert chart.rows[0]["text"].mean == pytest.approx(-1.15)
        assert {value["half"] for value in chart.spec["data"]["values"] if "place" in value} == {"report"}


def test_names_of_points_cover_no_point_no_other_name_and_not_the_diagonal():
    rng = np.random.default_rng(0)
    point_Nx2 = rng.uniform(10, transfer.SIDE - 10, (40, 2))
    names = ["n" * int(length) for length in rng.integers(3, 18, 40)]
    found = transfer.place_names(point_Nx2, names, range(40))
    boxes = []
    for i, place in found.items():
        align, dx, dy = transfer.PLACES[place]
        (x, y), width = point_Nx2[i] + (dx, dy), transfer.CHARACTER * len(names[i])
        left = {"left": x, "center": x - width / 2, "right": x - width}[align]
        boxes.append((left, y - transfer.TEXT_SIZE / 2, left + width, y + transfer.TEXT_SIZE / 2))
    box_Mx4 = np.array(boxes)
    assert 10 < len(boxes) < 40 and box_Mx4.min() >= 0 and box_Mx4.max() <= transfer.SIDE
    for i, (x0, y0, x1, y1) in enumerate(boxes):
        x_N, y_N = point_Nx2.T
        assert not np.any((x0 < x_N) & (x_N < x1) & (y0 < y_N) & (y_N < y1))
        others = np.delete(box_Mx4, i, axis=0)
        assert not np.any((x0 < others[:, 2]) & (others[:, 0] < x1) & (y0 < others[:, 3]) & (others[:, 1] < y1))
        assert (x0 + y0 - transfer.SIDE) * (x1 + y1 - transfer.SIDE) > 0  # all corners on one side


def test_a_change_of_a_changed_model_keeps_what_its_base_changed():
    points = transfer.sweep("laptop")
    gates = points["wikitext-long-lstm-short-gates-seed0"]
    assert gates == points["wikitext-long-lstm-seed0"] | {"model.chrono_init": 0}
    examples = {
        fields["train.steps"] * fields["train.batch_size"] for name, fields in points.items() if "-long-" in name
    }
    assert examples == {transfer.LENGTHS["long"]}


@pytest.mark.parametrize("corpus", [*transfer.REMOVED, "wikipedia"])
def test_a_language_without_an_ingredient_is_one(corpus):
    points = transfer.sweep("removed" if corpus in transfer.REMOVED else "laptop")
    cfg = resolution.resolve(fields.override(config.Config(), points[f"{corpus}-short-transformer-seed0"]))
    words = next(grammar.iterate_documents(cfg.data.language)).split()
    assert 8 < len(words) <= 126 and words[-1] == "."


def test_only_interventions_that_all_corpora_have_are_measured():
    results = make_results("laptop", lambda corpus, model: len(model))
    part = [run for run in results if "novels_hu-long-gru" not in run["config"]["workdir"]]
    counts = {(row["length"], row["half"]): row["count"] for row in transfer.tables(part)[1].rows}
    assert counts["long", "choose"] == 14 and counts["short", "choose"] == counts["short", "report"] == 15
