"""The values that pass between the rooms. Arrays carry their shape in their name, one letter an axis:

B rows of a batch, L tokens of a row, K masked slots of a row, D width, V vocabulary, S devices.
"""
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Params = Any  # a tree of arrays


class Batch(NamedTuple):
    """Rows as they were packed, before masking. All int32; PAD fills where segments_BxL is 0."""

    ids_BxL: jax.Array
    segments_BxL: jax.Array   # tokens see each other where this is equal; 0 on padding
    positions_BxL: jax.Array  # of a token in its segment, from 0
    types_BxL: jax.Array      # sentence kind: 0, or 1 in the second segment of a pair
    label_B: jax.Array        # 1 where the second segment is the true next one, else 0
    index_B: jax.Array        # names the row in random draws: its slot in the global batch; in evaluation, in the split
    row_B: jax.Array | None = None    # in training: its number in the split,
    epoch_B: jax.Array | None = None  # and how often all rows came before it; None: it has no static mask


class Knobs(NamedTuple):
    """Scalars of a run that are traced: changing one never recompiles."""

    seed: jax.Array           # uint32
    mask_rate: jax.Array      # share of a row's eligible tokens; within a step, that step's
    mask_final_rate: jax.Array  # what mask_rate comes to by the end of training; 0: it stays
    mask_predict: jax.Array   # share of a row's eligible tokens that is predicted, over all its masks; 0: the corrupted
    mask_copies: jax.Array    # int32, static masks of a row; 0: dynamic
    mask_cosine: jax.Array    # 1: it goes there along half a cosine, 0: along a line
    mask_share: jax.Array     # of those: replaced by [MASK]
    random_share: jax.Array   # of those: replaced by a random token
    learning_rate: jax.Array
    weight_decay: jax.Array


class TrainState(NamedTuple):
    step: jax.Array           # int32, updates made
    params: Params
    opt_state: Any


class Model(NamedTuple):
    """An encoder and its output layer as pure functions.

    Random draws take one key a row (key_B), so that they do not depend on how rows are spread over devices.
    """

    init: Callable            # (key) -> params
    encode: Callable          # (params, batch, *, key_B=None) -> h_BxLxD; key_B None: evaluation, no dropout
    logits: Callable          # (params, h_...xD) -> logits_...xV, float32
    head: Callable | None = None  # (params, h_...xD) -> h_...xD, table_VxD, bias_V, of which h @ table.T + bias are the
                                  # logits; None: a loss cannot, or should not, take its own way through them


class Objective(NamedTuple):
    """A loss as sums over each row, never as means: rows hold different numbers of masked tokens."""

    init: Callable            # (key) -> parameters of the objective's own head ({} for mlm)
    loss: Callable            # (params, model, batch, key_B, knobs, *, train, view=0) -> Losses; view: under which of
                              # each row's disjoint masks


class Losses(NamedTuple):
    """What is minimised is the sum over terms of (sum of loss over the global batch) / (sum of weight over it)."""

    loss_B: dict[str, jax.Array]    # term -> nats
    weight_B: dict[str, jax.Array]  # term -> predictions made; depends on no parameter
    sums_B: dict[str, jax.Array]    # what else is worth counting: correct predictions, ...
