"""The charts of a sweep as figures for papers and slides: each as PNG, SVG and CSV. matplotlib is imported to draw."""
import textwrap
from pathlib import Path

from mlm.base import files
from mlm.report import charts, table
from mlm.report.palette import DASHES, LIGHT, MARKERS, style
from mlm.report.series import Series
from mlm.report.table import Column

REFERENCES = ((1, 1.2), (8, 4))  # dashes of the optimum, and of chance
LABEL = 40                       # characters of a line beside an axis
BANDS = 6                        # more of them over each other tell nothing, and stand in the CSV alone


def draw(folder: Path, chart: charts.Lines | charts.Panels | charts.Heat | charts.Intervals) -> Path:
    """Writes NAME.png, NAME.svg and NAME.csv into the folder, each whole or not at all; returns the PNG's path.

    The same chart gives the same files. A legend stands beside the axes, where it covers nothing.
    """
    figure, data = {charts.Lines: lines, charts.Panels: panels, charts.Heat: heat,
                    charts.Intervals: intervals}[type(chart)](chart)
    folder = files.path(folder)
    files.make_folder(folder)
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "mlm"}):
        for ending, save in (("svg", lambda path: figure.savefig(path, metadata={"Date": None})),
                             ("png", lambda path: figure.savefig(path, dpi=160))):
            with files.atomic_write(folder / f"{chart.name}.{ending}") as aside:
                save(aside)
    files.write_text(folder / f"{chart.name}.csv", data)
    return folder / f"{chart.name}.png"


def canvas(width: float = 7.5, height: float = 4.5, down: int = 1, across: int = 1):
    """A figure and its axes, in rows; it shares no state with others and needs no screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
        one.set_axisbelow(True)
    return figure, axes


def lines(chart: charts.Lines):
    figure, ((axes,),) = canvas()
    panel(axes, chart)
    legend(figure, axes)
    return figure, numbers([chart])


def panels(chart: charts.Panels):
    across = 2 if len(chart.charts) % 2 == 0 else len(chart.charts)
    down = -(-len(chart.charts) // across)
    figure, axes = canvas(1.5 + 3.6 * across, 3.2 * down, down, across)
    for one, of in zip(axes.flat, chart.charts, strict=True):
        panel(one, of)
    if chart.again:  # all have the same y
        for one in axes.flat[1:]:
            one.set_ylabel("")
    legend(figure, axes[0, 0])
    return figure, numbers(chart.charts)


def panel(axes, chart: charts.Lines) -> None:
    axes.set(xlabel=chart.x, ylabel="\n".join(textwrap.wrap(chart.y, LABEL)))
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    classes = next((line.x for line in chart.series if isinstance(line.x[0], str)), None)
    for index, line in enumerate(chart.series):
        x = range(len(classes)) if classes else line.x
        if not chart.band:  # side by side, so that no bar covers another
            shift = ((index + 0.5) / len(chart.series) - 0.5) * (0.4 if classes else 0.04 * (x[-1] - x[0]))
            line = line._replace(x=[place + shift for place in x])
        plot(axes, line, index, chart.band, len(chart.series) <= BANDS)
    for reference, dashes in zip(chart.references, REFERENCES, strict=False):
        axes.plot(range(len(classes)) if classes else reference.x, means(reference), label=reference.name,
                  color="black", linewidth=1, linestyle=(0, dashes))
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


def numbers(of: list[charts.Lines]) -> str:
    """CSV of charts of the same series: a row for each point of a series, with its places on all axes, and one for a
    reference that is the same everywhere.
    """
    rows, names = {}, {"series": ""}

    def add(line: str, places: dict, chart: charts.Lines, value) -> None:
        names.update(dict.fromkeys([*places, chart.value], ""))
        row = rows.setdefault((line, next(iter(places.values()), None)), {"series": line})
        row.update(places | {chart.value: value})

    for chart in of:
        for index, line in enumerate(chart.series):
            axes = chart.axes or [charts.Axis(chart.along, chart.x, [line.x for line in chart.series])]
            for point, value in enumerate(line.y):
                add(line.name, {axis.along: axis.x[index][point] for axis in axes}, chart, value)
        for line in chart.references:
            if chart.axes:
                add(line.name, {}, chart, line.y[0])
            for place, value in () if chart.axes else zip(line.x, line.y, strict=True):
                add(line.name, {chart.along: place}, chart, value)
    return table.plain(list(rows.values()), [Column(name, name) for name in names])


def plot(axes, line: Series, index: int, band: bool, shaded: bool) -> None:
    look = style(index)
    looks = {"label": line.name, "color": LIGHT[look.colour], "marker": MARKERS[look.marker], "linewidth": 1.5,
             "linestyle": (0, DASHES[look.dashes]) if DASHES[look.dashes] else "-", "markersize": 5}
    mean = means(line)
    low, high = ([m if bound is None else bound for m, bound in zip(mean, bounds, strict=True)]
                 for bounds in ([value.low for value in line.y], [value.high for value in line.y]))
    if band:
        axes.plot(line.x, mean, markevery=max(1, len(line.x) // 8), **looks)
        if shaded:
            axes.fill_between(line.x, low, high, color=looks["color"], alpha=0.15, linewidth=0)
    else:
        half = [[m - bound for m, bound in zip(mean, low, strict=True)],
                [bound - m for m, bound in zip(mean, high, strict=True)]]
        axes.errorbar(line.x, mean, half, elinewidth=1, capsize=2, **looks)


def means(line: Series) -> list[float]:
    return [value.mean for value in line.y]


def legend(figure, axes) -> None:
    """Names beside the axes, in the order in which the lines end."""
    def end(pair):
        return -getattr(pair[0], "lines", [pair[0]])[0].get_ydata()[-1]

    pairs = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=end)
    figure.legend(*zip(*pairs, strict=True), loc="outside right upper", frameon=False, fontsize=9, handlelength=3.5)


def heat(chart: charts.Heat):
    matrix = chart.matrix
    figure, ((axes,),) = canvas(height=1.6 + 0.38 * len(matrix.groups))
    axes.set(xlabel=chart.x, ylabel=chart.y)
    behind_GxR = chart.from_best()
    image = axes.imshow(behind_GxR, cmap="Blues", aspect="auto", vmin=0)
    most = max(map(max, behind_GxR)) or 1
    for g, values in enumerate(matrix.value_GxR):
        for r, value in enumerate(values):
            axes.text(r, g, format(value.mean, chart.form), ha="center", va="center", fontsize=9,
                      color="white" if behind_GxR[g][r] > 0.65 * most else "black",
                      weight="bold" if behind_GxR[g][r] == 0 else "normal")
    axes.set_xticks(range(len(matrix.rates)), [f"{100 * rate:g}" for rate in matrix.rates])
    axes.set_yticks(range(len(matrix.groups)), matrix.groups)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.suptitle(f"{chart.title}; bold: the {chart.best} of its column", fontsize=9, x=0.01, ha="left")
    figure.colorbar(image, label=f"{chart.unit.split(' ')[0]} {chart.behind} the column".strip())
    rows = [{"group": group, "rate": 100 * rate, chart.value: value}
            for group, values in zip(matrix.groups, matrix.value_GxR, strict=True)
            for rate, value in zip(matrix.rates, values, strict=True)]
    return figure, table.plain(rows, [Column(name, name) for name in ("group", "rate", chart.value)])


def intervals(chart: charts.Intervals):
    names = [textwrap.wrap(name, LABEL) or [""] for name, _, _ in chart.rows]
    longest = max((len(line) for name in names for line in name), default=0)
    most = max(map(len, names), default=1)
    figure, ((axes,),) = canvas(6.5 + 0.08 * longest, 1.2 + (0.15 + 0.17 * most) * len(chart.rows))
    axes.set(xlabel=chart.x)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    for place, (_, value, paper) in enumerate(chart.rows):
        if value.low is not None:
            axes.hlines(place, value.low, value.high, color=LIGHT[0], linewidth=2, label=value.of)
        axes.plot(value.mean, place, "o", color=LIGHT[0], markersize=6, label="mean")
        if paper is not None:
            axes.plot(paper, place, "D", color=LIGHT[1], markerfacecolor="white", markersize=7, label="paper")
    axes.set_yticks(range(len(chart.rows)), ["\n".join(name) for name in names])
    axes.invert_yaxis()
    if chart.share:
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -0.02), min(high, 1.02))
    axes.tick_params(axis="y", length=0)
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once, loc="outside right upper", frameon=False, fontsize=9)
    rows = [{"row": name, chart.value: value, "paper": paper} for name, value, paper in chart.rows]
    return figure, table.plain(rows, [Column(name, name) for name in ("row", chart.value, "paper")])
