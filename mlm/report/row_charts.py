"""The charts of named rows: models with intervals, scores by masking rate, and predictions of fine-tuned runs on dev.

Letters in array names: G groups, R masking rates.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlm.base import groups
from mlm.base.estimates import UNBOUNDED, Estimate, Score
from mlm.report import charts, series, specs, summary, table
from mlm.report.charts import RowChart
from mlm.report.specs import BARE, COLORS, GROUND, HEAT, LABEL_HEIGHT, SOFT, make_layer, wrap_text
from mlm.report.table import Column

ROW_LABEL_WIDTH = 26  # characters in a line of a row's name
MAX_CLASSES = 40  # of a matrix of predictions that is drawn
PREDICTIONS = "Predictions on dev"
# A name beside the top of a line stands at the side where the plot has more room.
LINE_SIDE = {"expr": "datum.reference > (domain('x')[0] + domain('x')[1]) / 2 ? 'right' : 'left'"}


def build_charts(results: Sequence[dict], rows: Sequence[dict], columns: Sequence[Column]) -> list[RowChart]:
    """All charts of rows for which the results of a sweep and its table have data."""
    return [
        *build_heat_maps(results),
        *build_interval_charts(results, rows, columns),
        *build_prediction_charts(results),
    ]


def build_row_axis(names: Sequence[str], title: str | None = None) -> dict:
    """The y axis of named rows, whose long names take several lines."""
    label = f"{json.dumps([wrap_text(name, ROW_LABEL_WIDTH) for name in names])}[datum.value]"
    return {"field": "row", "type": "ordinal", "title": title, "axis": {"labelExpr": label, **BARE}}


def build_heat_maps(results: Sequence[dict]) -> list[RowChart]:
    """The primary score by masking rate, in cells that are bluer the further they are from the best of a column."""
    score = series.select_primary_score(results)
    lines = charts.build_rate_chart(results, score).series
    if len(lines) < len(series.group_runs(results)):
        return []
    names, percents = [line.name for line in lines], lines[0].x
    mean_GxR = np.array([[value.mean for value in line.y] for line in lines])
    best_R = np.fmax.reduce(mean_GxR) if score.better > 0 else np.fmin.reduce(mean_GxR)  # of those that are no NaN
    distance_GxR = abs(mean_GxR - best_R).tolist()
    cells, rows = [], []
    for row, (line, distances) in enumerate(zip(lines, distance_GxR, strict=True)):
        for percent, value, distance in zip(percents, line.y, distances, strict=True):
            if math.isnan(value.mean):  # of an old run that diverged
                continue
            texts = {"mean": format(value.mean, score.format), "bounds": table.format_bounds(value, score.format)}
            cells.append({"row": row, "rate": f"{percent:g}", "distance": distance, **texts})
            rows.append({"group": line.name, "rate": percent, score.name: value})
    best = "below the highest" if score.better > 0 else "above the lowest"
    note = f"bluer: further {best} of its column, which is bold"
    x = {"field": "rate", "type": "ordinal", "sort": None, "title": charts.RATE_TITLE}
    depth = {"field": "distance", "type": "quantitative", "legend": None, "scale": {"range": [0, 0.55]}}
    mean = {"type": "text", "fontSize": 12, "dy": -5, "fontWeight": {"expr": "datum.distance ? 'normal' : 'bold'"}}
    spec = {
        "title": {"text": wrap_text(charts.axis_title(score)), "subtitle": wrap_text(note)},
        "data": {"values": cells},
        "height": 34 * len(names),
        "encoding": {"x": x | {"axis": {"labelAngle": 0, **BARE}}, "y": build_row_axis(names, "trained as")},
        "layer": [
            make_layer("cell", {"type": "rect", "color": HEAT}, {"fillOpacity": depth}),
            make_layer("mean", mean, {"text": {"field": "mean"}}),
            make_layer("bounds", {"type": "text", "fontSize": 9, "dy": 8}, {"text": {"field": "bounds"}}),
        ],
    }
    min_width = 150 + 75 * len(percents)
    chart = RowChart(f"{score.name}-matrix", "Training by evaluation", spec, rows, {"step": 66}, min_width)
    return [chart] if cells else []


def build_interval_charts(results: Sequence[dict], rows: Sequence[dict], columns: Sequence[Column]) -> list[RowChart]:
    """Charts of the paper's scores and of those that all runs have, with the excess loss in place of the loss.

    Models stand by score, but rows of changes that add up ("+ ..."), with the row that they start from, in the table's
    order above all others. References that are equal for all examples are lines.
    """
    scores = {score.name: score for score in charts.select_curve_scores(results) if series.is_common(results, score)}
    first, primary = series.collect_scores(results)[0].name, series.select_primary_score(results).name
    selected = scores.keys() if primary == first else scores.keys() - {first}
    names, found, labels = {column.name for column in columns}, [], make_row_labels(rows, columns)
    adds_up = [label.startswith("+") or below.startswith("+") for label, below in itertools.pairwise([*labels, ""])]
    for column in sorted(columns, key=lambda column: column.name != primary):
        name = column.name
        if name in selected or f"{name}_paper" in names:
            better = scores[name].better if name in scores else 0
            placed = []
            for label, is_change, row in zip(labels, adds_up, rows, strict=True):
                estimate = to_estimate(row.get(name))
                if estimate is None or "seeds" not in row:
                    continue
                rank = -better * estimate.mean * (not is_change)
                order = not is_change, row.get(summary.EVALUATION_SET, ""), rank
                placed.append((order, {"row": label, name: estimate, "paper": row.get(f"{name}_paper")}))
            chart_rows = [entry for _, entry in sorted(placed, key=lambda entry: entry[0])]
            if chart_rows:
                spec = draw_intervals(column, chart_rows, scores.get(name), find_constants(rows, labels, name))
                found.append(RowChart(f"{name}-intervals", "Intervals", spec, chart_rows, specs.WIDTH))
    return found


def draw_intervals(
    column: Column, entries: Sequence[Mapping], score: Score | None, references: Mapping[str, float]
) -> dict:
    """The spec of estimates (entries: a chart's rows), with the paper's values beside them, and references as lines."""
    low, high = UNBOUNDED if score is None else charts.find_limits(score)
    names, values, papers = ([entry[name] for entry in entries] for name in ("row", column.name, "paper"))
    rows: list[dict] = []
    for row, (value, paper) in enumerate(zip(values, papers, strict=True)):
        ends = min(low, value.mean), max(high, value.mean)  # to which bounds are cut
        bounds = {end: bound and max(ends[0], min(bound, ends[1])) for end, bound in value._asdict().items()}
        rows.append({"row": row, **bounds, "paper": paper, "text": table.format_cell(value, column.format)})
    lines = sorted(references.items(), key=lambda entry: entry[1])
    levels = [{"reference": value, "name": [name], "level": level} for level, (name, value) in enumerate(lines)]
    meanings = dict.fromkeys(value.bounds_title for value in values if value.low is not None)
    note = ", ".join(["mean", *meanings, *["the paper's value (diamond)"] * any(paper is not None for paper in papers)])
    num_lines = max(len(wrap_text(name, ROW_LABEL_WIDTH)) for name in names)
    ticks = specs.NUMBERS | (
        {"labelExpr": "format(100 * datum.value, '.3~r')"} if column.format.endswith(table.PERCENT) else {}
    )
    x = {"title": None, "axis": {"tickCount": 6, **ticks, **BARE}, **specs.make_scale(10)}
    color, paper_color = COLORS[:2]
    paper = {"type": "point", "shape": "diamond", "size": 110, "stroke": paper_color, "fill": GROUND, "strokeWidth": 2}
    rule = {"type": "rule", "strokeWidth": 3, "color": color}
    text = {"type": "text", "align": "left", "x": {"expr": "width + 12"}}
    low_to_high = {"x": {"field": "low", **x}, "x2": {"field": "high"}}
    at = {"y": None, "x": {"field": "reference", **x}}
    line = {"type": "rule", "color": SOFT, "strokeDash": specs.REFERENCE_DASHES[0]}
    name = {"type": "text", "color": SOFT, "y": {"expr": f"-6 - {LABEL_HEIGHT} * datum.level"}, "align": LINE_SIDE}
    layers = [
        make_layer("reference", line, at),
        make_layer("reference_name", name, at | {"text": {"field": "name"}}),
        make_layer("interval", rule, low_to_high, "isValid(datum.low)"),
        make_layer("mean", {"type": "point", "color": color}, {"x": {"field": "mean", **x}}),
        make_layer("paper", paper, {"x": {"field": "paper", **x}}, "isValid(datum.paper)"),
        make_layer("value", text, {"text": {"field": "text"}}),
    ]
    for layer in layers[:2]:
        layer["data"] = {"values": levels}
    return {
        "title": {"text": wrap_text(column.title), "subtitle": wrap_text(note)},
        "data": {"values": rows},
        "height": (10 + 14 * num_lines) * len(rows),
        "encoding": {"y": build_row_axis(names)},
        "layer": layers if levels else layers[2:],
    }


def find_constants(rows: Sequence[dict], labels: Sequence[str], name: str) -> dict[str, float]:
    """The value in the column `name` of each reference that has it on the examples of every model, by its label."""
    sets = {row.get(summary.EVALUATION_SET) for row in rows if "seeds" in row}
    found: dict[str, dict[str | None, float]] = {}
    for label, row in zip(labels, rows, strict=True):
        estimate = to_estimate(row.get(name))
        if estimate is not None and "seeds" not in row:
            found.setdefault(label, {})[row.get(summary.EVALUATION_SET)] = estimate.mean
    is_constant = {label: values.keys() >= sets and len({*values.values()}) == 1 for label, values in found.items()}
    return {label: next(iter(values.values())) for label, values in found.items() if is_constant[label]}


def make_row_labels(rows: Sequence[dict], columns: Sequence[Column]) -> list[str]:
    """The names of the rows of a table: their columns of text, but for those with a note, which warn of something.

    Rows of one name get the numbers in which they differ, such as the learning rate; those that differ in none keep it.
    """
    names = [column.name for column in columns if not column.format and not column.note]
    labels = [", ".join(str(row[name]) for name in names if row.get(name)) for row in rows]
    for column in columns:
        cells = [row.get(column.name) for row in rows]
        if column.format and not any(isinstance(cell, Estimate) for cell in cells):
            values = groups.group_values(dict.fromkeys(zip(labels, cells, strict=True)))
            ends = [f", {column.title} {table.format_cell(cell, column.format)}" * (cell is not None) for cell in cells]
            labels = [label + end * (len(values[label]) > 1) for label, end in zip(labels, ends, strict=True)]
    return labels


def to_estimate(cell) -> Estimate | None:
    """A cell of a table as an estimate; a plain number has no interval. None for what is no finite number."""
    if cell is None or isinstance(cell, str):
        return None
    estimate = cell if isinstance(cell, Estimate) else Estimate(cell, None, None)
    return estimate if all(number is None or math.isfinite(number) for number in estimate) else None


def build_prediction_charts(results: Sequence[dict]) -> list[RowChart]:
    """A chart for each group whose runs were fine-tuned on classes or on numbers."""
    found = []
    for name, members in series.group_runs(results).items():
        content = members[0]
        if 1 < len(content.get("confusion", ())) <= MAX_CLASSES:
            found.append(build_confusion(name, content))
        elif content.get("points"):
            found.append(build_scatter(name, content))
    return found


def build_confusion(name: str, result: Mapping[str, Any]) -> RowChart:
    """How often each class was predicted as each, as a share of the true class; the counts stand in the cells."""
    names, rows = [row["class"] for row in result["classes"]], []
    for true, counts in zip(names, result["confusion"], strict=True):
        for predicted, count in zip(names, counts, strict=True):
            rows.append({"true": true, "predicted": predicted, "count": count, "share": count / max(1, sum(counts))})
    axis = {"type": "nominal", "sort": None, "axis": {"domain": False, "ticks": False}}
    shade = {"field": "share", "type": "quantitative", "legend": None, "scale": {"domain": [0, 1], "range": [0, 0.6]}}
    number = {"condition": {"test": "datum.count > 0", "field": "count"}, "value": ""}
    spec = {
        "title": {"text": f"{name}: classes", "subtitle": "examples; bluer: a larger share of the true class"},
        "data": {"values": rows},
        "height": {"step": 22},
        "encoding": {"x": {"field": "predicted", **axis}, "y": {"field": "true", **axis}},
        "layer": [
            {"mark": {"type": "rect", "color": HEAT}, "encoding": {"fillOpacity": shade}},
            {"mark": {"type": "text", "fontSize": 10}, "encoding": {"text": number}},
        ],
    }
    return RowChart(f"{name}-confusion", PREDICTIONS, spec, rows, {"step": 40})


def build_scatter(name: str, result: Mapping[str, Any]) -> RowChart:
    """The predicted number of each example against the true one, with the line of equal numbers."""
    rows = [{"true": true, "predicted": predicted} for true, predicted in result["points"]]
    ends = [min(row["true"] for row in rows), max(row["true"] for row in rows)]
    scale = {"type": "quantitative", "scale": {"zero": False}}
    line = {"values": [{"true": end, "predicted": end} for end in ends]}
    spec = {
        "title": {"text": f"{name}: predicted and true numbers", "subtitle": f"{len(rows):,} examples of dev"},
        "data": {"values": rows},
        "height": 260,
        "encoding": {"x": {"field": "true", **scale}, "y": {"field": "predicted", **scale}},
        "layer": [
            {"mark": {"type": "point", "size": 18, "opacity": 0.5, "color": HEAT}},
            {"data": line, "mark": {"type": "line", "strokeDash": [4, 4], "color": SOFT}},
        ],
    }
    return RowChart(f"{name}-scatter", PREDICTIONS, spec, rows, specs.WIDTH)
