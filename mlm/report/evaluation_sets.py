"""The held-out examples and masks of an evaluation; scores on different ones are not comparable."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlm.base import config, fields
from mlm.base.estimates import read_first_score, read_scores
from mlm.report.series import EXCESS

# Config fields that determine the examples and masks.
EVALUATION_FIELDS = re.compile(r"(data|tokenizer|pack)\.|eval\.(?!mask_rates)|objective|model\.directionality")
FLOOR = "loss minus excess loss"


class EvaluationSet(NamedTuple):
    """Examples and masks that several runs share: their name in a table, a description, and the runs."""

    name: str
    description: str
    runs: list[dict]


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
        if score.columns[0] == EXCESS and score.name in values:
            references[FLOOR] = values[scores[0].name] - values[score.name]
    return references


def group_runs(results: Sequence[dict]) -> list[EvaluationSet]:
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
    """The numbers of examples and predictions, and the config fields in which the sets differ."""
    values, titles = runs[0]["evaluation"], {"rows": "sequences", "predictions": "predictions"}
    counts = [f"{values[name]:,} {title}" for name, title in titles.items() if name in values]
    differences = []
    for name in filter(EVALUATION_FIELDS.match, fields.flatten(config.Config(), results_only=True)):
        settings = [{str(run["config"].get(name)) for run in members} for members in sets]
        if len(set.union(*settings)) > 1 and all(len(members) == 1 for members in settings):
            differences.append(f"{name} {str(runs[0]['config'].get(name))[:60]}")
    return ", ".join([*counts, *(differences or ["the same settings"])])
