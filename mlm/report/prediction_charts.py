"""The predictions of fine-tuned runs on dev: a confusion matrix of classes, or predicted against true numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mlm.report import series

MAX_CLASSES = 40  # of a matrix that is drawn
TOPIC = "Predictions on dev"
HEAT = "var(--heat)"  # a color of the page


class PredictionChart(NamedTuple):
    """A chart of a group's first run; rows: its data."""

    name: str
    topic: str
    spec: dict[str, Any]
    rows: list[dict[str, Any]]


def build_charts(results: Sequence[dict], group=series.group_name) -> list[PredictionChart]:
    """A chart for each group whose runs were fine-tuned on classes or on numbers."""
    charts = []
    for name, members in series.group_runs(results, group).items():
        content = members[0]
        if 1 < len(content.get("confusion", ())) <= MAX_CLASSES:
            charts.append(build_confusion(name, content))
        elif content.get("points"):
            charts.append(build_scatter(name, content))
    return charts


def build_confusion(name: str, result: Mapping[str, Any]) -> PredictionChart:
    """How often each class was predicted as each, as a share of the true class; the counts stand in the cells."""
    names, rows = [row["class"] for row in result["classes"]], []
    for true, counts in zip(names, result["confusion"], strict=True):
        for predicted, count in zip(names, counts, strict=True):
            rows.append({"true": true, "predicted": predicted, "count": count, "share": count / max(1, sum(counts))})
    axis = {"type": "nominal", "sort": None, "axis": {"domain": False, "ticks": False}}
    shade = {"field": "share", "type": "quantitative", "legend": None, "scale": {"domain": [0, 1], "range": [0, 0.6]}}
    number = {"condition": {"test": "datum.count > 0", "field": "count"}, "value": ""}
    spec = {
        "title": {"text": f"{name}: classes", "subtitle": "examples; darker: a larger share of the true class"},
        "data": {"values": rows},
        "height": {"step": 22},
        "encoding": {"x": {"field": "predicted", **axis}, "y": {"field": "true", **axis}},
        "layer": [
            {"mark": {"type": "rect", "color": HEAT}, "encoding": {"fillOpacity": shade}},
            {"mark": {"type": "text", "fontSize": 10}, "encoding": {"text": number}},
        ],
    }
    return PredictionChart(f"{name}-confusion", TOPIC, spec, rows)


def build_scatter(name: str, result: Mapping[str, Any]) -> PredictionChart:
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
            {"data": line, "mark": {"type": "line", "strokeDash": [4, 4], "color": "var(--soft)"}},
        ],
    }
    return PredictionChart(f"{name}-scatter", TOPIC, spec, rows)
