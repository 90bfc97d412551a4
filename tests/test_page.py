"""Figures and the page hold the sweep's numbers, can be told apart, and say where they come from."""

import copy
import csv
import html
import itertools
import json
import re

import numpy as np
import pages
import pytest
import vl_convert
from pages import LOSS, get_evaluation, start

from experiments import architectures
from mlm.report import charts, figures, row_charts, specs
from mlm.report.pages import run_provenance
from mlm.report.pages import sweep as page


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    return root, pages.sweep(root)


@pytest.fixture(scope="module")
def written(sweep):
    return page.write_report(*sweep[:1], pages.EXPERIMENT, sweep[1], 8)


def all_charts(sweep):
    rows, columns = pages.build_paper_table(sweep[1])
    drawn = [*charts.build_charts(sweep[1]), *row_charts.build_charts(sweep[1], rows, columns)]
    return {chart.name: chart for chart in drawn}


def test_charts_share_equal_parts(sweep):
    drawn = [*all_charts(sweep).values()]
    drawings = figures.collect_drawings(drawn, specs.assign_styles(drawn), {})
    own = [chart["spec"] for topic in drawings["sections"]["Figures"].values() for chart in topic]
    numbers = [number for spec in own for number in (spec["encoding"], *spec["transform"], *spec["layer"])]
    parts = [json.dumps(part) for part in drawings["parts"]]
    assert {*numbers} == {*range(len(parts))} and len({*parts}) == len(parts) < len(numbers) / 3


def test_curves_hold_the_mean_and_range_of_seeds_and_the_floor(sweep):
    chart = all_charts(sweep)["loss-by-step"]
    ends = sorted(result["evaluation"]["loss"] for result in sweep[1][4:])
    line = chart.series[2]
    assert (line.name, line.x) == ("lstm-tiny", [2, 4])
    assert line.y[1] == pytest.approx((np.mean(ends), *ends)) and line.y[0].mean == pytest.approx(np.mean(ends) + 2)
    floor, unigram = chart.references
    assert unigram.name == "unigram" and floor.name == "Bayes optimum"
    assert {value.mean for value in floor.y} == {sweep[1][0]["evaluation"]["floor"]}
    assert all_charts(sweep)["accuracy-by-step"].references[0].y[0].mean == 0.5 and chart.y == LOSS


def list_labels(chart):
    """The labels of what a figure draws, by the name of its layer."""
    svg = vl_convert.vegalite_to_svg(figures.build_figure(chart, specs.assign_styles([chart])))
    _, *parts = re.split(r'role-mark (\w+)_marks"', svg)
    labels = {}
    for name, content in zip(parts[::2], parts[1::2], strict=True):
        labels.setdefault(name.partition("_")[0], []).extend(re.findall('<(?:path|line) aria-label="([^"]*)"', content))
    return labels, svg


def test_a_long_name_beside_a_chart_breaks_between_words_alone():
    name = "transformer, tiny, texts/tinyshakespeare/*.txt, warm-up 0.2"
    lines = specs.wrap_text(name, row_charts.ROW_LABEL_WIDTH)
    assert len(lines) > 1 and " ".join(lines) == name


def test_a_figure_draws_its_references_and_every_series_with_its_interval(sweep):
    labels, svg = list_labels(all_charts(sweep)["loss-by-step"])
    names = [f"{member}-tiny" for member in pages.MEMBERS]
    for kind in ("interval", "line"):
        assert [label.rpartition("series: ")[2] for label in labels[kind]] == names
    assert len(labels["marker"]) == 6
    assert len(re.findall("<line", svg.partition("constant_")[2].partition("</g>")[0])) == 2
    training, _ = list_labels(all_charts(sweep)["training"])
    firsts = [label for label in training["line"] if "gru-tiny" in label]
    assert [float(label.split("; ")[1].removeprefix("y: ")) for label in firsts] == [5, 1, 5e-6, 500]  # a panel each
    labels, _ = list_labels(all_charts(sweep)["agreement-by-distance"])
    assert [label.rpartition("series: ")[2] for label in labels["line"]] == [*names, "Bayes optimum", "chance"]


def read_labels(svg):
    content = svg.partition("role-mark label_")[2].partition("</g>")[0]
    return {text: float(y) for y, text in re.findall(r'translate\([-\d.]+,([-\d.]+)\)"[^>]*>([^<]*)</text>', content)}


def test_each_line_has_a_label_at_its_end_and_none_covers_another(sweep):
    for name in ("excess_loss-by-step", "accuracy-by-step", "agreement-by-distance"):
        chart = all_charts(sweep)[name]
        labels = read_labels(list_labels(chart)[1])
        drawn = [line.name for line in (*chart.series, *chart.references) if not chart.log_y or line.y[-1].mean > 0]
        assert sorted(labels) == sorted(drawn)
        heights = sorted(labels.values())
        assert min(np.diff(heights)) > 13.9 and heights[0] >= 0 and heights[-1] <= figures.HEIGHT + 4  # of baselines
        ends = sorted(chart.series, key=lambda line: -line.y[-1].mean)
        assert chart.share or [labels[line.name] for line in ends] == sorted(labels[line.name] for line in ends)


def test_more_than_seven_series_are_small_multiples_with_one_scale(sweep):
    groups = {f"{cell}-{size}": index for index, (size, cell) in enumerate(itertools.product("ab", "wxyz"))}
    runs = [
        run | {"config": run["config"] | {"model.size": name[-1], "workdir": f"{name}-seed{seed}"}}
        for (name, index), seed in itertools.product(groups.items(), (0, 1))
        for run in [sweep[1][(2 * index + seed) % 6]]
    ]
    facets = charts.find_facets(runs, lambda run: run["config"]["model.size"])
    assert facets == {size: [name for name in groups if name[-1] == size] for size in "ab"}
    chart = charts.split_chart(charts.build_charts(runs)[0], facets)
    styles = specs.assign_styles([chart])
    assert styles["w-a"] == styles["w-b"] and len({style.color for style in styles.values()}) == 5  # None: references
    svg = vl_convert.vegalite_to_svg(figures.build_figure(chart, styles))
    assert len({*(ticks := re.findall(r"Y-axis[^\"]*with values from ([^\"]*)", svg))}) == 1 and len(ticks) == 2
    for names, part in zip(facets.values(), svg.split("role-mark label_")[1:], strict=True):
        assert {*re.findall(r">([wxyz]-[ab])<", part.partition("</g>")[0])} == {*names}


def test_the_page_says_what_all_runs_come_from_in_one_line(sweep, written):
    text = plain(written.read_text())
    line = "commit 0123456, changed files none, device AMD EPYC, Python 3.11.7, jax 0.10.2, flax 0.12.8"
    assert f"Of all runs: {line}." in text
    assert "differ in what made them" not in text and "2026-11-22 03:06" in text and "2026-11-22 04:10" in text


def plain(text):
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split()).replace(" .", ".").replace(" ,", ",")


@pytest.mark.parametrize(
    ("name", "other", "said"),
    [("commit", start(commit="fedcba9876543210"), "fedcba9 (1 run: gru)"), ("commit", None, "not known (1 run: gru)")],
    ids=["commit", "nothing is known"],
)
def test_a_table_of_runs_that_something_else_made_says_so_above_it(sweep, name, other, said):
    results = copy.deepcopy(sweep[1])
    results[3]["provenance"] = [other] if other else []
    text = pages.html(results)
    before, _, after = plain(text).partition("Is it better?")
    assert f"Not all runs have the same {name}" in before and f"{name} 0123456 (5 runs) {said}" in after
    assert f" {name} " not in after.partition("Of all runs")[2].partition(".")[0]
    columns = json.loads(re.search(r'id="run-columns">(.*?)</script>', text, re.DOTALL)[1])
    odd = [column for column in columns if column[2] == "provenance" and column[3][3] != column[5] and column[5]]
    assert len(odd) == (6 if other is None else 1) and all(column[3][0] == column[5] for column in odd)


def test_a_continued_run_is_by_all_whose_steps_it_kept():
    lost, first, second = (start(step=step, commit=letter * 40) for step, letter in ((0, "a"), (0, "b"), (3, "c")))
    assert run_provenance.describe_run([lost, first, second])["commit"] == "bbbbbbb, then ccccccc"
    assert run_provenance.describe_run([lost, first])["commit"] == "bbbbbbb"
    assert run_provenance.describe_run([start(commit=None, changed_files=None)])["commit"] == run_provenance.UNKNOWN


def test_a_figure_is_written_in_four_forms_and_again_the_same(sweep, tmp_path):
    found = all_charts(sweep)
    some = [found[name] for name in ("loss-by-step", "recall-by-distance", "excess_loss-matrix", "accuracy-intervals")]
    for chart, folder in itertools.product(some, ("a", "b")):
        figures.draw_chart(tmp_path / folder, chart, specs.assign_styles(found.values()))
    files = sorted((tmp_path / "a").iterdir())
    assert len(files) == 4 * len(some)
    for file in files:
        if file.suffix == ".pdf":  # its objects have any order
            continue
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name
    with (tmp_path / "a" / "excess_loss-matrix.csv").open() as file:
        cells = {(row["group"], float(row["rate"])): float(row["excess_loss"]) for row in csv.DictReader(file)}
    assert cells["gru-tiny", 50] == pytest.approx(
        np.mean([get_evaluation(result, "0.5")["excess_loss"] for result in sweep[1][2:4]])
    )


def test_the_page_names_no_other_place_and_escapes_what_it_is_given(written):
    text = written.read_text().replace(figures.bundle_vega(), "")
    assert len(text) < 200_000
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//|@import|url\((?!#)", text)
    assert "&lt;b&gt;order&lt;/b&gt;" in text and "<script>alert" not in text
    assert "6 of 8 points are finished" in re.sub(r"<[^>]*>", "", text)
    for link in re.findall(r'href="([^"#:]+)"', text):
        assert (written.parent / link).exists(), link


def test_data_cannot_end_the_script_that_holds_it(tmp_path):
    (experiment := copy.copy(pages.EXPERIMENT)).group = lambda result: "</script><!-- & -->"
    text = page.render_page("a", experiment, page.Findings(), pages.sweep(tmp_path), 8)
    (held,) = re.findall(r'id="run-columns">(.*)</script>', text)
    assert not set("<>&") & set(held) and "</script><!-- & -->" in json.loads(held)[1][3]


def test_a_sweep_without_results_has_a_page_too(tmp_path):
    text = page.write_report(tmp_path, architectures, [], 12).read_text()
    assert "0 of 12" in text and "<table" not in text
