"""What the page's script draws: the data and the Vega-Lite specs of its figures, and the library itself."""

import functools
from collections.abc import Sequence

from mlm.base import extras
from mlm.base.estimates import Estimate
from mlm.report import charts, figures, specs
from mlm.report.palette import Style

MAX_POINTS = 200  # of a line on the page


@functools.cache
def bundle_vega() -> str:
    """Vega-Embed with Vega and Vega-Lite as JavaScript that needs no network."""
    vl_convert = extras.import_extra("vl_convert", "report", "report.html")
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def collect_drawings(all_charts: Sequence[charts.Chart], styles: dict[str, Style]) -> dict[str, dict]:
    """The data of charts by the name of their files, and the charts of each figure: those of a topic share one.

    A chart has a spec without data and theme, the name of its data and of its y column there, and its x axes.
    """
    data, drawings, stems = {}, {}, file_stems(all_charts)
    for chart in all_charts:
        if isinstance(chart, charts.HeatMap | charts.IntervalChart):
            build = specs.build_heat_map if isinstance(chart, charts.HeatMap) else specs.build_intervals
            size = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
            drawings[chart.name] = [{"spec": build(chart) | size}]
        for topic, panels in group_by_topic([chart]).items():
            panels = [thin_chart(panel) for panel in panels]
            data[chart.name] = specs.read_data(figures.format_csv(panels), panels[0]) | {"name": "points"}
            drawings.setdefault(topic, []).extend(layout_lines(panel, chart.name, stems, styles) for panel in panels)
    return {"data": data, "drawings": drawings, "theme": specs.THEME}


def layout_lines(chart: charts.LineChart, data: str, stems: dict[str, str], styles: dict[str, Style]) -> dict:
    """A line chart for the page's script."""
    size = {"width": "container", "height": "container", "autosize": {"type": "fit", "contains": "padding"}}
    axes = chart.axes or [charts.Axis(chart.x_name, chart.x, [])]
    return {
        "spec": specs.build_lines(chart, styles) | size,
        "data": data,
        "title": chart.y,
        "y": chart.y_name,
        "bounds": chart.bounds and f"{'Band' if chart.band else 'Bars'}: {chart.bounds}.",
        "classes": specs.has_classes(chart),
        "axes": [
            {
                "x": axis.name,
                "title": specs.wrap_text(axis.title),
                "files": stems.get(f"{chart.y_name}-by-{axis.name}", stems.get(chart.name, chart.name)),
            }
            for axis in axes
        ],
    }


def group_by_topic(all_charts: Sequence[charts.Chart]) -> dict[str, list[charts.LineChart]]:
    """The line charts by topic; those of a topic share a place on the page."""
    topics = {}
    for chart in all_charts:
        panels = chart.charts if isinstance(chart, charts.PanelChart) and not chart.is_duplicate else [chart]
        for panel in panels:
            if isinstance(panel, charts.LineChart):
                topics.setdefault(panel.topic, []).append(panel)
    return topics


def file_stems(all_charts: Sequence[charts.Chart]) -> dict[str, str]:
    """The name of the files of each line chart that is a panel, by the panel's own name."""
    panel_charts = [chart for chart in all_charts if isinstance(chart, charts.PanelChart)]
    return {panel.name: chart.name for chart in panel_charts for panel in chart.charts}


def thin_chart(chart: charts.LineChart) -> charts.LineChart:
    """The chart with numbers of six digits, and with about MAX_POINTS points of a line, the last among them."""

    def thin(values: list) -> list:
        count = len(values)
        return [round_values(values[i]) for i in sorted({*range(0, count, -(-count // MAX_POINTS)), count - 1})]

    return chart._replace(
        series=[line._replace(x=thin(line.x), y=thin(line.y)) for line in chart.series],
        axes=[axis._replace(x=[thin(x) for x in axis.x]) for axis in chart.axes],
    )


def round_values(value):
    """A number, or those of an estimate, with six digits; a class name as it is."""
    if isinstance(value, Estimate):
        return value._replace(**{name: round_values(number) for name, number in value._asdict().items()})
    return value if value is None or isinstance(value, str) else float(f"{value:.6g}")
