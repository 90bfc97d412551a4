"""The charts of a sweep, as values: `figures` draws them for papers, `page` for the screen.

Numbers are in the units that titles of axes say. A chart's name is that of its files. Which scores there are, what they
are called and which way they are better, the runs say.
"""
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mlm.base.estimates import Estimate, Score
from mlm.report import series
from mlm.report.series import Matrix, Series
from mlm.report.table import Column


class Axis(NamedTuple):
    """What a curve can be drawn along: its short name, its title, and the places of each series."""

    along: str
    title: str
    x: list[list[float]]


class Lines(NamedTuple):
    """Series over numbers or classes, beside references (optimum, chance) that are no models.

    value, along: short names of y and x. topic: what it shares with charts that are shown in its place. band: whether
    bounds are a band or bars. bounds: what they are. share: whether values lie between 0 and 1, whatever bounds say.
    axes: for a curve of training, all that it can be drawn along, x first; its references are then the same everywhere,
    and have the ends of x alone.
    """

    value: str
    along: str
    topic: str
    x: str
    y: str
    series: list[Series]
    references: list[Series]
    band: bool = False
    bounds: str = ""
    share: bool = False
    axes: Sequence[Axis] = ()

    @property
    def name(self) -> str:
        return f"{self.value}-by-{self.along}"

    def by(self, axis: Axis) -> "Lines":
        """The curve along another of its axes."""
        ends = [min(map(min, axis.x)), max(map(max, axis.x))]
        return self._replace(along=axis.along, x=axis.title,
                             series=[line._replace(x=x) for line, x in zip(self.series, axis.x, strict=True)],
                             references=[line._replace(x=ends) for line in self.references])


class Panels(NamedTuple):
    """Charts of the same series side by side in one figure. again: whether each is only another view of a chart that
    stands by itself, too.
    """

    name: str
    charts: list[Lines]
    again: bool = False


class Heat(NamedTuple):
    """A matrix, to be coloured by how far a cell is from the best of its column; better: as of a Score."""

    value: str
    topic: str
    title: str
    x: str
    y: str
    matrix: Matrix
    unit: str = ""
    better: int = -1
    form: str = ".3f"

    @property
    def name(self) -> str:
        return f"{self.value}-matrix"

    @property
    def best(self) -> str:
        return "highest" if self.better > 0 else "least"

    @property
    def behind(self) -> str:
        """How a cell lies to the best of its column."""
        return f"{'below' if self.better > 0 else 'above'} the {self.best} of"

    def from_best(self) -> list[list[float]]:
        best = max if self.better > 0 else min
        best_R = [best(value.mean for value in column) for column in zip(*self.matrix.value_GxR, strict=True)]
        return [[abs(value.mean - best) for value, best in zip(values, best_R, strict=True)]
                for values in self.matrix.value_GxR]


class Intervals(NamedTuple):
    """A value with its interval for each row of the table, and the paper's value (None where it has none)."""

    value: str
    x: str
    form: str
    rows: list[tuple[str, Estimate, float | None]]
    share: bool = False

    @property
    def name(self) -> str:
        return f"{self.value}-intervals"


def of(results: Sequence[dict], rows: Sequence[dict], columns: Sequence[Column],
       group: Callable[[dict], str] = series.name_of) -> list[Lines | Panels | Heat | Intervals]:
    """Every chart that the results of a sweep and the rows of its table have the numbers for."""
    scores = worth_a_curve(results)
    curves = [learning_curves(results, score, group) for score in scores]
    others = [probe(results, name, by, group) for name, by in PROBES]
    others += [rate_curves(results, score, group) for score in scores]
    curves, others = ([chart for chart in some if chart.series] for some in (curves, others))
    return [*curves, *costs(results, curves), *training(results, group), *others, *heat(results, group),
            *intervals(results, rows, columns)]


def worth_a_curve(results: Sequence[dict]) -> list[Score]:
    """Scores with curves: that by which runs are judged, its excess over the floor where it is known, the others."""
    every = [score for score in series.scores(results) if score.chart]
    first = list(dict.fromkeys(score.name for score in (every[0], series.judging(results)))) if every else []
    return sorted(every, key=lambda score: first.index(score.name) if score.name in first else len(first))


def axis(score: Score) -> str:
    return f"{score.title} ({score.unit})" if score.unit else score.title


AXES = {"step": "step", "tokens": "training tokens", "timed_seconds": "seconds of training", "flops": "training FLOPs"}
LOGGED = {"loss": "training loss", "gradient_norm": "gradient norm", "learning_rate": "learning rate",
          "tokens_per_second": "training tokens per second"}


def curve(results: Sequence[dict], value: str, topic: str, y: str, group=series.name_of, **more) -> Lines:
    """What runs logged of `value`, by step, and along the other axes that they know their places on."""
    seeds = series.histories([spent(result) for result in results], group)
    by = {along: series.curves(seeds, along, value) for along in AXES}
    lines = by["step"]
    points = [(line.name, len(line.x)) for line in lines]
    axes = [Axis(along.removeprefix("timed_"), AXES[along], [line.x for line in found]) for along, found in by.items()
            if points and points == [(line.name, len(line.x)) for line in found]]
    return Lines(value.removeprefix("eval_"), "step", topic, AXES["step"], y, lines, [], band=True,
                 bounds=series.said(lines), axes=axes, **more)


def spent(result: dict) -> dict:
    """The run with the FLOPs that it had spent in each record of its history, where they were counted; without gaps."""
    each = result["flops"] and result["flops"] / result["steps"]
    records = [record | {"flops": each * record["step"]} if each else record for record in result["history"]]
    return result | {"history": [{name: value for name, value in record.items() if value is not None}
                                 for record in records]}


def learning_curves(results: Sequence[dict], score: Score, group=series.name_of) -> Lines:
    """A held-out score in the course of training, beside the optimum's where it is known and the same for all."""
    chart = curve(results, f"eval_{score.name}", "Learning curves", axis(score), group, share=score.share)
    best = series.optimum(results, score.name)
    at = None if best is None else series.same(results, best)
    if at is None or not chart.axes:
        return chart
    return chart._replace(references=[Series(best.reference, [], [Estimate(at, None, None)] * 2)]).by(chart.axes[0])


def costs(results: Sequence[dict], charts: Sequence[Lines]) -> list[Panels]:
    """The learning curve of the score that runs are judged by, along all that training costs."""
    return [Panels(f"{chart.value}-by-cost", [chart.by(axis) for axis in chart.axes[1:]], again=True)
            for chart in charts if chart.value == series.judging(results).name and len(chart.axes) > 1]


def training(results: Sequence[dict], group=series.name_of) -> list[Panels]:
    """How training went: what was logged of every step."""
    charts = [curve(results, value, "Training", title, group)._replace(value=f"training_{value}")
              for value, title in LOGGED.items()]
    charts = [chart for chart in charts if chart.series]
    return [Panels("training", charts)] if charts else []


PROBES = {("agreement", "distance"): "words between subject and verb",
          ("agreement", "attractors"): "nouns of the other number between subject and verb",
          ("recall", "distance"): "sentence ends to the nearest other mention of the name"}
CHANCE = {"agreement": 0.5}  # of two forms one is right


def probe(results: Sequence[dict], name: str, by: str = "distance", group=series.name_of) -> Lines:
    """Accuracy on a probe by class, beside the optimum's and chance's."""
    lines, optimum = series.by_class(results, name, by, group)
    references = [optimum]
    if name in CHANCE:
        references.append(Series("chance", optimum.x, [Estimate(CHANCE[name], None, None)] * len(optimum.x)))
    return Lines(name, by, name.capitalize(), PROBES[name, by], f"{name}: share of items right", lines,
                 references, bounds=series.said(lines), share=True)


def rate_curves(results: Sequence[dict], score: Score, group=series.name_of) -> Lines:
    """A score by the evaluation's masking rate, beside the optimum's own curve where it is known."""
    lines, best = series.by_rate(results, score.name, group)
    return Lines(score.name, "rate", "Evaluation at further masking rates", "masking rate of the evaluation (%)",
                 axis(score), lines, [best] if best else [], bounds=series.said(lines), share=score.share)


def heat(results: Sequence[dict], group=series.name_of) -> list[Heat]:
    """How each group was trained by what it is evaluated at: the excess where it is known, else the first score."""
    score = series.judging(results)
    found = series.matrix(results, score.name, group)
    if not found.rates or len({group(result) for result in results}) > len(found.groups):
        return []
    return [Heat(score.name, "Training by evaluation", axis(score), "masking rate of the evaluation (%)", "trained as",
                 found, score.unit, score.better, score.form)]


def intervals(results: Sequence[dict], rows: Sequence[dict], columns: Sequence[Column]) -> list[Intervals]:
    """Scores with curves that all runs have, with the excess in place of what it is of, and what the paper has too."""
    scores = {score.name: score for score in worth_a_curve(results) if series.common(results, score)}
    first, value = series.scores(results)[0].name, series.judging(results).name
    judging = scores.keys() if value == first else scores.keys() - {first}
    names, charts = {column.name for column in columns}, []
    for column in sorted(columns, key=lambda column: column.name != value):
        if column.name in judging or f"{column.name}_paper" in names:
            shown = [(label(row, columns), as_estimate(row[column.name]), row.get(f"{column.name}_paper"))
                     for row in rows if row.get(column.name) is not None and not isinstance(row[column.name], str)]
            charts.append(Intervals(column.name, column.title, column.form, shown,
                                    column.name in scores and scores[column.name].share))
    return charts


def label(row: dict, columns: Sequence[Column]) -> str:
    """What a row of the table is of: its columns of text."""
    return ", ".join(str(row[column.name]) for column in columns if not column.form and row.get(column.name))


def as_estimate(value: float | Estimate) -> Estimate:
    return value if isinstance(value, Estimate) else Estimate(value, None, None)
