"""Iterative unmasking: fills [MASK]s step by step, each step given the tokens of those before it.

It goes from left to right or fills the most confident positions first. Confident first, k positions per step, is how
MaskGIT (Chang et al. 2022, arXiv 2202.04200, section 3.2) and LLaDA (Nie et al. 2025, arXiv 2502.09992, section 2.4)
generate with a model that was trained to predict masked tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp

from mlm.base import types
from mlm.base.special import MASK, SEP
from mlm.inference import sampling
from mlm.inference.decoding import SUPPRESSED_IDS
from mlm.inference.masked_queries import make_tokens

UNMASK_ORDERS = ("left", "confidence")


def unmask_tokens(
    model: types.Model, unmask_order: str, is_sampled: bool, params: Any, ids_BxL, sampler_args, tokens_per_step
):
    """(ids_BxL without [MASK], log_prob_B of the filled tokens in nats, each at its step).

    Args:
        model: the model, whose states predict their own tokens.
        unmask_order: one of UNMASK_ORDERS.
        is_sampled: whether to sample the tokens; otherwise they are the likeliest.
        params: as a run stores them, with the key "model".
        ids_BxL: sequences with [MASK]s.
        sampler_args: of `sampling.make_sampler`, with a random key for each sequence.
        tokens_per_step: positions that one forward pass fills in a sequence; traced.
    """
    key_B, *settings = sampler_args
    B, L = ids_BxL.shape
    position_L = jnp.arange(L)

    def fill(carry):
        ids_BxL, log_prob_B, step = carry
        h_BxLxD = model.encode(params["model"], make_tokens(ids_BxL))[0]
        logits_NxV = model.logits(params["model"], h_BxLxD).reshape(B * L, -1)
        logits_NxV = sampling.suppress_tokens(logits_NxV.astype(jnp.float32), (*SUPPRESSED_IDS, SEP))
        select_token = sampling.select_argmax
        if is_sampled:
            key_N = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, position_L))(key_B).reshape(-1)
            select_token = sampling.make_sampler(key_N, *settings)
        id_N = select_token(logits_NxV, step).astype(jnp.int32)
        confidence_N = jnp.take_along_axis(jax.nn.log_softmax(logits_NxV), id_N[:, None], 1)[:, 0]
        confidence_BxL, id_BxL, is_masked_BxL = confidence_N.reshape(B, L), id_N.reshape(B, L), ids_BxL == MASK
        priority_BxL = jnp.where(
            is_masked_BxL, confidence_BxL if unmask_order == "confidence" else -position_L, -jnp.inf
        )
        rank_BxL = (-priority_BxL).argsort(-1).argsort(-1)
        fill_BxL = is_masked_BxL & (rank_BxL < tokens_per_step)
        return (
            jnp.where(fill_BxL, id_BxL, ids_BxL),
            log_prob_B + jnp.where(fill_BxL, confidence_BxL, 0).sum(-1),
            step + 1,
        )

    start = ids_BxL, jnp.zeros(B), jnp.int32(0)
    return jax.lax.while_loop(lambda carry: (carry[0] == MASK).any(), fill, start)[:2]
