"""Evaluation over a whole split: columns by row, then scores of them with their errors."""
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score, measure
from mlm.data.rows import loader, pack
from mlm.train.step import parallel, update
from mlm.train.step.program import Program, frozen

Columns = dict[str, np.ndarray]  # a number for each row


def named(losses: types.LossSums) -> dict:
    """The sums of an objective by the names that its scores know them by."""
    return ({f"{term}_nats": x for term, x in losses.loss_B.items()}
            | {f"{term}_weight": x for term, x in losses.weight_B.items()} | losses.sums_B)


def collect(cfg: config.Config, program: Program, state, rows: loader.Rows) -> Columns:
    """What each row of a split gives under the evaluation's knobs, as numpy arrays over the rows."""
    eval_step, knobs = program.run.per_row(update.eval_step, program.model, program.objective), frozen(cfg)
    order_N = loader.by_length(rows, cfg.eval.max_examples)
    batches = loader.eval_batches(rows, batch_size=cfg.eval.batch_size, max_rows=cfg.eval.max_examples, order_N=order_N,
                                  **parallel.process_slice())
    found: Columns = {}
    for number, batch in enumerate(batches):
        rows_B = order_N[number * cfg.eval.batch_size:][:cfg.eval.batch_size]  # more fill up the last batch
        for name, x_Bx in named(eval_step(state, program.run.put_batch(batch), knobs)).items():
            of_tokens = x_Bx.shape[1:] == batch.text.ids_BxL.shape[1:]  # which may be cut
            whole = rows["ids"].shape[1:] if of_tokens else x_Bx.shape[1:]
            x_Nx = found.setdefault(name, np.zeros((len(order_N), *whole), x_Bx.dtype))
            x_Nx[(rows_B, *map(slice, x_Bx.shape[1:]))] = x_Bx[:len(rows_B)]
    return found


def judge(cfg: config.Config, program: Program, state, packed: pack.Packed, split: str = "validation",
          known: Mapping = MappingProxyType({})) -> Columns:
    """`collect` of a split, with what of it is counted on the host; known: columns that are there beforehand."""
    rows = packed.split(split)
    columns = {**collect(cfg, program, state, rows), **known}
    return program.objective.tally(columns, rows, pack.told(cfg, packed, split))


def summary(columns: Mapping[str, np.ndarray], scores: Sequence[Score]) -> dict:
    """Each score with its standard error (NAME_se), the rows, and the predictions that the first score is over.

    Raises ConfigError where nothing was predicted.
    """
    weight_N = columns[scores[0].columns[-1]]
    errors.require(weight_N.sum() > 0, "held-out predictions", 0, "some: a higher config.eval.mask_rate, or more rows")
    result = {"rows": len(weight_N), "predictions": int(weight_N.sum())}
    for score in scores:
        result[score.name], result[f"{score.name}_se"] = measure(score, columns)
    return result
