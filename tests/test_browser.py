"""The page of a sweep in a browser: it sorts, hides, reads off, and has room for its tables on screens and paper."""

import copy
import types

import numpy as np
import pages
import pytest

from mlm.report import summary
from mlm.report.table import Column


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    return root, pages.sweep(root)


@pytest.fixture(scope="module")
def written(sweep):
    return pages.alone(*sweep)


def column(tab, title):
    """The cells of the table of runs, below a head."""
    head = tab.locator(".runs th", has_text=title).first
    return head.evaluate("""head => [...head.closest("table").tBodies[0].rows].map(
        row => row.cells[head.cellIndex].innerText.trim())""")


def test_runs_are_sorted_filtered_and_compared_by_keys(tab):
    losses = column(tab, "loss (nats)")
    assert losses == sorted(losses, key=float)  # the order of the sweep
    button = tab.locator(".runs").get_by_role("button", name="loss (nats)", exact=True)
    button.press("Enter")
    button.press("Enter")  # the focus stays
    head = tab.locator(".runs th[aria-sort]")
    assert head.count() == 1 and head.get_attribute("aria-sort") == "descending"
    assert column(tab, "loss (nats)") == losses[::-1]
    tab.get_by_label("Filter").press_sequentially("gru")
    assert {name.partition("-")[0] for name in column(tab, "run")} == {"gru"} and len(column(tab, "run")) == 2
    for words, count in (("seed=1", 3), ("learning_rate>0.0015", 2), ("none", 0)):
        tab.get_by_label("Filter").fill(words)
        assert len(column(tab, "run")) == int(tab.locator(".count").inner_text()[0]) == count, words
    tab.get_by_label("Filter").fill("seed=1")
    tab.get_by_label("compare lstm").press("Space")
    tab.get_by_label("compare gru").press("Space")
    rows = [row.split("\t") for row in tab.locator(".difference tbody tr").all_inner_texts()]
    assert ["optim.learning_rate", "0.002", "0.001"] in rows and not {"seed", "model.size"} & {row[0] for row in rows}
    tab.get_by_text("Columns", exact=True).press("Enter")
    tab.get_by_label("optim.learning_rate").press("Space")
    assert "optim.learning_rate" not in tab.locator(".runs thead").inner_text().replace("\u200b", "")
    lines(tab, "gru").first.dispatch_event("click")
    assert tab.locator(".count").inner_text() == "2 of 6 runs (gru)"


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
    assert not sum(lines(tab, name).count() for name in pages.MEMBERS)
    assert not tab.locator("[class*='role-mark constant_'] line").count()
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
    first.get_by_label("which").select_option(label=pages.LOSS)
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


WITHOUT_SCROLL = """() => [...document.querySelectorAll("table")].filter(({ parentNode: box, offsetWidth }) =>
    offsetWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "auto").map(table => table.innerText)"""
LONG = "masked next token, 30%; causal for the first 50% of steps; 6.25% of examples causal, transformer, micro, A"


@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_of_a_chart_is_cut_or_covers_another(chromium, sweep, tmp_path, width):
    def table(results):
        rows, columns = pages.build_paper_table(results)
        return [rows[0] | {"model": LONG}, *rows[1:]], columns

    page = pages.alone(tmp_path, sweep[1], types.SimpleNamespace(__doc__="Long?", table=table))
    with pages.open_page(chromium, page, viewport={"width": width, "height": 844}) as tab:
        assert tab.locator("svg.marks text").count() > 100 and tab.evaluate(UNREADABLE) == []
        assert tab.evaluate(WITHOUT_SCROLL) == [] and tab.evaluate("document.body.scrollWidth") <= width
        for plot in tab.locator(".root > g > .background").all():
            assert plot.bounding_box()["width"] > 80


def test_a_plot_has_room_for_the_labels_of_many_series(chromium, sweep, tmp_path):
    results = []
    for i in range(60):
        results.append(copy.deepcopy(sweep[1][i % 6]))
        results[-1]["config"]["workdir"] = f"runs/size-model{i}-seed0-012345"

    def table(results):
        name = lambda seeds: {"model": seeds[0]["config"]["workdir"]}
        return summary.build_table(results, [Column("model", "model")], name)

    facet = lambda result: f"part {len(result['config']['workdir']) % 2}"  # 10 and 50 models
    page = pages.alone(tmp_path, results, types.SimpleNamespace(__doc__="Many?", table=table, facet=facet))
    with pages.open_page(chromium, page) as tab:
        plots = tab.locator(".plot.lines .root > g > .background").all()
        assert len(plots) > 6 and all(plot.bounding_box()["height"] > 50 * 14 for plot in plots)
        assert tab.evaluate(UNREADABLE) == []
        labels = {*tab.locator("[class*='role-mark label_'] text").all_text_contents()}
        assert {f"model{i}" for i in range(60)} <= labels and not any("size-" in label for label in labels)
        assert not tab.locator(".legend").is_visible()  # 60 buttons are in a fold


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
