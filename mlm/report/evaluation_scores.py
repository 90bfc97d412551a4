"""The scores of trained runs' evaluations as columns of tables, and over training as curves.

A run (report/series.py) has "evaluation_scores", a list of EvaluationScore, and "milestones": by step "evaluations",
"summary" and "evaluation_scores" of its model at that step (mlm evaluate --milestones). A column holds results on
identical texts or tasks; a group has a number in it only if all its seeds were evaluated.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mlm.base import groups
from mlm.base.estimates import Estimate, EvaluationMetric, EvaluationScore, estimate_mean
from mlm.report import series
from mlm.report.charts import Axis, LineChart
from mlm.report.series import Series
from mlm.report.table import Column

MAX_NAMED = 3  # failed fine-tunings
MILESTONES = "Evaluations over training"
# Titles of settings of a fine-tuning; other settings are shown as they are.
VARIANT_TITLES = {
    "finetune.trainable_layers=0": "head only",
    "finetune.trainable_layers=1": "last layer",
    "from_scratch": "no pretraining",
}


def index_scores(result: Mapping) -> dict[EvaluationMetric, EvaluationScore]:
    """The scores of a run's evaluations by metric."""
    return {score.metric: score for score in result.get("evaluation_scores", ())}


def collect_values(results: Sequence[Mapping], metric: EvaluationMetric) -> list[float]:
    """The values of an evaluation, of the runs that have it and for which it is defined."""
    scores = [index_scores(result).get(metric) for result in results]
    return [score.value for score in scores if score is not None and score.value is not None]


def format_title(metric: EvaluationMetric) -> str:
    """The title of a metric's column."""
    variants = [VARIANT_TITLES.get(word, word) for word in (metric.variant or "").split()]
    subject = ", ".join((metric.subject, *variants)) + ": " if metric.subject else ""
    return f"{subject}{metric.title}" + (f" ({metric.unit})" if metric.unit else "")


def split_variants(result: dict, names: Mapping[str, str]) -> Iterator[dict]:
    """For each of config.downstream.variants, a copy of the run that has only the fine-tuned scores of this variant.

    Its "variant" is the name of the variant: its last setting by `names`, if no other variant ends with it, or else the
    variant itself.
    """
    folder, _, run = result["config"]["workdir"].rpartition("/")
    variants = [variant.split() or [""] for variant in result["config"]["downstream.variants"].split(",")]
    for words in variants:
        is_unique = [other[-1] for other in variants].count(words[-1]) == 1
        variant_name = names.get(words[-1], " ".join(words)) if is_unique else " ".join(words)
        scores = [
            score if metric.variant is None else score._replace(metric=metric._replace(variant=""))
            for metric, score in index_scores(result).items()
            if metric.variant in (None, " ".join(words))
        ]
        yield result | {
            "variant": variant_name,
            "evaluation_scores": scores,
            "config": result["config"] | {"workdir": f"{folder}/{variant_name} {run}"},
        }


def build_columns(results: Sequence[dict]) -> dict[EvaluationMetric, Column]:
    """A column for each metric of some run; columns with equal titles get the first digits of their SHA-256."""
    found = ((metric, (result, score)) for result in results for metric, score in index_scores(result).items())
    scored_runs = groups.group_values(found)
    names = ["_".join((metric.name, *(metric.variant or "").split())) for metric in scored_runs]
    columns = {}
    for (metric, runs), name in zip(scored_runs.items(), names, strict=True):
        title, digits = format_title(metric), metric.sha256[:4]
        if names.count(name) > 1:
            name, title = f"{name}_{digits}", f"{title}, {digits}"
        note = f"{title}: {runs[-1][1].note}{describe_failures(runs)}{describe_below(runs)}."
        columns[metric] = Column(name, title, metric.format, note)
    return columns


def describe_failures(runs: Sequence[tuple[dict, EvaluationScore]]) -> str:
    """How many fine-tunings failed, with their names if they are few; empty if none did."""
    failed = [f"{name_run(result)} s{seed}" for result, score in runs for seed in score.failed]
    if not failed:
        return ""
    total = sum(len(score.values) for _, score in runs)
    names = f": {', '.join(failed)}" if len(failed) <= MAX_NAMED else ""
    return f"; failed (no better than the majority class, or 0, or not finite), {len(failed)} of {total}{names}"


def describe_below(runs: Sequence[tuple[dict, EvaluationScore]]) -> str:
    """Which runs are below the baseline of a score; empty if none is."""
    below: dict[str, list[str]] = {}
    for result, score in runs:
        distance = 0.0 if score.value is None else score.value - score.references.get(score.baseline, score.value)
        if score.metric.better * distance < 0:
            below.setdefault(score.baseline, []).append(name_run(result))
    return "".join(f"; below {baseline}: {', '.join(names)}" for baseline, names in below.items())


def name_run(result: dict) -> str:
    """The name of a run's directory."""
    return Path(result["config"]["workdir"]).name


def build_cells(seeds: Sequence[dict], columns: dict[EvaluationMetric, Column]) -> dict:
    """A group's cells: the mean over its runs if all have the score, else the number of runs that have it.

    Where it is undefined for a run, the cell says why. The interval of a single run is over its fine-tuning seeds.
    """
    row, runs = {}, [index_scores(result) for result in seeds]
    for metric, column in columns.items():
        scores = [run[metric] for run in runs if metric in run]
        defined = [score.value for score in scores if score.value is not None]
        if len(defined) < len(scores):
            row[column.name] = f"undefined: {next(score.undefined for score in scores if score.undefined)}"
        elif len(scores) == len(seeds):
            values = scores[0].values if len(scores) == 1 and scores[0].values else defined
            row[column.name] = estimate_mean(values, metric.bounds)
            if len(scores) == 1 and scores[0].error is not None:
                row[f"{column.name}_se"] = scores[0].error
        elif scores:
            row[column.name] = f"{len(scores)} of {len(seeds)} seeds evaluated"
    return row


def build_reference_cells(results: Sequence[dict], columns: dict[EvaluationMetric, Column]) -> dict[str, dict]:
    """The cells of the references, by name, such as the majority class and the Bayes optimum."""
    rows: dict[str, dict] = {}
    for result in results:
        for metric, score in index_scores(result).items():
            for name, value in score.references.items():
                rows.setdefault(name, {})[columns[metric].name] = value
    return rows


def select_step(results: Sequence[dict], step: int) -> list[dict]:
    """The runs with their evaluations at a milestone in place of those of the trained model."""
    none = {"evaluations": {}, "summary": {}, "evaluation_scores": []}
    return [result | none | result.get("milestones", {}).get(step, {}) for result in results]


def list_steps(results: Sequence[dict]) -> list[int]:
    """The milestones that some run was evaluated at, in order."""
    return sorted({step for result in results for step in result.get("milestones", {})})


def list_milestone_columns(results: Sequence[dict]) -> dict[EvaluationMetric, Column]:
    """A column for each evaluation at some milestone."""
    return build_columns([run for step in list_steps(results) for run in select_step(results, step)])


def build_milestone_table(results: Sequence[dict]) -> tuple[list[dict], list[Column]]:
    """The table (rows, columns): a row for each group (by its name) and milestone, with every evaluation there."""
    columns = list_milestone_columns(results)
    rows = [
        {"run": name, "step": step} | build_cells(select_step(members, step), columns)
        for name, members in series.group_runs(results).items()
        for step in list_steps(members)
    ]
    return rows, [Column("run", "run"), Column("step", "step", ",d"), *columns.values()]


def build_milestone_charts(results: Sequence[dict]) -> list[LineChart]:
    """A chart for each evaluation: a line for each group, at the milestones where all its runs have a value."""
    charts = []
    for metric, column in list_milestone_columns(results).items():
        lines = []
        for name, members in series.group_runs(results).items():
            values = {step: estimate_value(select_step(members, step), metric) for step in list_steps(members)}
            defined = {step: value for step, value in values.items() if value is not None}
            if defined:
                lines.append(Series(name, [*defined], [*defined.values()]))
        if lines:
            axes = [Axis("milestone", "step", [line.x for line in lines])]
            scores = [index_scores(run).get(metric) for run in select_step(results, list_steps(results)[-1])]
            constants = {name: value for score in scores if score for name, value in score.references.items()}
            references = [Series(name, [], [Estimate(value, None, None)]) for name, value in constants.items()]
            look = {"band": True, "limits": metric.bounds, "axes": axes, "log_x": True, "log_y": metric.log_scale}
            charts.append(
                LineChart(column.name, "milestone", MILESTONES, "step", column.title, lines, references, **look)
            )
    return charts


def estimate_value(results: Sequence[dict], metric: EvaluationMetric) -> Estimate | None:
    """The mean with the range of seeds, or of one run with its interval over items; None unless all have a value."""
    values = collect_values(results, metric)
    if len(values) < len(results):
        return None
    return series.estimate_range(values) if len(values) > 1 else index_scores(results[0])[metric].estimate()
