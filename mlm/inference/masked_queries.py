"""Log-probabilities of masked tokens, one query per sequence."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlm.base import types
from mlm.base.special import MASK, PAD
from mlm.training.step import parallel


class MaskedQueries(NamedTuple):
    """A batch of sequences, each of which masks positions `position` to `end` - 1 and queries the first. All int32."""

    ids_BxL: types.Array  # [CLS] tokens [SEP] and PAD, not masked yet
    position_B: types.Array
    end_B: types.Array


def make_tokens(ids_BxL) -> types.Tokens:
    """Sequences of one segment, which is all that is not PAD."""
    is_token_BxL = ids_BxL != PAD
    position_BxL = jnp.broadcast_to(jnp.arange(ids_BxL.shape[1], dtype=ids_BxL.dtype), ids_BxL.shape)
    return types.Tokens(
        ids_BxL, is_token_BxL.astype(ids_BxL.dtype), jnp.where(is_token_BxL, position_BxL, 0), jnp.zeros_like(ids_BxL)
    )


def compute_log_probs(model: types.Model, params, queries: MaskedQueries) -> jax.Array:
    """log_prob_BxV, in nats, of each vocabulary entry at the queried position. params: as a run stores them."""
    ids_BxL, query_Bx1 = queries.ids_BxL, queries.position_B[:, None]
    position_BxL = jnp.broadcast_to(jnp.arange(ids_BxL.shape[1], dtype=ids_BxL.dtype), ids_BxL.shape)
    mask_BxL = (query_Bx1 <= position_BxL) & (position_BxL < queries.end_B[:, None])
    tokens = make_tokens(ids_BxL)._replace(ids_BxL=jnp.where(mask_BxL, MASK, ids_BxL))
    h_BxLxD = model.encode(params["model"], tokens)[0]
    h_BxD = jnp.take_along_axis(h_BxLxD, query_Bx1[..., None], axis=1)[:, 0]
    return jax.nn.log_softmax(model.logits(params["model"], h_BxD), axis=-1)


def compute_target_log_prob(model: types.Model, params, queries: MaskedQueries, hparams=None) -> jax.Array:
    """log_prob_B of the queried tokens. hparams: unused; `Partitioner.jit_per_example` passes them."""
    target_Bx1 = jnp.take_along_axis(queries.ids_BxL, queries.position_B[:, None], axis=1)
    return jnp.take_along_axis(compute_log_probs(model, params, queries), target_Bx1, axis=1)[:, 0]


def make_scorer(
    model: types.Model, partitioner: parallel.Partitioner, state, function=compute_target_log_prob, *static_args
) -> Callable[[Any], Any]:
    """A function of (model, *static_args, params, batch, hparams) as a function of a batch, on all devices of all
    processes. Each process passes the whole batch.
    """
    run_batch = partitioner.jit_per_example(function, model, *static_args)

    def score(batch):
        local_batch = jax.tree.map(lambda x: x[parallel.process_slice(len(x))], batch)
        return run_batch(state, partitioner.put_batch(local_batch), None)

    return score
