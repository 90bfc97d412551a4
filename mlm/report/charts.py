"""The charts of lines of a sweep, as data; report/specs.py says how they are drawn."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mlm.base import groups, phases
from mlm.base.estimates import FRACTION, UNBOUNDED, Estimate, Score, clustered_interval, estimate_mean
from mlm.report import series
from mlm.report.series import Series

MAX_SERIES = 7  # in one plot; beyond, there are small multiples
AXES = {"step": "step", "tokens": "training tokens", "timed_seconds": "seconds of training", "flops": "training FLOPs"}
LOGGED_METRICS = {
    "loss": "training loss",
    "gradient_norm": "gradient norm",
    "learning_rate": "learning rate",
    "tokens_per_second": "training tokens per second",
}
RATE_TITLE = "masking rate of the evaluation (%)"
PROBES = {
    ("agreement", "distance"): "words between subject and verb",
    ("agreement", "attractors"): "nouns of the other number between subject and verb",
    ("recall", "distance"): "sentence ends to the nearest other mention of the name",
}
CHANCE = {"agreement": 0.5}  # one of two forms is correct


class Axis(NamedTuple):
    """An x axis of a curve: its short name, its title, and the x values of each series."""

    name: str
    title: str
    x: list[list[float]]


class LineChart(NamedTuple):
    """Series over numbers or classes, with references (floor, chance) that are no models."""

    y_name: str  # short name of y
    x_name: str  # short name of x
    topic: str  # charts of one topic share a place on the page
    x: str  # title
    y: str  # title
    series: list[Series]
    references: Sequence[Series] = ()
    band: bool = False  # whether bounds are drawn as a band, not as bars
    share: bool = False  # whether values are shares, which are shown in per cent
    limits: tuple[float, float] = UNBOUNDED  # the lowest and highest possible value, to which bounds are cut
    axes: Sequence[Axis] = ()  # for a curve of training: all x axes, the chart's first; references are then constant
    # and have no x
    log_x: bool = False  # whether the x axis is logarithmic
    log_y: bool = False  # whether the y axis is
    facets: Mapping[str, Sequence[str]] = {}  # the names of the series of each small multiple; none: one plot of all

    @property
    def name(self) -> str:
        """Returns the name of the chart's files, Y-by-X."""
        return f"{self.y_name}-by-{self.x_name}"

    def replace_axis(self, axis: Axis) -> "LineChart":
        """The same curve along another of its axes."""
        series = [line._replace(x=x) for line, x in zip(self.series, axis.x, strict=True)]
        return self._replace(x_name=axis.name, x=axis.title, series=series)


class PanelChart(NamedTuple):
    """Charts of the same series in one figure."""

    name: str
    charts: list[LineChart]
    is_duplicate: bool = False  # whether each is another view of a chart that has a figure of its own


class RowChart(NamedTuple):
    """A chart of rows that have names, as it is drawn; report/row_charts.py has them."""

    name: str
    topic: str
    spec: dict[str, Any]
    rows: list[dict[str, Any]]  # its numbers, as its CSV has them
    width: int | dict[str, int]  # of its figure
    min_width: int = 0  # on the page, in pixels


Chart = LineChart | PanelChart | RowChart


def list_panels(chart: Chart) -> list[LineChart]:
    """The line charts of a chart; none of a chart of rows."""
    return chart.charts if isinstance(chart, PanelChart) else [chart] if isinstance(chart, LineChart) else []


def build_charts(results: Sequence[dict]) -> list[Chart]:
    """All charts of lines for which the results of a sweep have data."""
    scores, primary = select_curve_scores(results), series.select_primary_score(results).name
    curves = [build_learning_curve(results, score) for score in scores]
    training = [
        build_curve(results, metric, "Training", title)._replace(y_name=f"training_{metric}")
        for metric, title in LOGGED_METRICS.items()
    ]
    others = [build_probe_chart(results, probe, dimension) for probe, dimension in PROBES]
    others += [build_rate_chart(results, score) for score in scores]
    curves, training, others = ([chart for chart in found if chart.series] for found in (curves, training, others))
    return [
        *curves,
        *(  # the learning curve of the primary score along every cost of training
            PanelChart(f"{curve.y_name}-by-cost", list(map(curve.replace_axis, curve.axes[1:])), is_duplicate=True)
            for curve in curves
            if curve.y_name == primary and len(curve.axes) > 1
        ),
        *([PanelChart("training", training)] if training else []),
        *others,
    ]


def select_curve_scores(results: Sequence[dict]) -> list[Score]:
    """Scores with curves: first the primary one, which is the excess loss where that is known, then the others."""
    scores = [score for score in series.collect_scores(results) if score.chart]
    primary = series.select_primary_score(results).name
    return sorted(scores, key=lambda score: score.name != primary)


def find_limits(score: Score) -> tuple[float, float]:
    """The lowest and highest possible value of a score: a share is between 0 and 1, an excess loss at least 0."""
    return FRACTION if score.share else (0.0, math.inf) if score.columns[0].endswith(series.EXCESS) else UNBOUNDED


def find_facets(results: Sequence[dict], facet: Callable[[dict], str]) -> dict[str, list[str]]:
    """The names of the series of each small multiple; none where one plot has room for all, or where all are in one."""
    by_group = series.group_runs(results)
    names = groups.group_values((facet(runs[0]), name) for name, runs in by_group.items())
    return names if len(by_group) > MAX_SERIES and len(names) > 1 else {}


def split_chart(chart: Chart, facets: Mapping[str, Sequence[str]]) -> Chart:
    """The chart with small multiples, where they are of all its series."""
    if isinstance(chart, PanelChart):
        return chart._replace(charts=[split_chart(panel, facets) for panel in chart.charts])
    if not isinstance(chart, LineChart):
        return chart
    names = {line.name for line in chart.series}
    facets = {facet: [name for name in members if name in names] for facet, members in facets.items()}
    facets = {facet: members for facet, members in facets.items() if members}
    is_whole = len(facets) > 1 and names == {name for members in facets.values() for name in members}
    return chart._replace(facets=facets) if is_whole else chart


def axis_title(score: Score) -> str:
    """The title of a score's axis, with its unit."""
    return f"{score.title} ({score.unit})" if score.unit else score.title


def build_curve(results: Sequence[dict], metric: str, topic: str, y: str, **fields) -> LineChart:
    """A logged metric by step, and along the other axes that all runs have logged; topic, y, fields: of the chart."""
    histories = {
        name: [series.merge_by_step(add_flops(run)["history"]) for run in runs]
        for name, runs in series.group_runs(results).items()
    }
    lines_by_axis = {name: series.build_curves(histories, name, metric) for name in AXES}
    lines = lines_by_axis["step"]
    points = [(line.name, len(line.x)) for line in lines]
    axes = [
        Axis(name.removeprefix("timed_"), AXES[name], [line.x for line in axis_lines])
        for name, axis_lines in lines_by_axis.items()
        if points and points == [(line.name, len(line.x)) for line in axis_lines]
    ]
    name = metric.removeprefix("eval_")
    return LineChart(name, "step", topic, AXES["step"], y, lines, band=True, axes=axes, **fields)


def add_flops(result: dict) -> dict:
    """The run with the FLOPs spent so far in each record of its history, if known, and without missing values.

    They are in proportion to the batches and lengths of the steps so far, which warm-up and phases change.
    """
    cfg, flops, records = series.read_config(result), result["flops"], result["history"]
    if flops:
        per_batch = flops / phases.count_work(cfg, range(result["steps"]))
        work = [phases.count_work(cfg, range(record["step"])) for record in records]
        records = [record | {"flops": per_batch * one} for record, one in zip(records, work, strict=True)]
    return result | {
        "history": [{name: value for name, value in record.items() if value is not None} for record in records]
    }


def build_learning_curve(results: Sequence[dict], score: Score) -> LineChart:
    """A held-out score during training, with the floor, and with the unigram's score if a model is no better.

    References are drawn if they are equal for all runs. An excess loss has a logarithmic axis, where that is possible.
    """
    fields = {"share": score.share, "limits": find_limits(score)}
    chart = build_curve(results, f"eval_{score.name}", "Learning curves", axis_title(score), **fields)
    if not chart.axes:
        return chart
    first, is_excess = series.collect_scores(results)[0], score.columns[0] == series.EXCESS
    name = first.name if is_excess else score.name
    floor = series.find_floor(results, name)
    base = series.find_shared_value(results, floor) if floor and is_excess else 0.0
    worst = min(score.better * estimate.mean for line in chart.series for estimate in line.y)
    references = []
    unigrams = (one for one in series.find_references(results, name) if one.reference == series.UNIGRAM)
    for reference in (floor, next(unigrams, None)):
        value = series.find_shared_value(results, reference) if reference else None
        value = None if value is None or base is None else value - base
        if reference and value is not None and (reference.reference != series.UNIGRAM or worst <= score.better * value):
            references.append(Series(reference.reference, [], [Estimate(value, None, None)]))
    bounds = [bound for line in chart.series for estimate in line.y for bound in estimate if bound is not None]
    return chart._replace(references=references, log_y=score.name.endswith("excess_loss") and min(bounds) > 0)


def build_probe_chart(results: Sequence[dict], probe: str, dimension: str = "distance") -> LineChart:
    """Accuracy on a probe by class of `dimension`: of each group whose runs have it, the Bayes optimum, and chance."""
    probed = [result for result in results if dimension in series.probe_results(result).get(probe, {})]
    members = {
        name: [series.probe_results(run)[probe][dimension] for run in runs]
        for name, runs in series.group_runs(probed).items()
    }
    classes = series.probe_results(probed[0])[probe][dimension] if probed else []
    names = [series.format_range(entry["low"], entry["high"]) for entry in classes]
    has_one_seed = all(len(runs) == 1 for runs in members.values())

    def estimate(entries):
        if has_one_seed:  # the interval over items, else the range of seeds
            return clustered_interval(entries[0]["accuracy"], entries[0]["accuracy_se"], entries[0]["items"])
        return series.estimate_range([entry["accuracy"] for entry in entries])

    lines = [Series(name, names, list(map(estimate, zip(*runs, strict=True)))) for name, runs in members.items()]
    references = [Series("Bayes optimum", names, [Estimate(entry["optimum"], None, None) for entry in classes])]
    if probe in CHANCE:
        references.append(Series("chance", names, [Estimate(CHANCE[probe], None, None)] * len(names)))
    x, y = PROBES[probe, dimension], f"{probe}: accuracy"
    return LineChart(probe, dimension, probe.capitalize(), x, y, lines, references, share=True, limits=FRACTION)


def build_rate_chart(results: Sequence[dict], score: Score) -> LineChart:
    """A score by masking rate, at the rates at which all runs were evaluated, with the floor's curve if it is known."""
    evaluated = [run for run in results if any(score.name in own for own in series.evaluations_by_rate(run).values())]
    rates = sorted(set.intersection(*(set(series.evaluations_by_rate(run)) for run in evaluated))) if evaluated else []
    percents, bounds = [100 * rate for rate in rates], FRACTION if score.share else UNBOUNDED
    lines = []
    for name, runs in series.group_runs(evaluated).items() if rates else ():
        by_rate = [series.evaluations_by_rate(run) for run in runs]
        values = [estimate_mean((own[rate][score.name] for own in by_rate), bounds) for rate in rates]
        lines.append(Series(name, percents, values))
    floor = series.find_floor(results, score.name)
    constants = series.reference_by_rate(results, floor) if floor else {}
    references = []
    if floor and lines and constants.keys() >= set(rates):
        references = [Series(floor.reference, percents, [Estimate(constants[rate], None, None) for rate in rates])]
    topic, fields = "Evaluation at other masking rates", {"share": score.share, "limits": find_limits(score)}
    return LineChart(score.name, "rate", topic, RATE_TITLE, axis_title(score), lines, references, **fields)
