"""What the page's script draws: the data and the Vega-Lite specs of its figures, and the library itself."""

import functools
from collections.abc import Sequence

from mlm.base import extras
from mlm.base.estimates import Estimate
from mlm.report import charts, figures, specs
from mlm.report.palette import Style

MAX_POINTS = 1500  # of all lines of a chart on the page, whose size it bounds


@functools.cache
def bundle_vega() -> str:
    """Vega-Embed with Vega and Vega-Lite as JavaScript that needs no network."""
    vl_convert = extras.import_extra("vl_convert", "report", "report.html")
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def collect_drawings(all_charts: Sequence[charts.Chart], styles: dict[str, Style]) -> dict[str, dict]:
    """The data of line charts, the figures of each section of the page, and the theme of their specs.

    A figure is a list of charts, of which it shows one; line charts of a topic share a figure. A line chart's spec is
    without data.
    """
    data, sections = {}, {"Intervals": {}, "Figures": {}, "Training by evaluation": {}}
    stems = {panel.name: chart.name for chart in all_charts for panel in charts.list_panels(chart)}
    for chart in all_charts:
        if isinstance(chart, charts.IntervalChart):
            sections["Intervals"][chart.name] = [layout_rows(specs.build_intervals(chart), chart.name, 0)]
        elif isinstance(chart, charts.HeatMap):
            min_width = 150 + 75 * len(chart.matrix.rates)
            sections[chart.topic] = {chart.name: [layout_rows(specs.build_heat_map(chart), chart.name, min_width)]}
        elif isinstance(chart, charts.LineChart) or not chart.is_duplicate:
            panels = [thin_chart(panel) for panel in charts.list_panels(chart)]
            data[chart.name] = specs.read_data(figures.format_csv(panels), panels[0]) | {"name": "points"}
            for panel in panels:
                figure = sections["Figures"].setdefault(panel.topic, [])
                figure.append(layout_lines(panel, styles, stems) | {"data": chart.name})
    return {"data": data, "sections": sections, "theme": specs.THEME}


def layout_rows(spec: dict, stem: str, min_width: int) -> dict:
    """A chart of rows for the page; stem: of its files; min_width: in pixels."""
    size = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return {"spec": spec | size, "files": stem, "min_width": min_width, "axes": []}


def layout_lines(chart: charts.LineChart, styles: dict[str, Style], stems: dict[str, str]) -> dict:
    """A line chart for the page; stems: of the files of panels, by the panel's name."""
    size = {"width": "container", "height": "container", "autosize": {"type": "fit", "contains": "padding"}}
    axes = chart.axes or [charts.Axis(chart.x_name, chart.x, [])]
    files = stems.get(chart.name, chart.name)
    linear = chart._replace(log_x=False, log_y=False)  # the page's script makes it logarithmic
    return {
        "spec": specs.build_lines(linear, styles) | size,
        "log_x": chart.log_x,
        "log_y": chart.log_y,
        "files": files,
        "title": chart.y,
        "y": chart.y_name,
        "bounds": chart.bounds and f"{'Band' if chart.band else 'Bars'}: {chart.bounds}.",
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
