"""The charts of a sweep as figures: for papers and slides, each as PDF, PNG, SVG and CSV, and for its page."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlm.base import extras, files
from mlm.base.estimates import Estimate
from mlm.report import charts, specs, table
from mlm.report.charts import RowChart
from mlm.report.specs import HEIGHT, LABEL_HEIGHT, WIDTH, Style
from mlm.report.table import Column

ENDINGS = ("pdf", "png", "svg", "csv")
MAX_POINTS = 1500  # of all lines of a chart on the page, whose size it bounds


def draw_chart(folder: Path, chart: charts.Chart, styles: dict[str, Style]) -> None:
    """Writes NAME.pdf, NAME.png, NAME.svg and NAME.csv into the folder.

    Each write is atomic. The same chart gives the same files, but for the order of the objects in the PDF. styles: of
    `specs.assign_styles`.
    """
    vl_convert = extras.import_extra("vl_convert", "report", chart.name)
    svg, data = vl_convert.vegalite_to_svg(build_figure(chart, styles)), format_data(chart)
    folder = files.make_path(folder)
    contents = {
        "pdf": vl_convert.svg_to_pdf(svg),
        "png": vl_convert.svg_to_png(svg, scale=2),
        "svg": svg.encode(),
        "csv": data.encode(),
    }
    for ending, content in contents.items():
        with files.atomic_write(folder / f"{chart.name}.{ending}") as temporary:
            temporary.write_bytes(content)


def build_figure(chart: charts.Chart, styles: dict[str, Style]) -> str:
    """The spec of a chart as a figure of its own, as JSON."""
    if isinstance(chart, RowChart):
        spec = chart.spec | {"width": chart.width}
    else:
        spec = build_line_figure(charts.list_panels(chart), styles)
    return specs.resolve_colors(specs.THEME | spec)


def build_line_figure(panels: Sequence[charts.LineChart], styles: dict[str, Style]) -> dict:
    """The spec of line charts of the same series: a plot for each, or for each of its small multiples."""
    shown = [(panel, *facet) for panel in panels for facet in (panels[0].facets or {"": None}).items()]
    num_labels = max(len(names or panel.series) + len(panel.references) for panel, _, names in shown)
    height = max(HEIGHT, LABEL_HEIGHT * num_labels)
    plots = []
    for place, (panel, facet, names) in enumerate(shown):
        plot = specs.build_lines(panel, styles, (f"{WIDTH}", f"{height}"), json.dumps(names), f"{panel.name}_{place}")
        if facet:
            plot["title"]["subtitle"] = facet
        plots.append(plot | {"width": WIDTH, "height": height})
    rows = {"concat": plots, "columns": 1 if len(plots) < 3 else 2}  # for a column of a paper, or for two
    return {"data": specs.read_data(format_csv(panels), panels[0]), "hconcat": [rows]}


def format_data(chart: charts.Chart) -> str:
    """The numbers of a chart as CSV."""
    if not isinstance(chart, RowChart):
        return format_csv(charts.list_panels(chart))
    return table.to_csv(chart.rows, [Column(name, name) for name in chart.rows[0]])


def format_csv(line_charts: Sequence[charts.LineChart]) -> str:
    """CSV of charts of the same series: a row for each point with its x on every axis, or constant reference."""
    rows, names = {}, {"series": ""}
    for chart in line_charts:
        axes = chart.axes or [charts.Axis(chart.x_name, chart.x, [line.x for line in chart.series])]
        points = [
            (line.name, {axis.name: axis.x[index][point] for axis in axes}, value)
            for index, line in enumerate(chart.series)
            for point, value in enumerate(line.y)
        ]
        for line in chart.references:
            places = [{}] if chart.axes else [{chart.x_name: x} for x in line.x]
            points += [(line.name, place, value) for place, value in zip(places, line.y, strict=not chart.axes)]
        for name, place, value in points:
            names |= dict.fromkeys([*place, chart.y_name], "")
            row = rows.setdefault((name, next(iter(place.values()), None)), {"series": name})
            row |= place | {chart.y_name: value}
    return table.to_csv(list(rows.values()), [Column(name, name) for name in names])


@functools.cache
def bundle_vega() -> str:
    """Vega-Embed with Vega and Vega-Lite as JavaScript that needs no network."""
    vl_convert = extras.import_extra("vl_convert", "report", "report.html")
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def collect_drawings(
    all_charts: Sequence[charts.Chart], styles: dict[str, Style], searches: Mapping[str, dict]
) -> dict[str, dict | list]:
    """The data of line charts, the figures of each section of the page, and the theme of their specs.

    A figure is a list of charts, of which it shows one; line charts of a topic share a figure. A line chart's spec is
    without data; its encoding, transforms and layers are numbers of parts, which charts share. searches: the trials of
    each, which the page's script draws.
    """
    trials = {name: [{**search, "axes": [], "min_width": 560}] for name, search in searches.items()}
    data, sections = {}, {"Intervals": {}, "Figures": {}, "Trials": trials, "Training by evaluation": {}}
    stems = {panel.name: chart.name for chart in all_charts for panel in charts.list_panels(chart)}
    parts: dict[str, int] = {}  # numbers by JSON
    for chart in all_charts:
        if isinstance(chart, RowChart):
            spec = chart.spec | {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
            drawn = {"spec": spec, "files": chart.name, "min_width": chart.min_width, "axes": []}
            sections.setdefault(chart.topic, {})[chart.name] = [drawn]
        elif isinstance(chart, charts.LineChart) or not chart.is_duplicate:
            panels = [thin_chart(panel) for panel in charts.list_panels(chart)]
            data[chart.name] = specs.read_data(format_csv(panels), panels[0]) | {"name": "points"}
            for panel in panels:
                figure = sections["Figures"].setdefault(panel.topic, [])
                figure.append(layout_lines(panel, styles, stems, parts) | {"data": chart.name})
    return {"data": data, "sections": sections, "theme": specs.THEME, "parts": [*map(json.loads, parts)]}


def layout_lines(
    chart: charts.LineChart, styles: dict[str, Style], stems: dict[str, str], parts: dict[str, int]
) -> dict:
    """A line chart for the page; stems: of the files of panels, by the panel's name; parts: gets those of the spec."""
    axes = chart.axes or [charts.Axis(chart.x_name, chart.x, [])]
    files = stems.get(chart.name, chart.name)
    linear = chart._replace(log_x=False, log_y=False)  # the page's script makes it logarithmic
    meanings = dict.fromkeys(value.bounds_title for line in chart.series for value in line.y if value.low is not None)
    own_styles = {line.name: styles[line.name] for line in (*chart.series, *chart.references)}
    spec = specs.build_lines(linear, own_styles, stem="page")

    def number(part):
        return parts.setdefault(json.dumps(part), len(parts))

    return {
        "spec": {
            "title": spec["title"],
            "encoding": number(spec["encoding"]),
            "transform": [*map(number, spec["transform"])],
            "layer": [*map(number, spec["layer"])],
        },
        "log_x": chart.log_x,
        "log_y": chart.log_y,
        "files": files,
        "title": chart.y,
        "y": chart.y_name,
        "facets": chart.facets,
        "percent": chart.share,
        "bounds": f"{'Band' if chart.band else 'Bars'}: {' or '.join(meanings)}." if meanings else "",
        "classes": specs.has_classes(chart),
        "axes": [
            {
                "x": axis.name,
                "title": axis.title,
                "lines": specs.wrap_text(axis.title),
                "files": stems.get(f"{chart.y_name}-by-{axis.name}", files),
            }
            for axis in axes
        ],
    }


def thin_chart(chart: charts.LineChart) -> charts.LineChart:
    """The chart with numbers of six digits, and with about MAX_POINTS points, the last of each line among them."""
    max_count = max(10, MAX_POINTS // len(chart.series))

    def thin(values: list) -> list:
        count = len(values)
        return [round_values(values[i]) for i in sorted({*range(0, count, -(-count // max_count)), count - 1})]

    return chart._replace(
        series=[line._replace(x=thin(line.x), y=thin(line.y)) for line in chart.series],
        axes=[axis._replace(x=[thin(x) for x in axis.x]) for axis in chart.axes],
    )


def round_values(value):
    """A number, or those of an estimate, with six digits; a class name as it is."""
    if isinstance(value, Estimate):
        return value._replace(**{name: round_values(number) for name, number in value._asdict().items()})
    return value if value is None or isinstance(value, str) else float(f"{value:.6g}")
