"""Evaluation over a whole split under frozen masks: means, and how far chance may have moved them."""
from collections.abc import Callable, Iterable

import numpy as np

from mlm.base import errors, types
from mlm.base.estimates import ratio


def collect(eval_step: Callable, state, batches: Iterable[types.Batch], put_batch: Callable, knobs) -> types.Losses:
    """What each row of a split loses, as numpy arrays over the rows.

    batches: the split once, its last batch filled up with empty rows, which are left out here.
    """
    parts = [eval_step(state, put_batch(batch), knobs) for batch in batches]
    rows = types.Losses(*({name: np.concatenate([part[i][name] for part in parts]) for name in parts[0][i]}
                          for i in range(3)))
    real = rows.sums_B["tokens"] > 0
    return types.Losses(*({name: x[real] for name, x in field.items()} for field in rows))


def summarise(rows: types.Losses, knobs: types.Knobs, beside: Callable | None = None) -> dict:
    """Loss (nats per masked token), perplexity and accuracy with standard errors ("_se"), beside the unigram baseline.

    With nsp also that task's loss and accuracy. beside: what more to say of each row's loss and masked tokens, such as
    the gap to the floor (`gap.measure`). Raises ConfigError where no token was masked.
    """
    weight_N = rows.weight_B["mlm"]
    errors.expect(weight_N.sum() > 0, "config.eval.rate", float(knobs.mask_rate), "a rate that masks some token")
    result = {"rows": len(weight_N), "masked_tokens": int(weight_N.sum()),
              "realised_rate": float(weight_N.sum() / rows.sums_B["eligible"].sum())}
    columns = {"loss": rows.loss_B["mlm"], "accuracy": rows.sums_B["correct"],
               "unigram_loss": rows.sums_B["unigram_nats"], "unigram_accuracy": rows.sums_B["unigram_correct"]}
    for name, total_N in columns.items():
        result[name], result[f"{name}_se"] = ratio(total_N, weight_N)
    for name in ("", "unigram_"):
        result[f"{name}perplexity"] = float(np.exp(np.float64(result[f"{name}loss"])))
        result[f"{name}perplexity_se"] = result[f"{name}perplexity"] * result[f"{name}loss_se"]
    if beside is not None:
        result |= beside(rows.loss_B["mlm"], weight_N)
    if "nsp" in rows.loss_B:
        result["nsp_loss"], result["nsp_loss_se"] = ratio(rows.loss_B["nsp"], rows.weight_B["nsp"])
        result["nsp_accuracy"], result["nsp_accuracy_se"] = ratio(rows.sums_B["nsp_correct"], rows.weight_B["nsp"])
    return result
