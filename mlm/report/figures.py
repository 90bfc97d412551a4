"""Figures, each as PNG, SVG and CSV: what the HTML page draws, for papers and slides.

Every function takes the path without an ending and returns it. Series keep their colour, marker and dashes in all
figures that name the same series in the same order; no two of the first twelve share all three, so that figures can
be read without colour. matplotlib is imported by the first figure.
"""
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.report import table
from mlm.report.series import Series

# Eight colours that stay apart under the three kinds of colour blindness, each with a contrast of 3 to white.
COLOURS = ("#0b62c4", "#c8500a", "#0a8f6c", "#c04a9e", "#8a6d00", "#3a3a3a", "#2b93d1", "#7a2be2")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
DASHES = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (10, 3)))

TITLES = {"step": "step", "tokens": "training tokens", "eval_loss": "held-out loss (nats per masked token)",
          "eval_gap": "held-out loss above the floor (nats per masked token)", "eval_accuracy": "held-out accuracy",
          "loss": "held-out loss (nats per masked token)", "accuracy": "held-out accuracy",
          "gap": "held-out loss above the floor (nats per masked token)"}


class Style(NamedTuple):
    color: str
    marker: str
    linestyle: object


def style(index: int) -> Style:
    return Style(COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)])


def learning_curves(path: Path, series: Sequence[Series], *, x: str = "step", y: str = "eval_loss",
                    floor: float | None = None) -> Path:
    """Held-out loss by step or tokens (`series.curves`); the band is from the lowest to the highest seed."""
    figure, axes = canvas(TITLES[x], TITLES[y])
    for index, line in enumerate(series):
        look = style(index)
        axes.plot(line.x, [value.mean for value in line.y], label=line.name, linewidth=1.5, markersize=4,
                  markevery=max(1, len(line.x) // 8), **look._asdict())
        if line.y[0].low is not None:
            axes.fill_between(line.x, [value.low for value in line.y], [value.high for value in line.y],
                              color=look.color, alpha=0.15, linewidth=0)
    if floor is not None:
        axes.axhline(floor, color="black", linewidth=1, linestyle=(0, (1, 1)), label="floor")
    thousands(axes.xaxis)
    return finish(path, figure, axes, series, x, y)


def by_class(path: Path, series: Sequence[Series], optimum: Series, *, x: str, y: str = "accuracy",
             chance: float | None = None) -> Path:
    """Accuracy by class, such as distance (`series.by_class`), with 95% intervals, beside the optimum's.

    x: what the classes are, such as "words between subject and verb". chance: the accuracy of a guess.
    """
    figure, axes = canvas(x, y)
    places = range(len(optimum.x))
    axes.plot(places, [value.mean for value in optimum.y], color="black", linewidth=1, linestyle=(0, (1, 1)),
              marker="_", markersize=10, label="optimum")
    for index, line in enumerate(series):
        shift = 0.3 * ((index + 0.5) / len(series) - 0.5)
        bars(axes, [place + shift for place in places], line, index)
    if chance is not None:
        axes.axhline(chance, color="gray", linewidth=1, linestyle=(0, (4, 4)), label="chance")
    axes.set_xticks(places, optimum.x)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.02), min(high, 1.02))
    return finish(path, figure, axes, [*series, optimum], "class", "accuracy")


def by_rate(path: Path, series: Sequence[Series], floor: Series | None = None, *, y: str = "loss") -> Path:
    """Loss, gap or accuracy by the evaluation's masking rate (`series.by_rate`), 95% intervals, above the floor's."""
    figure, axes = canvas("masking rate of the evaluation (%)", TITLES[y])
    if floor is not None:
        axes.plot(floor.x, [value.mean for value in floor.y], color="black", linewidth=1, linestyle=(0, (1, 1)),
                  marker="_", markersize=10, label="floor")
    for index, line in enumerate(series):
        bars(axes, line.x, line, index)
    return finish(path, figure, axes, [*series, *([floor] if floor else [])], "rate", y)


def bars(axes, x: Sequence[float], line: Series, index: int) -> None:
    """A line with markers and the interval of each as a bar."""
    look = style(index)
    half = [[0 if value.low is None else value.mean - value.low for value in line.y],
            [0 if value.low is None else value.high - value.mean for value in line.y]]
    axes.errorbar(x, [value.mean for value in line.y], half, label=line.name, linewidth=1.5, markersize=5,
                  elinewidth=1, capsize=2, **look._asdict())


def canvas(x: str, y: str, width: float = 7.5, height: float = 4.5):
    """A figure with one pair of axes; no state is shared with other figures, nor any screen needed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def thousands(axis) -> None:
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(sep=""))


def finish(path: Path, figure, axes, series: Sequence[Series], x: str, y: str) -> Path:
    """Puts the legend beside the axes, its lines in the order in which they end, and writes the figure and its data."""
    def end(handle):
        return getattr(handle, "lines", [handle])[0].get_ydata()[-1]

    handles, labels = axes.get_legend_handles_labels()
    pairs = sorted(zip(handles, labels, strict=True), key=lambda pair: -end(pair[0]))
    figure.legend(*zip(*pairs, strict=True), loc="outside right upper", frameon=False, fontsize=9)
    rows = [{"series": line.name, x: place, y: value} for line in series
            for place, value in zip(line.x, line.y, strict=True)]
    write(path, figure, table.plain(rows, [table.Column(name, name) for name in ("series", x, y)]))
    return path


def write(path: Path, figure, data: str) -> None:
    """path.png, path.svg and path.csv, each whole or not at all, and the same for the same data."""
    import matplotlib

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)

    def aside(ending):
        return path.parent / f".{path.name}.{os.getpid()}.{ending}"

    with matplotlib.rc_context({"svg.hashsalt": "mlm"}):
        figure.savefig(aside("svg"), metadata={"Date": None})
    figure.savefig(aside("png"), dpi=160)
    aside("csv").write_text(data)
    for ending in ("svg", "png", "csv"):
        aside(ending).rename(path.parent / f"{path.name}.{ending}")
