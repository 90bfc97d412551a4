"""Texts of [MASK]s filled place by place, each with those before it in sight: left to right, or the surest first.

The surest first, k places at once, is how MaskGIT (Chang et al. 2022, arXiv 2202.04200, section 3.2) and LLaDA (Nie et
al. 2025, arXiv 2502.09992, section 2.4) write with a model that was trained to tell what is hidden.
"""
from typing import Any

import jax
import jax.numpy as jnp

from mlm.base import types
from mlm.base.special import MASK, SEP
from mlm.inference import sampling
from mlm.inference.decoding import NEVER
from mlm.inference.masked_queries import text

ORDERS = ("left", "confidence")


def unmask(model: types.Model, params: Any, ids_BxL, key_B, temperature, top_k, top_p, at_once, *, order: str,
           draws: bool):
    """(ids_BxL without [MASK], log_prob_B in nats of what was filled in, each as it was at its turn).

    params: "model", as a run keeps them. at_once: places of a row that one pass of the model fills; traced, as what
    sample.drawn takes is, of which nothing counts where the likeliest are taken (draws False).
    """
    B, L = ids_BxL.shape
    place_L = jnp.arange(L)

    def fill(carry):
        ids_BxL, log_prob_B, step = carry
        h_BxLxD = model.encode(params["model"], text(ids_BxL))[0]
        logits_NxV = model.logits(params["model"], h_BxLxD).reshape(B * L, -1)
        logits_NxV = sampling.without(logits_NxV.astype(jnp.float32), (*NEVER, SEP))
        choose = sampling.likeliest
        if draws:
            key_N = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, place_L))(key_B).reshape(-1)
            choose = sampling.drawn(key_N, temperature, top_k, top_p)
        id_N = choose(logits_NxV, step).astype(jnp.int32)
        sure_N = jnp.take_along_axis(jax.nn.log_softmax(logits_NxV), id_N[:, None], 1)[:, 0]
        sure_BxL, id_BxL, hidden_BxL = sure_N.reshape(B, L), id_N.reshape(B, L), ids_BxL == MASK
        first_BxL = jnp.where(hidden_BxL, sure_BxL if order == "confidence" else -place_L, -jnp.inf)
        rank_BxL = (-first_BxL).argsort(-1).argsort(-1)
        now_BxL = hidden_BxL & (rank_BxL < at_once)
        return (jnp.where(now_BxL, id_BxL, ids_BxL), log_prob_B + jnp.where(now_BxL, sure_BxL, 0).sum(-1), step + 1)

    first = ids_BxL, jnp.zeros(B), jnp.int32(0)
    return jax.lax.while_loop(lambda carry: (carry[0] == MASK).any(), fill, first)[:2]
