"""The best possible score of a task of the built-in language, on the very rows that a model is judged on.

Letters in array names: E examples, N rows.
"""
import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.data.language import tasks
from mlm.data.language.labelled import Example
from mlm.data.rows import loader, pack, store

RIGHT = ("accuracy", "exact")  # scores that count what is right, which the optimum is known of


def columns(cfg: config.Config, packed: pack.Packed) -> dict[str, np.ndarray]:
    """Of each held-out row, what the Bayes-optimal prediction gets right ("optimum_right") and of how much
    ("optimum_weight"). Kept under config.data.cache, as it is the same for every model.
    """
    task = tasks.TASKS[cfg.data.task]

    def make(folder):
        found = pack.told(cfg, packed, "validation")
        best = task.best(cfg.data.language, [Example(*(one[name] for name in Example._fields)) for one in found])
        np.savez(folder / "best.npz", **best._asdict(), row_E=np.array([one["row"] for one in found]))
        return {}

    folder, _ = store.made(cfg.data.cache, "optimum", {"format": tasks.FORMAT, "rows": packed.manifest["inputs"]}, make)
    count = loader.judged_rows(packed.validation, cfg.eval.max_examples)
    with np.load(folder / "best.npz") as best:
        kept_E = best["row_E"] < count
        right_N, weight_N = np.zeros(count), np.zeros(count)
        right_N[best["row_E"][kept_E]] = best["right_N"][kept_E]
        weight_N[best["row_E"][kept_E]] = best["weight_N"][kept_E]
    return {"optimum_right": right_N, "optimum_weight": weight_N}


def scores(objective: types.Objective) -> tuple[Score, ...]:
    """The optimum beside the model's share of right predictions, and how far below it the model is, row by row."""
    judged = next(score for score in objective.scores if score.name in RIGHT)
    weight = judged.columns[-1]
    return (Score("optimum", f"exact optimum's {judged.title.removeprefix('held-out ')}", ("optimum_right", weight),
                  share=True, reference="exact optimum", beside=judged.name),
            Score("shortfall", f"{judged.title} below the optimum", ("shortfall", weight), better=-1, chart=True))


def add(columns: dict, known: dict, objective: types.Objective) -> dict:
    """A model's columns with the optimum's. Raises ValueError where the model was asked for other things."""
    judged = next(score for score in objective.scores if score.name in RIGHT)
    right, weight = judged.columns
    if not np.array_equal(columns[weight], known["optimum_weight"]):
        raise ValueError("the optimum was computed of other labels than the evaluation's")
    return columns | {"optimum_right": known["optimum_right"], "shortfall": known["optimum_right"] - columns[right]}
