"""The charts of a sweep, as values: `figures` draws them for papers, `page` for the screen.

Numbers are in the units that titles of axes say. A chart's name is that of its files.
"""
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base.estimates import Estimate
from mlm.report import series
from mlm.report.series import Matrix, Series
from mlm.report.table import Column

LOSS, GAP, ACCURACY = ("held-out loss (nats per masked token)", "held-out loss above the floor (nats per masked token)",
                       "held-out accuracy")
SHARES = {"accuracy", "agreement", "recall"}  # values between 0 and 1, whatever their intervals say


class Lines(NamedTuple):
    """Series over numbers or classes, beside references (floor, optimum, chance) that are no models.

    value, along: short names of y and x. topic: what it shares with charts that are shown in its place. band: whether
    bounds are a band or bars. bounds: what they are.
    """

    value: str
    along: str
    topic: str
    x: str
    y: str
    series: list[Series]
    references: list[Series]
    band: bool = False
    bounds: str = "95% intervals"

    @property
    def name(self) -> str:
        return f"{self.value}-by-{self.along}"


class Heat(NamedTuple):
    """A matrix, to be coloured by how far a cell is above the least of its column."""

    value: str
    topic: str
    title: str
    x: str
    y: str
    matrix: Matrix

    @property
    def name(self) -> str:
        return f"{self.value}-matrix"

    def above_least(self) -> list[list[float]]:
        least_R = [min(value.mean for value in column) for column in zip(*self.matrix.value_GxR, strict=True)]
        return [[value.mean - least for value, least in zip(values, least_R, strict=True)]
                for values in self.matrix.value_GxR]


class Intervals(NamedTuple):
    """A value with its interval for each row of the table, and the paper's value (None where it has none)."""

    value: str
    x: str
    form: str
    rows: list[tuple[str, Estimate, float | None]]

    @property
    def name(self) -> str:
        return f"{self.value}-intervals"


def of(root: Path, results: Sequence[dict], rows: Sequence[dict], columns: Sequence[Column],
       group: Callable[[dict], str] = series.name_of) -> list[Lines | Heat | Intervals]:
    """Every chart that the results of a sweep and the rows of its table have the numbers for."""
    histories = series.histories(root, results, group)
    floors = {result["evaluation"].get("floor") for result in results}
    floor = floors.pop() if len(floors) == 1 else None
    charts = [learning_curves(histories, x, y, floor if y == "eval_loss" else None)
              for y in ("eval_loss", "eval_gap", "eval_accuracy") for x in ("step", "tokens")]
    charts += [probe(results, name, by, group) for name, by in PROBES]
    charts += [rate_curves(results, value, group) for value in ("loss", "gap", "accuracy")]
    charts = [chart for chart in charts if chart.series]
    return [*charts, *heat(results, group), *intervals(rows, columns)]


def learning_curves(histories: dict, x: str = "step", y: str = "eval_loss", floor: float | None = None) -> Lines:
    """Held-out loss, gap or accuracy by step or tokens; with a floor, the same for all, where there is one.

    histories: as `series.histories` gives them.
    """
    lines = series.curves(histories, x, y)
    everywhere = sorted({place for line in lines for place in line.x})
    references = [] if floor is None else [Series("floor", everywhere, [Estimate(floor, None, None)] * len(everywhere))]
    return Lines(y.removeprefix("eval_"), x, "Learning curves",
                 {"step": "step", "tokens": "training tokens"}[x],
                 {"eval_loss": LOSS, "eval_gap": GAP, "eval_accuracy": ACCURACY}[y], lines, references, band=True,
                 bounds=SEEDS)


PROBES = {("agreement", "distance"): "words between subject and verb",
          ("agreement", "attractors"): "nouns of the other number between subject and verb",
          ("recall", "distance"): "sentence ends to the nearest other mention of the name"}
SEEDS = "from the lowest to the highest seed"
CHANCE = {"agreement": 0.5}  # of two forms one is right


def probe(results: Sequence[dict], name: str, by: str = "distance", group=series.name_of) -> Lines:
    """Accuracy on a probe by class, beside the optimum's and chance's."""
    lines, optimum = series.by_class(results, name, by, group)
    references = [optimum]
    if name in CHANCE:
        references.append(Series("chance", optimum.x, [Estimate(CHANCE[name], None, None)] * len(optimum.x)))
    return Lines(name, by, name.capitalize(), PROBES[name, by], f"{name}: share of items right", lines,
                 references, bounds=SEEDS if len(results) > len(lines) else "95% intervals over items")


def rate_curves(results: Sequence[dict], value: str = "loss", group=series.name_of) -> Lines:
    """Loss, gap or accuracy by the evaluation's masking rate, above the floor's own curve where it is known."""
    lines, floor = series.by_rate(results, value, group)
    return Lines(value, "rate", "Evaluation at further masking rates", "masking rate of the evaluation (%)",
                 {"loss": LOSS, "gap": GAP, "accuracy": ACCURACY}[value], lines, [floor] if floor else [])


def heat(results: Sequence[dict], group=series.name_of) -> list[Heat]:
    """How each group was trained by what it is evaluated at: the gap where it is known, else the loss."""
    for value, unit in (("gap", GAP), ("loss", LOSS)):
        found = series.matrix(results, value, group)
        if found.groups and found.rates and len({group(result) for result in results}) == len(found.groups):
            return [Heat(value, "Training by evaluation", unit, "masking rate of the evaluation (%)", "trained as",
                         found)]
    return []


def intervals(rows: Sequence[dict], columns: Sequence[Column]) -> list[Intervals]:
    """The judging columns (the gap or else the loss, and the accuracy) and all for which the paper has a value."""
    names = {column.name: column for column in columns}
    judging = {"gap" if "gap" in names else "loss", "accuracy"}
    charts = []
    for column in columns:
        if column.name in judging or f"{column.name}_paper" in names:
            shown = [(label(row, columns), as_estimate(row[column.name]), row.get(f"{column.name}_paper"))
                     for row in rows if row.get(column.name) is not None]
            charts.append(Intervals(column.name, column.title, column.form, shown))
    return charts


def label(row: dict, columns: Sequence[Column]) -> str:
    """What a row of the table is of: its columns of text."""
    return " ".join(str(row[column.name]) for column in columns if not column.form and row.get(column.name))


def as_estimate(value: float | Estimate) -> Estimate:
    return value if isinstance(value, Estimate) else Estimate(value, None, None)
