"""Runs by group and by the examples they were evaluated on, the scores they share, and lines of these for figures.

A run is a dict: its result, with "evaluations", "summary" and "evaluation_scores" (of the trained model), "history"
(the logged records) and "held_out" (columns by example, or None). A group is the runs that differ in their seed only.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm.base import config, fields, groups
from mlm.base.estimates import Estimate, Score, estimate_mean, read_first_score, read_scores, seed_range

EXCESS = "excess_nats"  # the column of the excess loss, the loss minus its floor
# Config fields that determine the examples and masks.
EVALUATION_FIELDS = re.compile(r"(data|tokenizer|pack)\.|eval\.(?!mask_rates)|objective|model\.directionality")
FLOOR = "loss minus excess loss"
MAX_DIFFERENCES = 3  # config fields that a description of examples names
UNIGRAM = "unigram"  # the reference that predicts each token by its frequency


class EvaluationSet(NamedTuple):
    """Examples and masks that several runs share: their name in a table, a description, and the runs."""

    name: str
    description: str
    runs: list[dict]


class Series(NamedTuple):
    """A line: its name, its x values (numbers, or names of classes), and its y values."""

    name: str
    x: list
    y: list[Estimate]


def group_name(result: dict) -> str:
    """The group of a run: as `assign_groups` set it, or the name of its directory without "-seedN" and fingerprint."""
    folder = Path(result["config"]["workdir"]).name
    return result.get("group", re.sub(r"(-seed\d+)?(-[0-9a-f]{6})?$", "", folder))


def assign_groups(experiment, results: Sequence[dict]) -> list[dict]:
    """The runs, each with its "group" by the experiment's own rule, if it has one."""
    group = getattr(experiment, "group", group_name)
    return [result | {"group": group(result)} for result in results]


def group_runs(results: Sequence[dict]) -> dict[str, list[dict]]:
    """Runs by the name of their group, in the order of the results."""
    return groups.group_values((group_name(result), result) for result in results)


def read_config(result: dict) -> config.Config:
    """The config of a run, without fields that this version does not have."""
    changed = {name: value for name, value in result["config"].items() if fields.DEFAULT.get(name, value) != value}
    return fields.override(config.Config(), changed)


def collect_scores(results: Sequence[dict]) -> list[Score]:
    """The scores of all runs; units that differ between runs are joined by "or"."""
    scores = {}
    for result in results:
        for score in read_scores(result):
            first = scores.get(score.name, score)
            units = dict.fromkeys([*first.unit.split(" or "), score.unit])
            scores[score.name] = first._replace(unit=" or ".join(units))
    return list(scores.values())


def select_primary_score(results: Sequence[dict]) -> Score:
    """The score that tables and charts show first: the excess loss if all runs have it, else the first score."""
    scores = collect_scores(results)
    excess = [score for score in scores if score.columns[0] == EXCESS and is_common(results, score)]
    return (excess or scores)[0]


def is_common(results: Sequence[dict], score: Score) -> bool:
    """Whether all runs have the score."""
    return all(score.name in result["evaluation"] for result in results)


def find_shared_value(results: Sequence[dict], score: Score) -> float | None:
    """The value of a score that is equal in all runs up to rounding, else None."""
    values = [result["evaluation"].get(score.name, math.nan) for result in results]
    return values[0] if all(math.isclose(value, values[0], rel_tol=1e-6) for value in values) else None


def find_references(results: Sequence[dict], name: str) -> list[Score]:
    """The references of the score `name`."""
    return [score for score in collect_scores(results) if score.reference and score.reference_for == name]


def find_floor(results: Sequence[dict], name: str) -> Score | None:
    """The reference of the score `name` that is the floor: the one from which the excess loss is counted."""
    first, excess = collect_scores(results)[0], select_primary_score(results)
    if excess.columns[0] != EXCESS:
        return None
    evaluations = [result["evaluation"] for result in results]
    values = next((one for one in evaluations if math.isfinite(one[excess.name])), evaluations[0])
    floor = values[first.name] - values[excess.name]
    names = {
        score.reference
        for score in find_references(results, first.name)
        if math.isclose(values.get(score.name, math.nan), floor, abs_tol=1e-6)
    }
    return next((score for score in find_references(results, name) if score.reference in names), None)


def are_comparable(a: dict, b: dict) -> bool:
    """Whether two runs have the same primary score on the same examples and masks, as far as their results tell.

    The weights of all examples are equal, and so are the reference values: the floor, which does not depend on the
    training data, or else the other references, such as the unigram loss.
    """
    weight, weight_b = (read_first_score(run).columns[-1] for run in (a, b))
    values_a, values_b = a["evaluation"], b["evaluation"]
    if weight != weight_b or any(values_a.get(name) != values_b.get(name) for name in ("rows", "predictions")):
        return False
    weight_a_N, weight_b_N = ((run.get("held_out") or {}).get(weight) for run in (a, b))
    if weight_a_N is not None and weight_b_N is not None and not np.array_equal(weight_a_N, weight_b_N):
        return False
    references_a, references_b = collect_reference_values(a), collect_reference_values(b)
    has_floor = FLOOR in references_a and FLOOR in references_b
    shared = [FLOOR] if has_floor else references_a.keys() & references_b.keys()
    return all(math.isclose(references_a[name], references_b[name], rel_tol=1e-6, abs_tol=1e-6) for name in shared)


def collect_reference_values(run: dict) -> dict[str, float]:
    """The values of a run's evaluation that do not depend on its model: references, and the floor."""
    scores, values = read_scores(run), run["evaluation"]
    references = {score.name: values[score.name] for score in scores if score.reference and score.name in values}
    for score in scores:
        if score.columns[0] == EXCESS and math.isfinite(values.get(score.name, math.nan)):
            references[FLOOR] = values[scores[0].name] - values[score.name]
    return references


def group_by_examples(results: Sequence[dict]) -> list[EvaluationSet]:
    """The runs by examples and masks, in the order of the results."""
    sets: list[list[dict]] = []
    for result in results:
        runs = next((runs for runs in sets if are_comparable(runs[0], result)), None)
        if runs is None:
            sets.append(runs := [])
        runs.append(result)
    return [
        EvaluationSet(chr(ord("A") + index % 26) * (1 + index // 26), describe_set(runs, sets), runs)
        for index, runs in enumerate(sets)
    ]


def describe_set(runs: Sequence[dict], sets: Sequence[Sequence[dict]]) -> str:
    """The counts of a set, and the fields in which sets differ; of many those that differ most and are no default."""
    values, titles = runs[0]["evaluation"], {"rows": "sequences", "predictions": "predictions"}
    parts = [f"{values[name]:,} {title}" for name, title in titles.items() if name in values]
    found = []
    for name in filter(EVALUATION_FIELDS.match, fields.flatten(config.Config(), results_only=True)):
        settings = [{str(run["config"].get(name)) for run in members} for members in sets]
        if (count := len(set.union(*settings))) > 1 and all(len(members) == 1 for members in settings):
            found.append((-count, name, str(runs[0]["config"].get(name))))
    if len(found) > MAX_DIFFERENCES:
        found = sorted(one for one in found if one[2] != str(fields.DEFAULT[one[1]]))
    parts += [f"{name} {value[:60]}" for _, name, value in found[:MAX_DIFFERENCES]]
    return ", ".join(parts) + (" and more" if len(found) > MAX_DIFFERENCES else "")


def evaluations_by_rate(result: dict) -> dict[float, dict]:
    """The evaluations at other masking rates (config.eval.mask_rates), by rate."""
    return {evaluation["rate"]: evaluation for evaluation in result["evaluations"].get("mask_rates", {}).values()}


def probe_results(result: dict) -> dict[str, dict]:
    """The results of the probes of the built-in language, by probe."""
    return result["evaluations"].get("grammar_probes", {})


def merge_by_step(records: Sequence[dict]) -> dict[int, dict]:
    """One record per step, with the entries of all records of that step."""
    merged = {}
    for record in records:
        merged.setdefault(record["step"], {}).update(record)
    return merged


def build_curves(histories: dict[str, list[dict[int, dict]]], x: str, y: str) -> list[Series]:
    """A line per group: the mean over seeds, with the lowest and highest seed, at the steps that all seeds have.

    The bounds are the range, since Student's interval of two or three seeds is wider than the figure. x: "step", or a
    running total in the history such as "tokens", averaged over seeds; y: a metric in the history.
    """
    lines = []
    for name, seeds in histories.items():
        logged = [{step for step, record in seed.items() if x in record and y in record} for seed in seeds]
        steps = sorted(set.intersection(*logged))
        if steps:
            x_NxS, y_NxS = (np.array([[seed[step][axis] for step in steps] for seed in seeds]) for axis in (x, y))
            lines.append(Series(name, x_NxS.mean(0).tolist(), [estimate_range(y_N) for y_N in y_NxS.T]))
    return lines


def estimate_range(values: Sequence[float] | np.ndarray) -> Estimate:
    """The mean with the lowest and highest seed; of one seed without bounds."""
    return seed_range(values) if len(values) > 1 else estimate_mean(values)


def format_range(low: int, high: int | None) -> str:
    """The name of a class by its bounds; high None: it has no upper bound."""
    if high is None:
        return f"≥{low}"
    return str(low) if low == high else f"{low}\N{EN DASH}{high}"


def reference_by_rate(results: Sequence[dict], reference: Score) -> dict[float, float]:
    """A reference's value at each masking rate, where it is equal in all runs that have it."""
    by_rate = groups.group_values(
        (rate, evaluation[reference.name])
        for result in results
        for rate, evaluation in evaluations_by_rate(result).items()
        if reference.name in evaluation
    )
    return {
        rate: values[0]
        for rate, values in by_rate.items()
        if all(math.isclose(value, values[0], rel_tol=1e-6, abs_tol=1e-6) for value in values)
    }
