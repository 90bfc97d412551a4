"""The charts of a sweep as figures for papers and slides, each as PDF, PNG, SVG and CSV."""

from collections.abc import Sequence
from pathlib import Path

from mlm.base import extras, files
from mlm.report import charts, specs, table
from mlm.report.palette import Style
from mlm.report.table import Column

ENDINGS = ("pdf", "png", "svg", "csv")
WIDTH, HEIGHT = 480, 290  # CSS pixels of the plot of a line chart


def draw_chart(folder: Path, chart: charts.Chart, styles: dict[str, Style]) -> Path:
    """Writes NAME.pdf, NAME.png, NAME.svg and NAME.csv into the folder and returns the path of the PNG.

    Each write is atomic. The same chart gives the same files, but for the order of the objects in the PDF. styles: of
    `charts.assign_styles`.
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
    return folder / f"{chart.name}.png"


def build_figure(chart: charts.Chart, styles: dict[str, Style]) -> str:
    """The spec of a chart as a figure of its own, as JSON."""
    if isinstance(chart, charts.HeatMap):
        spec = specs.build_heat_map(chart) | {"width": {"step": 66}}
    elif isinstance(chart, charts.IntervalChart):
        spec = specs.build_intervals(chart) | {"width": WIDTH}
    else:
        panels = charts.list_panels(chart)
        scale = 1 if len(panels) == 1 else 0.6
        size = {"width": scale * WIDTH, "height": scale * HEIGHT}
        plots = [specs.build_lines(panel, styles) | size for panel in panels]
        plot = {"concat": plots, "columns": 2 if len(panels) % 2 == 0 else 3}
        spec = {
            "data": specs.read_data(format_csv(panels), panels[0]),
            "hconcat": [plot if len(panels) > 1 else plots[0], specs.build_legend(panels, styles)],
        }
    return specs.resolve_colors(specs.THEME | spec)


def format_data(chart: charts.Chart) -> str:
    """The numbers of a chart as CSV."""
    if isinstance(chart, charts.HeatMap):
        matrix = chart.matrix
        rows = [
            {"group": group, "rate": 100 * rate, chart.value: value}
            for group, values in zip(matrix.groups, matrix.value_GxR, strict=True)
            for rate, value in zip(matrix.rates, values, strict=True)
        ]
    elif isinstance(chart, charts.IntervalChart):
        rows = [{"row": name, chart.value: value, "paper": paper} for name, value, paper in chart.rows]
    else:
        return format_csv(charts.list_panels(chart))
    return table.to_csv(rows, [Column(name, name) for name in rows[0]])


def format_csv(line_charts: Sequence[charts.LineChart]) -> str:
    """CSV of charts of the same series: a row for each point of a series, with its x value on every axis, and one row
    for a constant reference.
    """
    rows, names = {}, {"series": ""}

    def add(line: str, x_values: dict, chart: charts.LineChart, value) -> None:
        names.update(dict.fromkeys([*x_values, chart.y_name], ""))
        row = rows.setdefault((line, next(iter(x_values.values()), None)), {"series": line})
        row.update(x_values | {chart.y_name: value})

    for chart in line_charts:
        for index, line in enumerate(chart.series):
            axes = chart.axes or [charts.Axis(chart.x_name, chart.x, [line.x for line in chart.series])]
            for point, value in enumerate(line.y):
                add(line.name, {axis.name: axis.x[index][point] for axis in axes}, chart, value)
        for line in chart.references:
            if chart.axes:
                add(line.name, {}, chart, line.y[0])
            for x, value in () if chart.axes else zip(line.x, line.y, strict=True):
                add(line.name, {chart.x_name: x}, chart, value)
    return table.to_csv(list(rows.values()), [Column(name, name) for name in names])
