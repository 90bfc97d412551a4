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


class Lines(NamedTuple):
    """Series over numbers or classes, beside references (optimum, chance) that are no models.

    value, along: short names of y and x. topic: what it shares with charts that are shown in its place. band: whether
    bounds are a band or bars. bounds: what they are. share: whether values lie between 0 and 1, whatever bounds say.
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

    @property
    def name(self) -> str:
        return f"{self.value}-by-{self.along}"


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
       group: Callable[[dict], str] = series.name_of) -> list[Lines | Heat | Intervals]:
    """Every chart that the results of a sweep and the rows of its table have the numbers for."""
    scores = worth_a_curve(results)
    charts = [learning_curves(results, score, x, group) for score in scores for x in ("step", "tokens")]
    charts += [probe(results, name, by, group) for name, by in PROBES]
    charts += [rate_curves(results, score, group) for score in scores]
    charts = [chart for chart in charts if chart.series]
    return [*charts, *heat(results, group), *intervals(results, rows, columns)]


def worth_a_curve(results: Sequence[dict]) -> list[Score]:
    """Scores with curves: that by which runs are judged, its excess over the floor where it is known, the others."""
    every = [score for score in series.scores(results) if score.chart]
    first = list(dict.fromkeys(score.name for score in (every[0], series.judging(results)))) if every else []
    return sorted(every, key=lambda score: first.index(score.name) if score.name in first else len(first))


def axis(score: Score) -> str:
    return f"{score.title} ({score.unit})" if score.unit else score.title


def learning_curves(results: Sequence[dict], score: Score, x: str = "step", group=series.name_of) -> Lines:
    """A held-out score by step or tokens, beside the optimum's where it is known and the same for all."""
    lines = series.curves(series.histories(results, group), x, f"eval_{score.name}")
    everywhere = sorted({place for line in lines for place in line.x})
    best = series.optimum(results, score.name)
    at = None if best is None else series.same(results, best)
    references = [] if at is None else [
        Series(best.reference, everywhere, [Estimate(at, None, None)] * len(everywhere))]
    return Lines(score.name, x, "Learning curves", {"step": "step", "tokens": "training tokens"}[x], axis(score), lines,
                 references, band=True, bounds=series.said(lines), share=score.share)


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
    return " ".join(str(row[column.name]) for column in columns if not column.form and row.get(column.name))


def as_estimate(value: float | Estimate) -> Estimate:
    return value if isinstance(value, Estimate) else Estimate(value, None, None)
