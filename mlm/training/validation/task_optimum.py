"""The Bayes-optimal accuracy on a task of the built-in language, on the same examples as a model's evaluation.

Letters in array names: E examples of the task, N packed examples.
"""

# NumPy 2.5 types some functions in part.
# pyright: reportUnknownMemberType=false
from pathlib import Path
from typing import Any

import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score, make_reference
from mlm.data.language import tasks
from mlm.data.language.synthetic_task import SyntheticExample
from mlm.data.rows import loader, pack, store

ACCURACY_SCORES = ("accuracy", "exact")  # scores that count correct predictions, whose optimum is known


def compute_columns(cfg: config.Config, packed: pack.PackedDataset) -> dict[str, np.ndarray]:
    """For each held-out example, how much the Bayes-optimal prediction gets right ("optimum_right") of how much
    ("optimum_weight"). It is the same for every model, and config.data.cache_dir keeps it.
    """
    task = tasks.TASKS[cfg.data.task]

    def make(folder: Path) -> dict[str, Any]:
        examples = pack.read_examples(cfg, packed, "validation")
        rows = [SyntheticExample(*(example[name] for name in SyntheticExample._fields)) for example in examples]
        best = task.score_optimum(cfg.data.language, rows)
        np.savez(folder / "best.npz", **best._asdict(), row_E=np.array([example["row"] for example in examples]))
        return {}

    folder, _ = store.get_or_make_folder(
        cfg.data.cache_dir, "optimum", {"format": tasks.FORMAT, "rows": packed.manifest["inputs"]}, make
    )
    count = loader.count_eval_examples(packed.validation, cfg.eval.max_examples)
    with np.load(folder / "best.npz") as best:
        is_used_E = best["row_E"] < count
        right_N, weight_N = np.zeros(count), np.zeros(count)
        right_N[best["row_E"][is_used_E]] = best["right_N"][is_used_E]
        weight_N[best["row_E"][is_used_E]] = best["weight_N"][is_used_E]
    return {"optimum_right": right_N, "optimum_weight": weight_N}


def make_scores(objective: types.Objective) -> tuple[Score, ...]:
    """The Bayes-optimal accuracy beside the model's, and how far below it the model is, example by example."""
    accuracy = next(score for score in objective.scores if score.name in ACCURACY_SCORES)
    columns, title = ("shortfall", accuracy.columns[-1]), f"Bayes optimum's {accuracy.title.removeprefix('held-out ')}"
    return (
        make_reference(accuracy, "optimum", title, ("optimum_right",), "Bayes optimum"),
        Score("shortfall", f"{accuracy.title} below the optimum", columns, better=-1, chart=True),
    )


def add_columns(
    columns: dict[str, np.ndarray], optimum_columns: dict[str, np.ndarray], objective: types.Objective
) -> dict[str, np.ndarray]:
    """A model's columns with the optimum's. Raises ValueError if the model predicted other labels."""
    accuracy = next(score for score in objective.scores if score.name in ACCURACY_SCORES)
    right, weight = accuracy.columns
    if not np.array_equal(columns[weight], optimum_columns["optimum_weight"]):
        raise ValueError("the optimum was computed of other labels than the evaluation's")
    return columns | {
        "optimum_right": optimum_columns["optimum_right"],
        "shortfall": optimum_columns["optimum_right"] - columns[right],
    }
