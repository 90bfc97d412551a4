"""The page of a sweep in a browser: it sorts, hides, reads off, and has room for its tables on screens and paper."""

import copy
import types

import numpy as np
import pages
import pytest
import vl_convert

from mlm.base import estimates
from mlm.report import charts, figures
from mlm.report.series import Series
from mlm.report.table import Column


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    return root, pages.sweep(root)


@pytest.fixture(scope="module")
def written(sweep):
    return pages.alone(*sweep)


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


def lines(place, name):
    """The lines of a series that are drawn."""
    return place.locator(f"[class*='role-mark line_'] path[aria-label$='series: {name}']")


def markers(place, name):
    return place.locator(f"[class*='role-mark marker_'] path[aria-label*='series: {name}']")


def places(found):
    """The x and y of some markers, in pixels of their plot."""
    return np.array(
        found.evaluate_all("all => all.map(one => one.transform.baseVal.consolidate().matrix).map(m => [m.e, m.f])")
    )


def figure(tab, name):
    return tab.locator(f"figure[data-drawing='{name}']")


def test_the_legend_shows_and_hides_a_series_in_all_figures(tab):
    count = tab.locator("figure .head").count()
    assert lines(tab, "gru").count() == count > 3
    button = tab.get_by_role("button", name="gru", exact=True)
    button.focus()
    tab.keyboard.press("Enter")
    assert lines(tab, "gru").count() == 0 and button.get_attribute("aria-pressed") == "false"
    assert lines(tab, "lstm").count() == count
    tab.keyboard.press("Enter")  # the focus stays
    assert lines(tab, "gru").count() == count and button.get_attribute("aria-pressed") == "true"
    every = tab.get_by_role("button", name="all / none")
    every.click()
    assert (
        not sum(lines(tab, name).count() for name in pages.MEMBERS)
        and not tab.locator("[class*='role-mark constant_'] line").count()
    )
    every.click()
    assert lines(tab, "gru").count() == count


def test_a_chart_draws_the_values_of_its_data(tab, sweep):
    first = tab.locator("figure:has(.head)").first
    first.get_by_label("which").select_option(label=pages.LOSS)
    drawn, values = [], []
    for place, name in enumerate(pages.MEMBERS):
        losses = [result["evaluation"]["loss"] for result in sweep[1][2 * place : 2 * place + 2]]
        values += [np.mean(losses) + 2, np.mean(losses)]
        drawn += [*places(markers(first, name))[:, 1]]
        label = first.locator(f"[class*='role-mark interval_'] path[aria-label$='series: {name}']").get_attribute(
            "aria-label"
        )
        low, high = (float(part.split(": ")[1]) for part in label.split("; ")[1:3])
        assert (low, high) == pytest.approx((min(losses) + 2, max(losses) + 2), rel=1e-5)
    slope, height = np.polyfit(values, drawn, 1)
    assert slope < 0 and np.abs(slope * np.array(values) + height - drawn).max() < 0.2
    constants = places(first.locator("[class*='role-mark constant_'] line"))[:, 1]
    assert sorted(constants) == pytest.approx([slope * 4.8 + height, slope * 2.15 + height], abs=0.2)


def test_the_crosshair_reads_the_values_at_the_pointer_and_by_keys(tab, sweep):
    first = tab.locator("figure:has(.head)").first
    plot, tip = first.locator(".plot"), first.locator(".tip")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    tab.mouse.move(box["x"] + 0.95 * box["width"], box["y"] + 100)
    assert tip.is_visible() and "step: 4" in tip.inner_text()
    last = np.mean([result["evaluation"]["loss"] for result in sweep[1][2:4]])
    row = tip.locator("tr", has_text="gru").inner_text().split()
    assert float(row[1]) == pytest.approx(last, abs=6e-4)
    tab.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 100)
    assert "step: 2" in tip.inner_text() and first.locator("[class*='role-mark reading_'] path").count() == 3
    assert tip.locator("tr").count() == 5  # unigram and optimum too
    tab.mouse.move(0, 0)
    assert not tip.is_visible()
    plot.focus()
    tab.keyboard.press("ArrowRight")
    assert "step: 2" in tip.inner_text() and first.locator("[class*='role-mark crosshair_'] line").count() == 3
    tab.keyboard.press("Escape")
    assert not tip.is_visible() and first.locator("[class*='role-mark crosshair_'] line").count() == 0
    classes = figure(tab, "Agreement")
    classes.locator(".plot").focus()
    tab.keyboard.press("ArrowLeft")
    assert "words between subject and verb: ≥4" in classes.locator(".tip").inner_text()
    assert "lstm-tiny" not in classes.locator(".tip").inner_text() and classes.locator(".tip tr").count() == 5


def test_a_figure_shows_another_chart_of_its_topic_along_another_axis(tab):
    first = tab.locator("figure:has(.head)").first
    first.get_by_label("which").select_option(label=pages.GAP)
    first.get_by_label(": by").select_option(label="training tokens")
    assert first.locator(".role-axis-title").all_text_contents() == ["training tokens"]
    assert "".join(first.locator(".role-title-text").all_text_contents()).replace(" ", "") == pages.GAP.replace(" ", "")
    assert first.locator("[class*='role-mark constant_'] line").count() == 0
    assert first.get_by_role("link", name="CSV").get_attribute("href") == "figures/excess_loss-by-cost.csv"
    first.get_by_label(": by").select_option(label="training FLOPs")
    first.locator(".plot").focus()
    tab.keyboard.press("ArrowRight")
    assert "training FLOPs: 500M" in first.locator(".tip").inner_text()


def test_training_has_its_curves(tab):
    training = figure(tab, "Training")
    shown = {"gradient norm": "1", "learning rate": "0.000005", "training tokens per second": "500"}
    for name, value in shown.items():
        training.get_by_label("which").select_option(label=name)
        training.locator(".plot").focus()
        tab.keyboard.press("ArrowRight")
        assert training.locator(".tip tr", has_text="gru").inner_text().split()[1] == value


def test_a_logarithmic_axis_makes_equal_ratios_equal(tab, sweep):
    first, drawn, values = tab.locator("figure:has(.head)").first, [], []
    first.get_by_label("which").select_option(label=pages.GAP)  # whose axis is logarithmic from the start
    for place, name in enumerate(pages.MEMBERS):
        drawn += [*places(markers(first, name))[:, 1]]
        gaps = [result["evaluation"]["excess_loss"] for result in sweep[1][2 * place : 2 * place + 2]]
        values += [np.mean(gaps) + 2, np.mean(gaps)]
    assert first.get_by_role("button", name="log y").get_attribute("aria-pressed") == "true"
    slope, height = np.polyfit(np.log10(values), drawn, 1)
    assert slope < 0 and np.abs(slope * np.log10(values) + height - drawn).max() < 0.2


def test_what_has_no_logarithm_is_not_drawn_and_no_interval_leaves_the_axes(chromium, sweep, tmp_path):
    results = copy.deepcopy(sweep[1])
    for place, result in enumerate(results):
        result["history"][1]["eval_excess_loss"] = (0.0, -0.1, 0.5, 0.7, 1.0, 2.0)[place]
        for of_rate in result["evaluations"]["mask_rates"].values():
            of_rate["accuracy"] = (0.0, 1.0)[place % 2]
    with pages.open_page(chromium, pages.alone(tmp_path, results)) as tab:
        first = tab.locator("figure:has(.head)").first
        first.get_by_label("which").select_option(label=pages.GAP)
        assert markers(first, "window").count() == 2
        first.get_by_role("button", name="log y").click()
        assert markers(first, "window").count() == 1 and markers(first, "gru").count() == 2
        for one in tab.locator("figure:has(.head)").all():
            for choice in range(one.locator(".chart-select option").count()):
                one.locator(".chart-select").select_option(index=choice)
                for clicks in range(2):
                    assert one.evaluate(OUTSIDE) == [], clicks
                    assert "NaN" not in one.locator("svg.marks").inner_html()
                    one.get_by_role("button", name="log y").click()


OUTSIDE = """figure => {
    const plot = figure.querySelector(".root .background").getBoundingClientRect();
    const drawn = "[class*='role-mark interval_'] *, [class*='role-mark line_'] path, [class*='role-mark constant_'] line";
    return [...figure.querySelectorAll(drawn)].map(one => one.getBoundingClientRect()).filter(box =>
        box.top < plot.top - 1.5 || box.bottom > plot.bottom + 1.5 || box.left < plot.left - 1.5
        || box.right > plot.right + 1.5).map(box => box.y);
}"""
# Texts of a drawing that are cut off, and pairs that cover each other.
UNREADABLE = """() => [...document.querySelectorAll("svg.marks")].flatMap(svg => {
    const frame = svg.getBoundingClientRect(), found = [];
    const texts = [...svg.querySelectorAll("text:not([opacity='0'])")].map(text => [text.textContent, text.getBoundingClientRect()])
        .filter(([text, box]) => text && box.width);
    texts.forEach(([text, box], i) => {
        if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 2
            || box.bottom > frame.bottom + 2) found.push(text);
        for (const [other, next] of texts.slice(0, i)) {
            if (box.left < next.right && next.left < box.right && box.top + 3 < next.bottom && next.top + 3 < box.bottom)
                found.push(`${other} | ${text}`);
        }
    });
    return found;
})"""


LONG = "masked, 30%, told by the state before; causal for the first 50% of the steps, transformer, micro, A"


@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_of_a_chart_is_cut_or_covers_another(chromium, sweep, tmp_path, width):
    def table(results):
        rows, columns = pages.build_paper_table(results)
        return [rows[0] | {"model": LONG}, *rows[1:]], columns

    page = pages.alone(tmp_path, sweep[1], types.SimpleNamespace(__doc__="Long?", table=table))
    with pages.open_page(chromium, page, viewport={"width": width, "height": 844}) as tab:
        assert tab.locator("svg.marks text").count() > 100 and tab.evaluate(UNREADABLE) == []
        for plot in tab.locator(".root > g > .background").all():
            assert plot.bounding_box()["width"] > 80


def test_labels_of_figures_for_papers_are_whole_and_apart(chromium, sweep):
    value = estimates.Estimate(1.0, 0.5, 1.5)
    lines = [Series(f"a rather long name, number {i}", [1, 2], [value] * 2) for i in range(12)]
    found = [
        *charts.build_charts(sweep[1], *pages.build_paper_table(sweep[1])),
        charts.IntervalChart("long", "loss", ".3f", [(LONG, value, None)] * 4),
        charts.IntervalChart("nameless", "loss", ".3f", [("", value, None)]),
        charts.LineChart("twelve", "step", "", "step", pages.LOSS, lines, []),
    ]
    spec = {chart.name: figures.build_figure(chart, charts.assign_styles(found)) for chart in found}
    tab = chromium.new_page()
    for chart, content in spec.items():
        tab.set_content(vl_convert.vegalite_to_svg(content))
        tab.evaluate("document.querySelector('svg').classList.add('marks')")
        assert tab.evaluate(UNREADABLE) == [], chart
    tab.close()


def test_dark_light_and_paper(tab, tmp_path):
    def ground():
        return tab.evaluate("getComputedStyle(document.body).backgroundColor")

    stroke = (
        "getComputedStyle(document.querySelector(\"[class*='role-mark line_'] [aria-label$='series: window']\")).stroke"
    )
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
        rows, columns = pages.build_paper_table(results)
        more = [Column(f"more{i}", f"a title {i}", ".3f") for i in range(20)]
        value = estimates.Estimate(1.5, 1.0, 2.0)
        return [row | {column.name: value for column in more} for row in rows], [*columns, *more]

    said = "Long?\n\n" + "Command    " + "run --with=this " * 30 + "x" * 500
    said += "\nExpected   " + "word  other  " * 12
    return pages.alone(root, results, types.SimpleNamespace(__doc__=said, table=table))


@pytest.mark.parametrize("which", ["written", "wide"])
def test_no_column_is_outside_a_window_of_1280(chromium, request, which):
    with pages.open_page(chromium, request.getfixturevalue(which), java_script_enabled=False) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 1280
        assert tab.evaluate(HIDDEN) == []


@pytest.mark.parametrize("which", ["written", "wide"])
@pytest.mark.parametrize("width", [964, 703], ids=["landscape", "portrait"])  # letter and A4 less the margins
def test_nothing_is_cut_on_paper(chromium, request, which, width):
    with pages.open_page(chromium, request.getfixturevalue(which), viewport={"width": width, "height": 700}) as tab:
        tab.emulate_media(media="print")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert tab.evaluate(HIDDEN) == []
        fixed = "[...document.querySelectorAll('pre')]"
        assert tab.evaluate(f"{fixed}.every(one => one.scrollWidth <= one.clientWidth + 1)")


@pytest.mark.parametrize("which", ["written", "wide"])
def test_a_small_screen_scrolls_tables_not_the_page(chromium, request, which):
    with pages.open_page(chromium, request.getfixturevalue(which), viewport={"width": 375, "height": 800}) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 375
        assert tab.evaluate("""() => [...document.querySelectorAll("main .wide, header pre")].every(wide => {
            wide.scrollLeft = wide.scrollWidth;
            return [...wide.querySelectorAll("tr > :last-child")].every(
                cell => cell.getBoundingClientRect().right <= 375.5);
        })""")
        first = tab.locator(".wide tbody th").first.bounding_box()
        assert first["x"] >= 0 and first["width"] < 375 / 2  # names stay in sight
