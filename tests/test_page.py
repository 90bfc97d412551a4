"""Figures hold the sweep's numbers and can be told apart; the page works in a browser, without a network."""
import copy
import csv
import itertools
import json
import re
import shutil
import types

import numpy as np
import pytest

from experiments import architectures
from mlm.base import config, estimates, fields
from mlm.objectives import mlm
from mlm.report import charts, figures, series, table
from mlm.report.pages import sweep as page
from mlm.train.step import references

MEMBERS = ("window", "gru", "lstm")
SCORES = (*mlm.SCORES, *references.beside(mlm.SCORES[0], dict.fromkeys(("floor", "window_floor"))).scores)
LOSS, GAP = (charts.axis(next(score for score in SCORES if score.name == name)) for name in ("loss", "gap"))


def judged(loss, rate=0.15):
    floor = 2 + rate
    return {"rate": rate, "loss": loss, "loss_se": 0.03, "accuracy": 0.3, "accuracy_se": 0.01,
            "perplexity": np.exp(loss), "perplexity_se": 0.1, "unigram_loss": 4.8, "unigram_accuracy": 0.1,
            "window_floor": 2.5, "window_floor_accuracy": 0.4, "floor": floor, "floor_se": 0.02, "floor_accuracy": 0.5,
            "gap": loss - floor, "gap_se": 0.01}


def classes(share, *bounds):
    return [{"low": low, "high": high, "items": 90, "accuracy": share - 0.05 * i, "accuracy_se": 0.02,
             "optimum": 0.99 - 0.01 * i} for i, (low, high) in enumerate(bounds)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A folder, and three groups of two seeds, which lie in the order of their losses."""
    root, results, rng = tmp_path_factory.mktemp("sweep"), [], np.random.default_rng(0)
    predictions_N, row_N = rng.integers(5, 20, 60), rng.normal(3, 0.5, 60)
    for (place, member), seed in itertools.product(enumerate(MEMBERS), (0, 1)):
        nats_N = (row_N + 0.3 * place + 0.02 * seed + rng.normal(0, 0.1, 60)) * predictions_N
        loss = nats_N.sum() / predictions_N.sum()
        own = {"model.family": architectures.MEMBERS[member], "model.cell": member, "model.size": "tiny", "seed": seed,
               "workdir": str(root / f"{member}-tiny-seed{seed}-0123ab"),
               "optim.learning_rate": 2e-3 if member == "lstm" else 1e-3}
        results.append({
            "config": fields.flatten(config.Config()) | own, "parameters": 1000, "non_embedding": 800,
            "flops": 1e9, "steps": 4, "tokens": 4096.0 + seed, "tokens_per_second": 500.0, "predictions": 600.0,
            "evaluation": judged(loss),
            "scores": [score._asdict() for score in SCORES], "summary": {},
            "held_out": {"mlm_nats": nats_N, "mlm_weight": predictions_N},
            "answers": {
                "rates": {"0.15": judged(loss, 0.15), "0.5": judged(loss + 0.2, 0.5)},
                "probes": {"agreement": {"distance": classes(0.9 + seed / 50, (0, 0), (1, 3), (4, None)),
                                         "attractors": classes(0.9, (0, 0), (1, None))},
                           "recall": {"distance": classes(0.5, (0, 0), (1, None)), "accuracy": 0.45, "optimum": 0.98}}},
            "history": [{"step": step, **more} for step in (2, 4) for more in (
                {"loss": 5.0, "tokens": step * (4096.0 + seed) / 4},
                {f"eval_{name}": value for name, value in judged(loss + 4 - step).items()})]})
    return root, results


def with_paper(results):
    rows, columns = architectures.table(results)
    rows[0]["accuracy_paper"] = 0.25
    at = [column.name for column in columns].index("accuracy") + 1
    return rows, (*columns[:at], table.Column("accuracy_paper", "accuracy (paper)", ".3f"), *columns[at:])


EXPERIMENT = types.SimpleNamespace(__doc__="Is <b>order</b> of use?\n\nSource  </script><script>alert(1)</script>\n",
                                   table=with_paper, group=lambda result: result["config"]["model.cell"])


@pytest.fixture(scope="module")
def written(sweep):
    return page.write(*sweep[:1], EXPERIMENT, sweep[1], 8)


def all_charts(sweep):
    return {chart.name: chart for chart in charts.of(sweep[1], *with_paper(sweep[1]))}


def at_rate(result, rate):
    return result["answers"]["rates"][rate]


def test_curves_hold_the_mean_and_range_of_seeds_and_the_floor(sweep):
    chart = all_charts(sweep)["loss-by-step"]
    ends = sorted(result["evaluation"]["loss"] for result in sweep[1][4:])
    line = chart.series[2]
    assert (line.name, line.x) == ("lstm-tiny", [2, 4])
    assert line.y[1] == pytest.approx((np.mean(ends), *ends)) and line.y[0].mean == pytest.approx(np.mean(ends) + 2)
    (floor,) = chart.references
    assert floor.name == "exact optimum" and {value.mean for value in floor.y} == {sweep[1][0]["evaluation"]["floor"]}
    assert all_charts(sweep)["accuracy-by-step"].references[0].y[0].mean == 0.5 and chart.y == LOSS
    assert all_charts(sweep)["loss-by-tokens"].series[0].x[-1] == 4096.5


def test_points_carry_what_their_seeds_can_say(sweep):
    results = sweep[1]
    lines, floor = series.by_rate(results, "loss")
    assert lines[1].y[0] == estimates.estimate([at_rate(result, "0.15")["loss"] for result in results[2:4]])
    assert [value.mean for value in floor.y] == [at_rate(results[0], rate)["floor"] for rate in ("0.15", "0.5")]
    assert lines[0].x == [15, 50]
    assert series.by_rate(results[:1], "loss")[0][0].y[0] == (at_rate(results[0], "0.15")["loss"], None, None)
    probe = charts.probe(results, "agreement")
    told = series.probes(results[0])["agreement"]["distance"]
    assert [value.mean for value in probe.references[0].y] == [one["optimum"] for one in told]
    assert probe.series[0].y[0] == pytest.approx((0.91, 0.9, 0.92))  # the lowest and highest seed
    assert probe.series[0].x == ["0", "1\N{EN DASH}3", "≥4"]


def test_a_figure_is_written_in_three_forms_and_again_the_same(sweep, tmp_path):
    found = all_charts(sweep)
    some = [found[name] for name in ("loss-by-step", "recall-by-distance", "gap-matrix", "accuracy-intervals")]
    for chart, folder in itertools.product(some, ("a", "b")):
        figures.draw(tmp_path / folder, chart)
    files = sorted((tmp_path / "a").iterdir())
    assert len(files) == 3 * len(some)
    for file in files:
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name
    with (tmp_path / "a" / "gap-matrix.csv").open() as file:
        cells = {(row["group"], float(row["rate"])): float(row["gap"]) for row in csv.DictReader(file)}
    assert cells["gru-tiny", 50] == pytest.approx(np.mean([at_rate(result, "0.5")["gap"] for result in sweep[1][2:4]]))


def test_the_legend_of_twelve_series_covers_nothing():
    value = estimates.Estimate(1.0, 0.5, 1.5)
    lines = [series.Series(f"a rather long name, number {i}", [1, 2], [value] * 2) for i in range(12)]
    figure, _ = figures.lines(charts.Lines("loss", "step", "", "step", LOSS, lines, []))
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    box = legend.get_window_extent()
    assert not axes.get_tightbbox().overlaps(box)
    assert figure.bbox.contains(*box.min) and figure.bbox.contains(*box.max)
    assert len(legend.get_texts()) == 12


def test_the_page_names_no_other_place_and_escapes_what_it_is_given(written):
    text = written.read_text()
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//|@import|url\((?!#)", text)
    assert "&lt;b&gt;order&lt;/b&gt;" in text and "<script>alert" not in text
    assert "6 of 8 points are in" in re.sub(r"<[^>]*>", "", text)
    for link in re.findall(r'href="([^"#:]+)"', text):
        assert (written.parent / link).exists(), link


def test_data_cannot_end_the_script_that_holds_it():
    held = page.embedded({"a": "</script><!-- & -->"})
    assert not set("<>&") & set(held) and json.loads(held) == {"a": "</script><!-- & -->"}


def test_a_sweep_without_results_has_a_page_too(tmp_path):
    text = page.write(tmp_path, architectures, [], 12).read_text()
    assert "0 of 12" in text and "<table" not in text


def test_a_text_corpus_has_neither_floor_nor_probes(sweep):
    results = copy.deepcopy(sweep[1])
    for result in results:
        result |= {"answers": {}, "history": [], "scores": result["scores"][:len(mlm.SCORES)]}
        for name in ("floor", "floor_se", "gap", "gap_se", "window_floor"):
            del result["evaluation"][name]
    rows, columns = architectures.table(results)
    found = [chart.name for chart in charts.of(results, rows, columns)]
    assert found == ["loss-intervals", "accuracy-intervals"]


def test_where_higher_is_better_the_highest_of_a_column_stands_out(sweep):
    results = copy.deepcopy(sweep[1])
    for place, result in enumerate(results):
        result["scores"] = [score._asdict() for score in SCORES if score.name == "accuracy"]
        at_rate(result, "0.5")["accuracy"] = 0.3 + place // 2 / 10
    (chart,) = charts.heat(results)
    assert [row[1] for row in chart.from_best()] == pytest.approx([0.2, 0.1, 0.0])
    assert chart.behind == "below the highest of"


@pytest.fixture(scope="module")
def chromium():
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium, written):
    """The page in a tab; the test fails if the page logs anything, or asks for another file."""
    said, asked = [], []
    tab = chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(written.as_uri())
    yield tab
    tab.close()
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [written.as_uri()]


def losses(tab):
    column = tab.locator("#runs thead th", has_text="loss").first.evaluate("head => head.cellIndex")
    return [float(text) for text in tab.locator(f"#runs tbody tr > :nth-child({column + 1})").all_inner_texts()]


def test_runs_sort_by_the_numbers_of_a_column(tab):
    assert losses(tab) == sorted(losses(tab))  # the order of the sweep
    button = tab.get_by_role("button", name="loss (nats)")
    button.click()
    button.click()
    head = tab.locator("#runs th[aria-sort]")
    assert head.count() == 1 and head.get_attribute("aria-sort") == "descending"
    assert losses(tab) == sorted(losses(tab), reverse=True)
    tab.get_by_role("button", name="run", exact=True).press("Enter")
    names = tab.locator("#runs tbody th").all_inner_texts()
    assert names == sorted(names) and tab.locator("#runs th[aria-sort]").count() == 1


def test_a_legend_shows_and_hides_its_series_in_all_figures(tab):
    lines = tab.locator("g.series[data-name=gru]")
    count = tab.locator("figure").count()
    assert lines.count() == count > 3
    button = tab.locator("figure").first.get_by_role("button", name="gru")
    button.focus()
    tab.keyboard.press("Enter")
    assert lines.count() == 0 and button.get_attribute("aria-pressed") == "false"
    assert tab.locator("g.series[data-name=lstm]").count() == count
    tab.keyboard.press("Enter")  # the focus stays
    assert lines.count() == count and button.get_attribute("aria-pressed") == "true"


def test_the_crosshair_reads_the_values_at_the_pointer_and_by_keys(tab, sweep):
    first = tab.locator("figure").first
    plot, tip = first.locator("svg.axes"), first.locator(".tip")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    tab.mouse.move(box["x"] + 0.95 * box["width"], box["y"] + 100)
    assert tip.is_visible() and "step: 4" in tip.inner_text()
    last = np.mean([result["evaluation"]["loss"] for result in sweep[1][2:4]])
    row = tip.locator("tr", has_text="gru").inner_text().split()
    assert float(row[1]) == pytest.approx(last, abs=6e-4)
    tab.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 100)
    assert "step: 2" in tip.inner_text() and first.locator(".crosshair .mark").count() == 4
    tab.mouse.move(0, 0)
    assert not tip.is_visible()
    plot.focus()
    tab.keyboard.press("ArrowRight")
    assert "step: 2" in tip.inner_text()
    tab.keyboard.press("Escape")
    assert not tip.is_visible()


def test_a_figure_shows_another_chart_of_its_topic(tab):
    first = tab.locator("figure").first
    first.get_by_role("combobox").select_option(label=f"{GAP} by training tokens")
    assert first.locator("svg.axes text.soft").all_text_contents() == ["training tokens", GAP]
    assert first.locator("g[data-name='exact optimum']").count() == 0
    assert first.get_by_role("link", name="CSV").get_attribute("href") == "figures/gap-by-tokens.csv"


def test_dark_light_and_paper(tab, tmp_path):
    def ground():
        return tab.evaluate("getComputedStyle(document.body).backgroundColor")

    stroke = "getComputedStyle(document.querySelector('g[data-name=window] .line')).stroke"
    light = ground(), tab.evaluate(stroke)
    tab.emulate_media(color_scheme="dark")
    dark = ground(), tab.evaluate(stroke)
    assert light[0] == "rgb(255, 255, 255)" and dark[0] == "rgb(22, 25, 30)" and light[1] != dark[1]
    tab.emulate_media(media="print")
    assert (ground(), tab.evaluate(stroke)) == light
    assert not tab.locator("select").first.is_visible() and tab.locator(".chosen").first.is_visible()
    assert tab.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    wide = "Math.max(...[...document.querySelectorAll('.wide > table')].map(one => one.getBoundingClientRect().right))"
    tab.set_viewport_size({"width": 940, "height": 700})
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate(wide) <= 941


def test_a_small_screen_scrolls_tables_not_the_page(tab):
    tab.set_viewport_size({"width": 390, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
