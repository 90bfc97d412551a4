"""Evaluation over a whole split: a column of numbers per sum, one number per example; then scores with their errors.

Of a task also the predicted and true labels. Letters in array names: C classes, P predictions.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score, compute_score
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES, LabelKind, has_kind
from mlm.data.rows import loader, pack
from mlm.training.step import parallel, update
from mlm.training.step.program import Program, make_eval_hparams

Columns = dict[str, np.ndarray]  # a number for each example
MAX_CLASSES, MAX_POINTS = 200, 1000  # of a stored matrix; pairs of numbers that are stored


def name_sums(losses: types.LossSums | types.BatchSums) -> dict[str, types.Array]:
    """The sums of each example, or of a batch, by the names that an objective's scores use."""
    loss, weight, sums = losses
    return {f"{term}_nats": x for term, x in loss.items()} | {f"{term}_weight": x for term, x in weight.items()} | sums


def collect_columns(cfg: config.Config, program: Program, state: Any, rows: loader.Columns) -> Columns:
    """The sums of each example of a split under the evaluation's hparams, as numpy arrays over the examples."""
    eval_step = program.partitioner.jit_per_example(update.eval_step, program.model, program.objective)
    hparams = make_eval_hparams(cfg)
    order_N = loader.sort_by_length(rows, cfg.eval.max_examples)
    settings = {"batch_size": cfg.eval.batch_size, "max_rows": cfg.eval.max_examples}
    batches = loader.iterate_eval_batches(rows, **settings, order_N=order_N, **parallel.get_process_position())
    columns: Columns = {}
    for number, batch in enumerate(batches):
        index_B = order_N[number * cfg.eval.batch_size :][: cfg.eval.batch_size]  # padding fills up the last batch
        for name, x_Bx in name_sums(eval_step(state, program.partitioner.put_batch(batch), hparams)).items():
            is_per_token = x_Bx.shape[1:] == batch.text.ids_BxL.shape[1:]  # a batch may be cut to its longest example
            shape = rows["ids"].shape[1:] if is_per_token else x_Bx.shape[1:]
            x_Nx = columns.setdefault(name, np.zeros((len(order_N), *shape), x_Bx.dtype))
            x_Nx[(index_B, *map(slice, x_Bx.shape[1:]))] = x_Bx[: len(index_B)]
    return columns


def evaluate_split(
    cfg: config.Config,
    program: Program,
    state: Any,
    packed: pack.PackedDataset,
    split: str = "validation",
    extra: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Columns:
    """The columns of a split, with those that the objective computes on the host; extra: columns to add before that."""
    rows = packed.get_split(split)
    columns = {**collect_columns(cfg, program, state, rows), **extra}
    return program.objective.host_metrics(columns, rows, pack.read_examples(cfg, packed, split))


def summarize(columns: Mapping[str, np.ndarray], scores: Sequence[Score]) -> dict[str, float]:
    """Each score with its standard error (NAME_se), and the numbers of examples and of the first score's predictions.

    "unscored" counts the labels without a prediction. Raises ConfigError if nothing was predicted.
    """
    weight_N = columns[scores[0].columns[-1]]
    errors.require(weight_N.sum() > 0, "held-out predictions", 0, "some: a higher config.eval.mask_rate, or more rows")
    result: dict[str, float] = {"rows": len(weight_N), "predictions": int(weight_N.sum())}
    if "unscored" in columns:
        result["unscored"] = int(columns["unscored"].sum())
    for score in scores:
        result[score.name], result[f"{score.name}_se"] = compute_score(score, columns)
    return result


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
