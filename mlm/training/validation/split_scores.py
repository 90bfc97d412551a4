"""Evaluation over a whole split: a column of numbers per sum, one number per example; then scores with their errors."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score, compute_score
from mlm.data.rows import loader, pack
from mlm.training.step import parallel, update
from mlm.training.step.program import Program, make_eval_hparams

Columns = dict[str, np.ndarray]  # a number for each example


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
