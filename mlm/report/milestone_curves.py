"""Evaluations over training: those of the models at milestones (mlm evaluate --milestones), as a table and as curves.

A run is a dict as in report/series.py, with "milestones": "evaluations", "summary" and "evaluation_scores"
of each, by step.
"""

from collections.abc import Callable, Sequence

from mlm.base.estimates import Estimate, EvaluationMetric, EvaluationScore, normal_interval
from mlm.report import evaluation_scores, series
from mlm.report.charts import Axis, LineChart
from mlm.report.series import Series
from mlm.report.table import Column

TOPIC = "Evaluations over training"


def select_step(results: Sequence[dict], step: int) -> list[dict]:
    """The runs with their evaluations at a milestone in place of those of the trained model."""
    none = {"evaluations": {}, "summary": {}, "evaluation_scores": []}
    return [result | none | result.get("milestones", {}).get(step, {}) for result in results]


def list_steps(results: Sequence[dict]) -> list[int]:
    """The milestones that some run was evaluated at, in order."""
    return sorted({step for result in results for step in result.get("milestones", {})})


def build_columns(results: Sequence[dict]) -> dict[EvaluationMetric, Column]:
    """A column for each evaluation at some milestone."""
    return evaluation_scores.build_columns([run for step in list_steps(results) for run in select_step(results, step)])


def build_table(
    results: Sequence[dict], group: Callable[[dict], str] = series.group_name
) -> tuple[list[dict], list[Column]]:
    """The table (rows, columns): a row for each group (by its name) and milestone, with every evaluation there."""
    columns = build_columns(results)
    rows = [
        {"run": name, "step": step} | evaluation_scores.build_cells(select_step(members, step), columns)
        for name, members in series.group_runs(results, group).items()
        for step in list_steps(members)
    ]
    return rows, [Column("run", "run"), Column("step", "step", ",d"), *columns.values()]


def build_charts(results: Sequence[dict], group: Callable[[dict], str] = series.group_name) -> list[LineChart]:
    """A chart for each evaluation: a line for each group, at the milestones where all its runs have a value."""
    charts = []
    for metric, column in build_columns(results).items():
        lines = []
        for name, members in series.group_runs(results, group).items():
            points = [
                (step, estimate_value(values))
                for step in list_steps(members)
                if len(values := collect_values(select_step(members, step), metric)) == len(members)
            ]
            if points:
                lines.append(Series(name, [step for step, _ in points], [value for _, value in points]))
        if lines:
            axes = [Axis("milestone", "step", [line.x for line in lines])]
            scores = [
                evaluation_scores.index_scores(run).get(metric) for run in select_step(results, list_steps(results)[-1])
            ]
            constants = {name: value for score in scores if score for name, value in score.references.items()}
            references = [Series(name, [], [Estimate(value, None, None)]) for name, value in constants.items()]
            look = {"band": True, "limits": metric.bounds, "axes": axes, "log_x": True, "log_y": metric.log_scale}
            charts.append(LineChart(column.name, "milestone", TOPIC, "step", column.title, lines, references, **look))
    return charts


def collect_values(results: Sequence[dict], metric: EvaluationMetric) -> list[EvaluationScore]:
    """The defined values of an evaluation, of the runs that have one."""
    values = [evaluation_scores.index_scores(result).get(metric) for result in results]
    return [value for value in values if value is not None and value.value is not None]


def estimate_value(values: Sequence[EvaluationScore]) -> Estimate:
    """The mean with the lowest and highest seed; of one run its interval over items, where that is known."""
    numbers = [value.value for value in values if value.value is not None]
    if len(values) > 1 or values[0].error is None:
        return series.estimate_range(numbers)
    return normal_interval({"mean": numbers[0], "mean_se": values[0].error}, "mean")
