"""The page of a sweep in a browser: it sorts, hides, reads off, and has room for its tables on screens and paper."""

import copy
import types

import numpy as np
import pages
import pytest

from mlm.base import estimates
from mlm.report.table import Column


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    return root, pages.sweep(root)


@pytest.fixture(scope="module")
def written(sweep):
    return pages.alone(*sweep)


@pytest.fixture(scope="module")
def chromium():
    with pages.chromium() as browser:
        yield browser


@pytest.fixture
def tab(chromium, written):
    with pages.opened(chromium, written) as tab:
        yield tab


def column(tab, title):
    """The cells of a table of runs, below a head."""
    head = tab.locator("#runs th", has_text=title).first
    return head.evaluate("""head => [...head.closest("table").tBodies[0].rows].map(
        row => row.cells[head.cellIndex].innerText.trim())""")


def test_runs_sort_by_a_column_of_any_of_their_tables(tab):
    losses = column(tab, "loss (nats)")
    assert losses == sorted(losses, key=float)  # the order of the sweep
    button = tab.get_by_role("button", name="loss (nats)")
    button.click()
    button.click()
    head = tab.locator("#runs th[aria-sort]")
    assert head.count() == 1 and head.get_attribute("aria-sort") == "descending"
    assert column(tab, "loss (nats)") == losses[::-1]
    tab.get_by_role("button", name="seconds").click()
    seconds, seeds = column(tab, "seconds"), column(tab, "seed")
    assert head.count() == 1 and seconds == ["8"] * 3 + ["9"] * 3 and seeds == ["0"] * 3 + ["1"] * 3
    tab.get_by_role("button", name="run", exact=True).first.press("Enter")
    for table in tab.locator("#runs table[data-rows]").all():
        names = table.locator("tbody th").all_inner_texts()
        assert names == sorted(names) and len(names) == 6


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
    assert "step: 2" in tip.inner_text() and first.locator(".crosshair .mark").count() == 5  # unigram and optimum too
    tab.mouse.move(0, 0)
    assert not tip.is_visible()
    plot.focus()
    tab.keyboard.press("ArrowRight")
    assert "step: 2" in tip.inner_text()
    tab.keyboard.press("Escape")
    assert not tip.is_visible()


def test_a_figure_shows_another_chart_of_its_topic_along_another_axis(tab):
    first = tab.locator("figure").first
    first.get_by_label("which").select_option(label=pages.GAP)
    first.get_by_label(": by").select_option(label="training tokens")
    assert first.locator("svg.axes text.soft").all_text_contents() == ["training tokens", pages.GAP]
    assert first.locator("g[data-name='Bayes optimum']").count() == 0
    assert first.get_by_role("link", name="CSV").get_attribute("href") == "figures/excess_loss-by-cost.csv"
    first.get_by_label(": by").select_option(label="training FLOPs")
    first.locator("svg.axes").focus()
    tab.keyboard.press("ArrowRight")
    assert "training FLOPs: 500M" in first.locator(".tip").inner_text()


def test_training_has_its_curves(tab):
    figure = tab.locator("figure[data-topic=Training]")
    shown = {"gradient norm": "1.000", "learning rate": "0.000005", "training tokens per second": "500.000"}
    for name, value in shown.items():
        figure.get_by_label("which").select_option(label=name)
        figure.locator("svg.axes").focus()
        tab.keyboard.press("ArrowRight")
        assert figure.locator(".tip tr", has_text="gru").inner_text().split()[1] == value


def test_a_logarithmic_axis_makes_equal_ratios_equal(tab, sweep):
    figure, places, values = tab.locator("figure").first, [], []
    figure.get_by_label("which").select_option(label=pages.GAP)
    figure.get_by_role("button", name="log y").click()
    for place, name in enumerate(pages.MEMBERS):
        marks = figure.locator(f"g[data-name={name}] .mark")
        places += marks.evaluate_all("all => all.map(one => one.transform.baseVal.consolidate().matrix.f)")
        gaps = [result["evaluation"]["excess_loss"] for result in sweep[1][2 * place : 2 * place + 2]]
        values += [np.mean(gaps) + 2, np.mean(gaps)]
    assert figure.get_by_role("button", name="log y").get_attribute("aria-pressed") == "true"
    slope, height = np.polyfit(np.log10(values), places, 1)
    assert slope < 0 and np.abs(slope * np.log10(values) + height - places).max() < 0.2
    for name, at in figure.locator("text.y").evaluate_all(
        "all => all.map(one => [Number(one.textContent), one.getAttribute('y') - 4])"
    ):
        assert slope * np.log10(name) + height == pytest.approx(at, abs=0.2)


def test_what_has_no_logarithm_is_not_drawn_and_no_interval_leaves_the_axes(chromium, sweep, tmp_path):
    results = copy.deepcopy(sweep[1])
    for place, result in enumerate(results):
        result["history"][1]["eval_excess_loss"] = (0.0, -0.1, 0.5, 0.7, 1.0, 2.0)[place]
        for of_rate in result["evaluations"]["mask_rates"].values():
            of_rate["accuracy"] = (0.0, 1.0)[place % 2]
    with pages.opened(chromium, pages.alone(tmp_path, results)) as tab:
        first = tab.locator("figure").first
        first.get_by_label("which").select_option(label=pages.GAP)
        assert first.locator("g[data-name=window] .mark").count() == 2
        first.get_by_role("button", name="log y").click()
        assert first.locator("g[data-name=window] .mark").count() == 1
        assert "NaN" not in first.locator("svg.axes").inner_html()
        for figure in tab.locator("figure").all():
            for choice in range(figure.locator(".chart-select option").count()):
                figure.locator(".chart-select").select_option(index=choice)
                for clicks in range(2):
                    assert figure.evaluate(OUTSIDE) == [], clicks
                    figure.get_by_role("button", name="log y").click()


OUTSIDE = """figure => {
    const clip = figure.querySelector("clipPath rect").getBBox();
    return [...figure.querySelectorAll(".series > :not(.mark)")].map(one => one.getBBox()).filter(box =>
        box.y < clip.y || box.y + box.height > clip.y + clip.height + 0.2
        || box.x < clip.x - 0.2 || box.x + box.width > clip.x + clip.width + 0.2).map(box => box.y);
}"""


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
    assert not tab.locator("select").first.is_visible() and tab.locator(".selection").first.is_visible()
    assert tab.pdf(prefer_css_page_size=True).startswith(b"%PDF")


HIDDEN = """() => [...document.querySelectorAll("main th, main td, header p, header pre, header dd")].filter(one => {
    const box = one.getBoundingClientRect();
    return box.width && (box.left < 0 || box.right > document.documentElement.clientWidth + 0.5);
}).map(one => one.innerText)"""


@pytest.fixture(scope="module")
def wide(sweep, tmp_path_factory):
    """A page whose tables are far too wide: long names, many columns, long texts."""
    results = copy.deepcopy(sweep[1])
    for result in results:
        every = [name for name, value in result["config"].items() if isinstance(value, float)][:16]
        result["config"] |= {name: 0.123456 + result["config"]["seed"] for name in every}
        result["config"] |= {
            "data.path": "/".join(["some_very_long_folder"] * 12) + str(result["config"]["seed"]),
            "workdir": result["config"]["workdir"].replace("tiny", "a-long-name-" * 5 + "x" * 70),
        }
        result["provenance"] = [pages.start(device=f"a device of the kind {result['config']['seed']}")]
    root = tmp_path_factory.mktemp("wide")

    def table(results):
        rows, columns = pages.with_paper(results)
        more = [Column(f"more{i}", f"a title {i}", ".3f") for i in range(20)]
        value = estimates.Estimate(1.5, 1.0, 2.0)
        return [row | {column.name: value for column in more} for row in rows], [*columns, *more]

    said = "Long?\n\n" + "Command    " + "run --with=this " * 30 + "x" * 500
    said += "\nExpected   " + "word  other  " * 12
    return pages.alone(root, results, types.SimpleNamespace(__doc__=said, table=table))


@pytest.mark.parametrize("which", ["written", "wide"])
def test_no_column_is_outside_a_window_of_1280(chromium, request, which):
    with pages.opened(chromium, request.getfixturevalue(which), java_script_enabled=False) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 1280
        assert tab.evaluate(HIDDEN) == []


@pytest.mark.parametrize("which", ["written", "wide"])
@pytest.mark.parametrize("width", [964, 703], ids=["landscape", "portrait"])  # letter and A4 less the margins
def test_nothing_is_cut_on_paper(chromium, request, which, width):
    with pages.opened(chromium, request.getfixturevalue(which), viewport={"width": width, "height": 700}) as tab:
        tab.emulate_media(media="print")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert tab.evaluate(HIDDEN) == []
        fixed = "[...document.querySelectorAll('pre')]"
        assert tab.evaluate(f"{fixed}.every(one => one.scrollWidth <= one.clientWidth + 1)")


@pytest.mark.parametrize("which", ["written", "wide"])
def test_a_small_screen_scrolls_tables_not_the_page(chromium, request, which):
    with pages.opened(chromium, request.getfixturevalue(which), viewport={"width": 375, "height": 800}) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 375
        assert tab.evaluate("""() => [...document.querySelectorAll("main .wide, header pre")].every(wide => {
            wide.scrollLeft = wide.scrollWidth;
            return [...wide.querySelectorAll("tr > :last-child")].every(
                cell => cell.getBoundingClientRect().right <= 375.5);
        })""")
        first = tab.locator(".wide tbody th").first.bounding_box()
        assert first["x"] >= 0 and first["width"] < 375 / 2  # names stay in sight
