"""Predicted and true labels of a task's split: confusion matrix, precision and recall of each class, pairs of numbers.

Letters in array names: C classes, P predictions.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlm.base import config
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES, LabelKind, has_kind
from mlm.data.rows import pack

MAX_CLASSES, MAX_POINTS = 200, 1000  # of a stored matrix; pairs of numbers that are stored


def count_labels(
    cfg: config.Config, packed: pack.PackedDataset, columns: Mapping[str, np.ndarray], split: str = "validation"
) -> dict[str, Any]:
    """What stands beside the scores of a fine-tuned run: {} for a run that has neither classes nor numbers.

    "classes" has for each class its name, its "examples", how often it was "predicted", "precision", "recall" and "f1",
    0 where nothing was predicted, or is there to be found; "confusion" the number of examples of each class by what was
    predicted, for up to MAX_CLASSES; "points" of a regression [true, predicted] of the first MAX_POINTS examples.
    """
    row = LABELLED_OBJECTIVES.get(cfg.objective)
    if row is None or "predicted" not in columns:
        return {}
    predicted, arrays = columns["predicted"], packed.get_split(split)
    if has_kind(cfg.objective, LabelKind.NUMBER):
        pairs = zip(np.asarray(arrays["value"][: len(predicted)]), predicted, strict=True)
        return {"points": [[float(true), float(found)] for true, found in list(pairs)[:MAX_POINTS]]}
    if not (row.classifies_texts or row.tags_words):
        return {}
    names = packed.dataset_info.classes
    label = np.asarray(arrays[row.word_column or "label"][: len(predicted)])
    actual_P, found_P = label[label >= 0].astype(int), predicted[label >= 0].astype(int)
    count_CxC = np.bincount(actual_P * len(names) + found_P, minlength=len(names) ** 2).reshape(len(names), -1)
    right_C, actual_C, found_C = np.diag(count_CxC), count_CxC.sum(1), count_CxC.sum(0)
    measures = {"precision": found_C, "recall": actual_C, "f1": (found_C + actual_C) / 2}
    shares = {name: (right_C / np.maximum(count_C, 0.5)).tolist() for name, count_C in measures.items()}
    counts = {"class": names, "examples": actual_C.tolist(), "predicted": found_C.tolist(), **shares}
    classes = [dict(zip(counts, values, strict=True)) for values in zip(*counts.values(), strict=True)]
    return {"classes": classes} | ({"confusion": count_CxC.tolist()} if len(names) <= MAX_CLASSES else {})
