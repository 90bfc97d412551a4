"""Which held-out rows and masks runs were judged on: losses over different ones do not compare."""
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlm.base import config, fields
from mlm.base.estimates import scores_of
from mlm.report.series import EXCESS

SETTINGS = re.compile(r"(data|tokenizer|pack)\.|eval\.(?!rates)|objective|model\.sees")  # decide of rows and questions
OPTIMUM = "the loss less its excess"


class Judged(NamedTuple):
    """Runs that were judged on the same rows and masks: the name of these in a table, what they are, and the runs."""

    name: str
    about: str
    runs: list[dict]


def alike(a: dict, b: dict) -> bool:
    """Whether two runs were judged by the same score on the same rows and masks, as far as their numbers tell.

    They weigh every row alike, and what is known without a model is the same: the optimum's loss, which knows nothing
    of what was trained on, or else the references', the unigram's among them.
    """
    weight, other = (scores_of(run)[0].columns[-1] for run in (a, b))
    found, of_b = a["evaluation"], b["evaluation"]
    if weight != other or any(found.get(name) != of_b.get(name) for name in ("rows", "predictions")):
        return False
    by_row = [(run.get("held_out") or {}).get(weight) for run in (a, b)]
    if all(one is not None for one in by_row) and not np.array_equal(*by_row):
        return False
    known, of_other = known_alone(a), known_alone(b)
    shared = [OPTIMUM] if OPTIMUM in known and OPTIMUM in of_other else known.keys() & of_other.keys()
    return all(math.isclose(known[name], of_other[name], rel_tol=1e-6, abs_tol=1e-6) for name in shared)


def known_alone(run: dict) -> dict[str, float]:
    """What is known without the model about the rows and masks that a run was judged on."""
    every, found = scores_of(run), run["evaluation"]
    known = {score.name: found[score.name] for score in every if score.reference and score.name in found}
    for score in every:
        if score.columns[0] == EXCESS and score.name in found:
            known[OPTIMUM] = found[every[0].name] - found[score.name]
    return known


def judged(results: Sequence[dict]) -> list[Judged]:
    """The runs by what they were judged on, in the order they come."""
    sets: list[list[dict]] = []
    for result in results:
        for runs in sets:
            if alike(runs[0], result):
                runs.append(result)
                break
        else:
            sets.append([result])
    return [Judged(chr(ord("A") + place % 26) * (1 + place // 26), about(runs, sets), runs)
            for place, runs in enumerate(sets)]


def about(runs: Sequence[dict], sets: Sequence[Sequence[dict]]) -> str:
    """What these runs were judged on: rows, predictions, and the settings that tell them from the other sets."""
    counts = [f"{runs[0]['evaluation'][name]:,} {name}" for name in ("rows", "predictions")
              if name in runs[0]["evaluation"]]
    apart = []
    for name in filter(SETTINGS.match, fields.flatten(config.Config(), results_only=True)):
        values = [{str(run["config"].get(name)) for run in of} for of in sets]
        if len(set.union(*values)) > 1 and all(len(of) == 1 for of in values):
            apart.append(f"{name} {str(runs[0]['config'].get(name))[:60]}")
    return ", ".join([*counts, *(apart or ["under the same settings"])])


def note(sets: Sequence[Judged]) -> str:
    """What is said below a table of runs that were judged on different rows."""
    return ("Judged on " + "; ".join(f"{one.name}: {one.about}" for one in sets)
            + ". Scores on different rows or masks do not compare.")
