"""Columns about the excess loss: what it is made of, and when a run (report/series.py) came how close to the floor."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from mlm.base import phases, recipe_constants
from mlm.base.estimates import FRACTION, Estimate, estimate_mean
from mlm.report import series, summary
from mlm.report.table import Column

PARTS = (
    Column("excess_kind", "excess loss: kind of word (nats)", ".3f"),
    Column("excess_number", "excess loss: its number (nats)", ".3f"),
    Column("excess_word", "excess loss: word among these (nats)", ".3f"),
)
PROBES = (
    Column("near", "agreement, 1-3 words", ".3f"),
    Column("far", "agreement, 9-16 words", ".3f"),
    Column("recall", "name recall", ".3f"),
)
OWN_EXCESS = Column(
    "own_excess",
    "loss above the floor of what it sees (nats)",
    ".3f",
    note="What it sees: a window and a bag model.window neighbors on each side, by default 5 and 2, a bag without "
    "order; others the whole row.",
)
PLATEAU_SHARE = 0.1  # of the way from the unigram loss to the floor, after which a run has left the plateau


def compute_parts(results: Sequence[dict]) -> dict[str, Estimate]:
    """What the excess loss is made of (mlm/evaluation/loss_decomposition.py), where all runs were evaluated for it."""
    parts_by_run = [result["evaluations"].get("loss_decomposition", {}).get("parts", {}) for result in results]
    return {
        f"excess_{name}": estimate_mean(parts[name]["excess"] for parts in parts_by_run)
        for name in ("kind", "number", "word")
        if all(name in parts for parts in parts_by_run)
    }


def probe_accuracies(results: Sequence[dict], metric: str) -> dict[str, Estimate]:
    """The cells of PROBES of a group; metric: "accuracy", of the models, or "optimum", of the Bayes optimum."""
    runs = [series.probe_results(result) for result in results]
    entries = {"recall": [probes["recall"] for probes in runs if metric in probes.get("recall", {})]}
    for name, low in (("near", 1), ("far", 9)):
        entries[name] = [
            entry for probes in runs for entry in probes.get("agreement", {}).get("distance", []) if entry["low"] == low
        ]
    return {
        name: estimate_mean((entry[metric] for entry in probe_entries), FRACTION)
        for name, probe_entries in entries.items()
        if probe_entries and len(probe_entries) == len(results)
    }


def build_table(
    results: Sequence[dict],
    columns: Sequence[Column],
    describe_group: Callable[[Sequence[dict]], dict] = lambda seeds: {},
) -> tuple[list[dict], Sequence[Column]]:
    """`summary.build_table` with the parts of the excess loss, the plateau and the probes; the first column is text."""

    def describe_row(seeds):
        probes = probe_accuracies(seeds, "accuracy")
        own = compute_own_excess(seeds) if sees_parts else {}
        return {**describe_group(seeds), **own, **compute_parts(seeds), **measure_plateau(seeds), **probes}

    sees_parts = any(find_own_floor(result) != "floor" for result in results)
    excess_columns = (OWN_EXCESS, *PARTS) if sees_parts else PARTS
    trailing_columns = (*excess_columns, build_plateau_column(results), *PROBES)
    rows, columns = summary.build_table(results, columns, describe_row, trailing_columns)
    # Of the Bayes optimum: its accuracy on the probes, and no excess loss of any part.
    optimum: dict = probe_accuracies(results[:1], "optimum")
    if any("excess_kind" in row for row in rows):
        optimum |= {column.name: 0.0 for column in PARTS}
    is_optimum = [row[columns[0].name] == "Bayes optimum" and summary.EVALUATION_SET not in row for row in rows]
    return [row | optimum if found else row for row, found in zip(rows, is_optimum, strict=True)], columns


def find_own_floor(result: dict) -> str:
    """The name of the floor of what a run's model sees; the result may lack it."""
    config = result["config"]
    if config["model.cell"] == "window":
        return "window_floor" if config["model.window"] == recipe_constants.WINDOW_NEIGHBORS else ""
    return "bag_floor" if config["model.cell"] == "bag" else "floor"


def compute_own_excess(results: Sequence[dict]) -> dict[str, Estimate]:
    """The loss above the floor of what the model sees, where that is known."""
    evaluations, own_floor = [result["evaluation"] for result in results], find_own_floor(results[0])
    if not all(own_floor in evaluation for evaluation in evaluations):
        return {}
    return {"own_excess": estimate_mean(evaluation["loss"] - evaluation[own_floor] for evaluation in evaluations)}


def build_plateau_column(results: Sequence[dict]) -> Column:
    """The column of `measure_plateau`, whose title has the widest interval between two evaluations, in examples."""
    intervals = [
        phases.count_examples(cfg, range(earlier, later))
        for result, cfg in zip(results, map(series.read_config, results), strict=True)
        for (earlier, _), (later, _) in pairwise(list_evaluations(result))
    ]
    interval = max(intervals, default=0)
    return Column("plateau", f"plateau (rows, seen every {interval:,.0f})", ",.0f")


def measure_plateau(results: Sequence[dict]) -> dict[str, Estimate | str]:
    """The examples until PLATEAU_SHARE of the way was made; nothing without the floor or an earlier evaluation."""
    if not has_curves(results):
        return {}
    evaluations = [result["evaluation"] for result in results]
    targets = [(1 - PLATEAU_SHARE) * values["unigram_loss"] + PLATEAU_SHARE * values["floor"] for values in evaluations]
    steps = [find_step(result, target) for result, target in zip(results, targets, strict=True)]
    count_examples = lambda result, step: phases.count_examples(series.read_config(result), range(step))
    return {"plateau": summarize(results, steps, count_examples, ",.0f")}


def has_curves(results: Sequence[dict]) -> bool:
    """Whether the floor is known, and each run was evaluated before its end."""
    return all("floor" in result["evaluation"] and len(list_evaluations(result)) > 1 for result in results)


def find_step(result: dict, target: float) -> int | None:
    """The first evaluated step whose held-out loss was at most the target; None: none was."""
    return next((step for step, loss in list_evaluations(result) if loss <= target), None)


def list_evaluations(result: dict) -> list[tuple[int, float]]:
    """The step and the held-out loss of each evaluation of a run."""
    return [(record["step"], record["eval_loss"]) for record in result["history"] if "eval_loss" in record]


def summarize(
    results: Sequence[dict], steps: Sequence[int | None], measure: Callable[[dict, int], float], form: str
) -> Estimate | str:
    """The mean over seeds of measure(result, step); text, with ">", where some run never came so far."""
    if None not in steps:
        pairs = zip(results, steps, strict=True)
        return estimate_mean(measure(result, step) for result, step in pairs if step is not None)
    ends = [measure(result, list_evaluations(result)[-1][0]) for result in results]
    if not any(steps):
        return f"> {min(ends):{form}}"
    return ", ".join(
        f"> {end:{form}}" if step is None else f"{measure(result, step):{form}}"
        for result, step, end in zip(results, steps, ends, strict=True)
    )
