"""The charts of a sweep as figures for papers and slides, each as PNG, SVG and CSV."""

import textwrap
from pathlib import Path

from mlm.base import extras, files
from mlm.report import charts, table
from mlm.report.palette import DASHES, LIGHT, MARKERS, select_style
from mlm.report.series import Series
from mlm.report.table import Column

REFERENCE_DASHES = ((1, 1.2), (8, 4))  # of the floor, and of chance
LABEL_WIDTH = 40  # characters in a line of an axis label
MAX_BANDS = 6  # more overlapping bands are unreadable; the CSV has them


def draw_chart(
    folder: Path, chart: charts.LineChart | charts.PanelChart | charts.HeatMap | charts.IntervalChart
) -> Path:
    """Writes NAME.png, NAME.svg and NAME.csv into the folder and returns the path of the PNG.

    Each write is atomic. The same chart gives the same files.
    """
    matplotlib = extras.import_extra("matplotlib", "report", chart.name)
    figure, data = {
        charts.LineChart: draw_lines,
        charts.PanelChart: draw_panels,
        charts.HeatMap: draw_heat_map,
        charts.IntervalChart: draw_intervals,
    }[type(chart)](chart)
    folder = files.make_path(folder)
    with matplotlib.rc_context({"svg.hashsalt": "mlm"}):
        for ending, save in (
            ("svg", lambda path: figure.savefig(path, metadata={"Date": None})),
            ("png", lambda path: figure.savefig(path, dpi=160)),
        ):
            with files.atomic_write(folder / f"{chart.name}.{ending}") as temporary:
                save(temporary)
    files.write_text(folder / f"{chart.name}.csv", data)
    return folder / f"{chart.name}.png"


def create_axes(width: float = 7.5, height: float = 4.5, num_rows: int = 1, num_columns: int = 1):
    """A figure and its axes, in rows; it needs no pyplot state and no screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(num_rows, num_columns, squeeze=False)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
    return figure, axes


def draw_lines(chart: charts.LineChart):
    """A figure of one line chart, and its numbers as CSV."""
    figure, ((axes,),) = create_axes()
    draw_panel(axes, chart)
    draw_legend(figure, axes)
    return figure, format_csv([chart])


def draw_panels(chart: charts.PanelChart):
    """A figure of several line charts with one legend, and their numbers as CSV."""
    num_columns = 2 if len(chart.charts) % 2 == 0 else len(chart.charts)
    num_rows = -(-len(chart.charts) // num_columns)
    figure, axes = create_axes(1.5 + 3.6 * num_columns, 3.2 * num_rows, num_rows, num_columns)
    for panel, panel_chart in zip(axes.flat, chart.charts, strict=True):
        draw_panel(panel, panel_chart)
    if chart.is_duplicate:  # all have the same y
        for panel in axes.flat[1:]:
            panel.set_ylabel("")
    draw_legend(figure, axes[0, 0])
    return figure, format_csv(chart.charts)


def draw_panel(axes, chart: charts.LineChart) -> None:
    """Draws a line chart into axes, with its references."""
    axes.set(xlabel=chart.x, ylabel="\n".join(textwrap.wrap(chart.y, LABEL_WIDTH)))
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    classes = next((line.x for line in chart.series if isinstance(line.x[0], str)), None)
    for index, line in enumerate(chart.series):
        x = range(len(classes)) if classes else line.x
        if not chart.band:  # side by side, so that no bar covers another
            shift = ((index + 0.5) / len(chart.series) - 0.5) * (0.4 if classes else 0.04 * (x[-1] - x[0]))
            line = line._replace(x=[value + shift for value in x])
        plot_series(axes, line, index, chart.band, len(chart.series) <= MAX_BANDS)
    for reference, dashes in zip(chart.references, REFERENCE_DASHES, strict=False):
        axes.plot(
            range(len(classes)) if classes else reference.x,
            mean_values(reference),
            label=reference.name,
            color="black",
            linewidth=1,
            linestyle=(0, dashes),
        )
    if chart.share:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -0.02), min(high, 1.02))
    from matplotlib.ticker import EngFormatter

    if classes:
        axes.set_xticks(range(len(classes)), classes)
    else:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if axes.get_ylim()[1] > 10_000:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def format_csv(line_charts: list[charts.LineChart]) -> str:
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


def plot_series(axes, line: Series, index: int, has_band: bool, is_shaded: bool) -> None:
    """Draws a line with the colour, marker and dashes of its number, and its interval as a band or as bars."""
    style = select_style(index)
    options = {
        "label": line.name,
        "color": LIGHT[style.color],
        "marker": MARKERS[style.marker],
        "linewidth": 1.5,
        "linestyle": (0, DASHES[style.dashes]) if DASHES[style.dashes] else "-",
        "markersize": 5,
    }
    mean = mean_values(line)
    low, high = (
        [m if bound is None else bound for m, bound in zip(mean, bounds, strict=True)]
        for bounds in ([value.low for value in line.y], [value.high for value in line.y])
    )
    if has_band:
        axes.plot(line.x, mean, markevery=max(1, len(line.x) // 8), **options)
        if is_shaded:
            axes.fill_between(line.x, low, high, color=options["color"], alpha=0.15, linewidth=0)
    else:
        half = [
            [m - bound for m, bound in zip(mean, low, strict=True)],
            [bound - m for m, bound in zip(mean, high, strict=True)],
        ]
        axes.errorbar(line.x, mean, half, elinewidth=1, capsize=2, **options)


def mean_values(line: Series) -> list[float]:
    """The means of a line."""
    return [value.mean for value in line.y]


def draw_legend(figure, axes) -> None:
    """A legend next to the axes, in the order of the lines' last values."""

    def last_value(pair):
        return -getattr(pair[0], "lines", [pair[0]])[0].get_ydata()[-1]

    pairs = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=last_value)
    figure.legend(*zip(*pairs, strict=True), loc="outside right upper", frameon=False, fontsize=9, handlelength=3.5)


def draw_heat_map(chart: charts.HeatMap):
    """A figure of a heat map with its numbers in the cells, and these as CSV."""
    matrix = chart.matrix
    figure, ((axes,),) = create_axes(height=1.6 + 0.38 * len(matrix.groups))
    axes.set(xlabel=chart.x, ylabel=chart.y)
    distance_GxR = chart.distances()
    image = axes.imshow(distance_GxR, cmap="Blues", aspect="auto", vmin=0)
    max_distance = max(map(max, distance_GxR)) or 1
    for g, values in enumerate(matrix.value_GxR):
        for r, value in enumerate(values):
            axes.text(
                r,
                g,
                format(value.mean, chart.format),
                ha="center",
                va="center",
                fontsize=9,
                color="white" if distance_GxR[g][r] > 0.65 * max_distance else "black",
                weight="bold" if distance_GxR[g][r] == 0 else "normal",
            )
    axes.set_xticks(range(len(matrix.rates)), [f"{100 * rate:g}" for rate in matrix.rates])
    axes.set_yticks(range(len(matrix.groups)), matrix.groups)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.suptitle(f"{chart.title}; bold: the {chart.best_word} of its column", fontsize=9, x=0.01, ha="left")
    figure.colorbar(image, label=f"{chart.unit.split(' ')[0]} {chart.distance_words} the column".strip())
    rows = [
        {"group": group, "rate": 100 * rate, chart.value: value}
        for group, values in zip(matrix.groups, matrix.value_GxR, strict=True)
        for rate, value in zip(matrix.rates, values, strict=True)
    ]
    return figure, table.to_csv(rows, [Column(name, name) for name in ("group", "rate", chart.value)])


def draw_intervals(chart: charts.IntervalChart):
    """A figure of estimates with their intervals, and the papers' values beside them; the same as CSV."""
    names = [textwrap.wrap(name, LABEL_WIDTH) or [""] for name, _, _ in chart.rows]
    max_chars = max((len(line) for name in names for line in name), default=0)
    max_lines = max(map(len, names), default=1)
    figure, ((axes,),) = create_axes(6.5 + 0.08 * max_chars, 1.2 + (0.15 + 0.17 * max_lines) * len(chart.rows))
    axes.set(xlabel=chart.x)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    for index, (_, value, paper) in enumerate(chart.rows):
        if value.low is not None:
            axes.hlines(index, value.low, value.high, color=LIGHT[0], linewidth=2, label=value.bounds_title)
        axes.plot(value.mean, index, "o", color=LIGHT[0], markersize=6, label="mean")
        if paper is not None:
            axes.plot(paper, index, "D", color=LIGHT[1], markerfacecolor="white", markersize=7, label="paper")
    axes.set_yticks(range(len(chart.rows)), ["\n".join(name) for name in names])
    axes.invert_yaxis()
    if chart.share:
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -0.02), min(high, 1.02))
    axes.tick_params(axis="y", length=0)
    handles, labels = axes.get_legend_handles_labels()
    handle_by_label = dict(zip(labels, handles, strict=True))
    figure.legend(handle_by_label.values(), handle_by_label, loc="outside right upper", frameon=False, fontsize=9)
    rows = [{"row": name, chart.value: value, "paper": paper} for name, value, paper in chart.rows]
    return figure, table.to_csv(rows, [Column(name, name) for name in ("row", chart.value, "paper")])
