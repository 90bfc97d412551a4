"""The charts of a sweep as Vega-Lite specs, which vl-convert draws as figures and Vega draws on the page.

Colors are CSS variables of the page (`resolve_colors` puts those of paper in their place). A spec has three parameters:
`hidden`, the names of series that are not drawn; `at`, the x value that the crosshair reads; and `shown`, the names of
the series of a small multiple.

Series have eight colors, twelve markers and five kinds of dashes. Any two colors for a background have a distance of at
least 0.12 in OKLab, a perceptually uniform space, both in normal vision and in each kind of color blindness. Each has a
contrast of at least 3 to the background.
"""

import csv
import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.report import charts

LIGHT = ("#1b5bd5", "#e96908", "#17a77f", "#ad3289", "#715b09", "#1a111c", "#9d7fd6", "#69222a")  # on white
DARK = ("#4b6dec", "#f37a22", "#1eb68c", "#d886ed", "#eace4e", "#f7f7d3", "#add8f7", "#be3e5f")  # on DARK_BACKGROUND
DARK_BACKGROUND = "#16191e"
DASHES = ((), (12, 4), (3, 3), (12, 4, 3, 4), (20, 6))  # lengths in pixels: on, off, ...
REFERENCE_DASHES = ((4, 3), (1.5, 2.5), (8, 3, 2, 3), (10, 4))
LABEL_WIDTH = 50  # characters in a line of a title
NUM_MARKERS = 8  # about so many on a curve
MOST = 1e300  # in place of infinity, which JSON lacks
WIDTH, HEIGHT = 260, 200  # CSS pixels of the plot of a figure: with its labels it is readable in a column of 85 mm
PADDING = 8  # pixels that are free above and below the lines of a chart
LABEL_HEIGHT = 14  # pixels between the labels of two lines
PAPER = {"ink": "#000000", "soft": "#444444", "rule": "#dddddd", "ground": "#ffffff", "heat": "#1f5fbf"}
SOFT, GROUND, HEAT = (f"var(--{name})" for name in ("soft", "ground", "heat"))
COLORS = [f"var(--s{index})" for index in range(len(LIGHT))]
SAME_SHAPE = {"field": "series", "legend": None}  # as in the layer of markers
BARE = {"domain": False, "ticks": False}  # an axis of labels alone
NUMBERS = {  # an axis of numbers
    "labelExpr": "datum.label && abs(datum.value) >= 10000 ? format(datum.value, '~s') : datum.label",
    "labelOverlap": True,
    "labelSeparation": 6,
}
PERCENTS = NUMBERS | {"labelExpr": "format(datum.value, '~%')"}  # an axis of shares
_LOOK = json.loads(Path(__file__).with_name("chart_theme.json").read_text(encoding="utf-8"))
MARKERS = _LOOK["markers"]  # SVG paths between -1 and 1
THEME = _LOOK["theme"]  # of a spec; vl-convert brings its first font, and measures it


class Style(NamedTuple):
    """The look of a series; a reference, which is no model, has neither color nor marker."""

    color: int | None  # an index into LIGHT and DARK
    marker: str  # one of MARKERS
    dashes: tuple[float, ...]


def assign_styles(all_charts: Sequence[charts.Chart]) -> dict[str, Style]:
    """The style of each series and reference by its name; the same names in the same order look alike everywhere.

    A series has the style of its place among those of its small multiple, where a chart has these.
    """
    panels = [panel for chart in all_charts for panel in charts.list_panels(chart)]
    names = dict.fromkeys(line.name for chart in panels for line in chart.series)
    references = dict.fromkeys(line.name for chart in panels for line in chart.references)
    places = {name: index for index, name in enumerate(names)}
    for chart in panels:
        places |= {name: index for facet in chart.facets.values() for index, name in enumerate(facet)}
    styles = {
        name: Style(place % len(LIGHT), MARKERS[place % len(MARKERS)], DASHES[place // len(LIGHT) % len(DASHES)])
        for name, place in places.items()
    }
    for index, name in enumerate(references):
        styles[name] = Style(None, "", REFERENCE_DASHES[index % len(REFERENCE_DASHES)])
    return styles


def resolve_colors(spec: dict) -> str:
    """The spec as JSON, with the colors for paper."""
    colors = PAPER | {f"s{index}": color for index, color in enumerate(LIGHT)}
    return re.sub(r"var\(--(\w+)\)", lambda match: colors[match[1]], json.dumps(spec))


def wrap_text(text: str, width: int = LABEL_WIDTH) -> list[str]:
    """The lines of a text."""
    return textwrap.wrap(text, width, break_long_words=False) or [""]


def read_data(text: str, chart: charts.LineChart) -> dict:
    """CSV of `figures.format_csv` as the data of a spec."""
    words = {"series", chart.x_name} if has_classes(chart) else {"series"}
    (names,) = csv.reader(text.splitlines()[:1])
    parse = {name: "string" if name in words else "number" for name in names}
    return {"values": text, "format": {"type": "csv", "parse": parse}}


def has_classes(chart: charts.LineChart) -> bool:
    """Whether x is the name of a class, not a number."""
    return isinstance(chart.series[0].x[0], str)


def make_scale(padding: int, log: bool = False) -> dict:
    """A scale of numbers; padding: pixels that are free at each end; log: it is logarithmic."""
    scale = {"type": "log"} if log else {"zero": False}
    return {"type": "quantitative", "scale": scale | {"nice": False, "padding": padding}}


def make_layer(name: str, mark: dict, encoding: dict, *filters: str) -> dict:
    """A layer of the points that pass the filters."""
    return {"name": name, "transform": [{"filter": test} for test in filters], "mark": mark, "encoding": encoding}


def encode_styles(styles: dict[str, Style]) -> list[dict]:
    """The encodings of a series' color, marker and dashes."""
    ranges = (
        [SOFT if style.color is None else COLORS[style.color] for style in styles.values()],
        [style.marker or "circle" for style in styles.values()],
        [style.dashes or (1, 0) for style in styles.values()],
    )
    return [{"field": "series", "scale": {"domain": list(styles), "range": each}, "legend": None} for each in ranges]


def build_lines(
    chart: charts.LineChart, styles: dict[str, Style], size=("width", "height"), shown: str = "shown", stem: str = ""
) -> dict:
    """The spec of a line chart, without data and theme.

    Args:
        styles: of its series and references.
        size: width and height of the plot, as Vega expressions.
        shown: a Vega expression: the names of the series that are drawn, or null for all. The scales are of all.
        stem: of the names of layers, which are unique in a figure; default: the chart's.
    """
    is_model, is_read, is_shown = "datum.index >= 0", "datum.x === at", "datum.is_shown"
    color, shape, dash = encode_styles(styles)
    x, y = make_scale(8 if chart.band else 20, chart.log_x), make_scale(PADDING, chart.log_y)
    x["axis"] = {"grid": False, "tickCount": 8, **NUMBERS}
    if chart.x_name == "trials":
        x["axis"]["tickMinStep"] = 1
    shift = {}
    if has_classes(chart):  # series with bars stand side by side, so that no bar covers another
        x, shift = {"type": "ordinal", "sort": None, "axis": {"labelAngle": 0}}, {"xOffset": {"expr": "datum.shift"}}
    rule = {"type": "rule"}
    interval = (
        {"type": "area", "opacity": 0.16} if chart.band else {**rule, "strokeWidth": 1.2, "opacity": 0.7, **shift}
    )
    width = {"condition": {"test": is_model, "value": 2}, "value": 1.3}
    marker = {"type": "point", "stroke": GROUND, "strokeWidth": 0.8, "opacity": 1 if shift else 0.85, **shift}
    ends = {"x": {"field": "first", **x}, "x2": {"field": "last"}} if not has_classes(chart) else {"x": None}
    layers = [
        make_layer("constant", {**rule, "strokeWidth": 1.3}, {"x": None, "strokeDash": dash}, "!isValid(datum.x)"),
        make_layer("interval", interval, {"y": {"field": "low", **y}, "y2": {"field": "high"}}, "isValid(datum.low)"),
        make_layer("line", {"type": "line", **shift}, {"strokeDash": dash, "strokeWidth": width}, "isValid(datum.x)"),
        make_layer("marker", marker, {"shape": shape}, is_model, "datum.has_marker"),
        make_layer("crosshair", {**rule, "color": SOFT}, {"y": None, "color": None}, is_read),
        make_layer("reading", {**marker, "size": 130}, {"shape": SAME_SHAPE}, is_read, is_model),
    ]
    for layer in layers:
        layer["transform"].insert(0, {"filter": is_shown})
    label = {"y": {"expr": "datum.place"}}
    text = {"type": "text", "align": "left", "baseline": "middle", "x": {"expr": f"{size[0]} + 16"}, **label}
    mark = {"type": "point", "size": 60, "x": {"expr": f"{size[0]} + 8"}, **label}
    bare, places = {"x": None, "y": None}, place_labels(size[1])
    extent = {"type": "rect", "opacity": 0}
    layers += [
        make_layer("extent", extent, {**ends, "y": {"field": "least", **y}, "y2": {"field": "most"}, "color": None}),
        make_layer("label", text, {**bare, "color": None, "text": {"field": "series"}}),
        make_layer("end", mark, {**bare, "shape": SAME_SHAPE}, is_model),
    ]
    layers[-3]["transform"] = [{"aggregate": aggregate_extent()}]
    for layer in layers[-2:]:
        layer["transform"] = [*places, *layer["transform"]]
    axis = {"tickCount": 7, **(PERCENTS if chart.share else NUMBERS), **BARE}
    return {
        "title": {"text": wrap_text(chart.y)},
        "transform": derive_fields(chart, shown),
        "encoding": {
            "x": {"field": "x", "title": wrap_text(chart.x), **x},
            "y": {"field": "y", "title": None, "axis": axis, **y},
            "color": color,
        },
        "layer": [layer | {"name": f"{layer['name']}_{stem or chart.name}"} for layer in layers],
    }


def aggregate_extent() -> list[dict]:
    """The aggregates of the first and last x of all points, and of their lowest and highest value or bound."""
    ends = (("first", "min", "x"), ("last", "max", "x"), ("least", "min", "lowest"), ("most", "max", "highest"))
    return [{"op": op, "field": field, "as": name} for name, op, field in ends]


def place_labels(height: str) -> list[dict]:
    """The transforms that leave each line's last point, with the height of its label, "place", in pixels.

    A label stands at its line's end, or as little below as leaves LABEL_HEIGHT between labels, and within the plot.
    """

    def level(name):
        return f"(datum.is_log ? log(datum.{name}) : datum.{name})"

    share = f"({level('most')} - {level('y')}) / ({level('most')} - {level('least')})"
    pixel = f"datum.most > datum.least ? {PADDING} + {share} * ({height} - {2 * PADDING}) : {height} / 2"
    order = [{"field": "pixel"}, {"field": "series"}]
    return [
        {"joinaggregate": aggregate_extent()},
        {"filter": "datum.is_shown && datum.number === datum.count"},
        {"calculate": pixel, "as": "pixel"},
        {"window": [{"op": "row_number", "as": "rank"}], "sort": order},
        {"calculate": f"datum.pixel - {LABEL_HEIGHT} * datum.rank", "as": "free"},
        {"window": [{"op": "max", "field": "free", "as": "free"}], "frame": [None, 0], "sort": order},
        {"joinaggregate": [{"op": "count", "as": "labels"}]},
        {
            "calculate": f"min(datum.free + {LABEL_HEIGHT} * datum.rank, "
            f"{height} - {LABEL_HEIGHT} * (datum.labels - datum.rank))",
            "as": "place",
        },
    ]


def derive_fields(chart: charts.LineChart, shown: str) -> list[dict]:
    """The transforms that give points the fields of `build_lines`; shown: as there. The index of a reference is -1."""

    def read(name):
        return f"datum[{json.dumps(name)}]"

    fields = {"x": read(chart.x_name), "y": read(chart.y_name)}
    for end, range_end in (("low", "min"), ("high", "max")):
        value, other = read(f"{chart.y_name}_{range_end}"), read(f"{chart.y_name}_{end}")
        bound = f"isValid({value}) ? {value} : {other}"
        least, most = (json.dumps(max(-MOST, min(limit, MOST))) for limit in chart.limits)
        fields[end] = f"isValid({bound}) ? clamp({bound}, min({least}, datum.y), max({most}, datum.y)) : null"
    plots = [*chart.facets.values()] or [[line.name for line in chart.series]]
    step = min(6, 40 / max(map(len, plots)))  # pixels
    shifts = {name: step * (place - (len(plot) - 1) / 2) for plot in plots for place, name in enumerate(plot)}
    fields["index"] = f"indexof({json.dumps([line.name for line in chart.series])}, datum.series)"
    if has_classes(chart):
        fields["shift"] = f"datum.index < 0 ? 0 : ({json.dumps(shifts)})[datum.series]"
    fields["is_shown"] = f"!isArray({shown}) || datum.index < 0 || indexof({shown}, datum.series) >= 0"
    fields["is_log"] = json.dumps(chart.log_y)
    every = f"max(1, floor(datum.count / {NUM_MARKERS if chart.band else 1000}))"
    counts = [{"op": "row_number", "as": "number"}, {"op": "count", "as": "count"}]
    return [
        *({"calculate": expression, "as": name} for name, expression in fields.items()),
        {"filter": "isValid(datum.y) && indexof(hidden, datum.series) < 0" + " && datum.y > 0" * chart.log_y},
        {"window": counts, "frame": [None, None], "groupby": ["series"]},
        {"calculate": f"(datum.number - 1) % {every} === 0 || datum.number === datum.count", "as": "has_marker"},
        *(
            {"calculate": f"isValid(datum.{bound}) ? {op}(datum.y, datum.{bound}) : datum.y", "as": name}
            for name, op, bound in (("lowest", "min", "low"), ("highest", "max", "high"))
        ),
    ]
