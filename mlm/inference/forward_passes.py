"""The forward passes of LanguageModel, pure functions that it compiles."""

from typing import Literal

import jax
import jax.numpy as jnp

from mlm.base import types
from mlm.inference import masked_queries
from mlm.inference.masked_queries import MaskedQueries

POOLINGS = ("mean", "first", None)
Pooling = Literal["mean", "first"] | None


def predict_top_tokens(model: types.Model, top_k: int, params, queries: MaskedQueries):
    """(prob_BxK, id_BxK): the `top_k` likeliest tokens at each masked position."""
    log_prob_BxK, id_BxK = jax.lax.top_k(masked_queries.compute_log_probs(model, params, queries), top_k)
    return jnp.exp(log_prob_BxK), id_BxK


def encode_tokens(model: types.Model, layer: int, pooling: Pooling, params, ids_BxL):
    """h_BxD of sequences, float32, or h_BxLxD where pooling is None; layer -1: the last."""
    text = masked_queries.make_tokens(ids_BxL)
    if layer < 0:
        h_BxLxD = jnp.concatenate(model.encode(params["model"], text), -1)
    else:
        assert model.encode_layers is not None
        h_BxLxD = model.encode_layers(params["model"], text)[layer]
    h_BxLxD = h_BxLxD.astype(jnp.float32)
    if pooling == "first":
        return h_BxLxD[:, 0]
    if pooling == "mean":
        is_token_BxLx1 = (text.segments_BxL > 0)[..., None]
        return (h_BxLxD * is_token_BxLx1).sum(1) / is_token_BxLx1.sum(1)
    return h_BxLxD


def compute_logits(model: types.Model, params, ids_BxL):
    """logits_BxLxV of sequences."""
    return model.logits(params["model"], model.encode(params["model"], masked_queries.make_tokens(ids_BxL))[0])


def compute_attention(model: types.Model, params, ids_BxL):
    """weights_BxKxHxLxL, float32."""
    assert model.attention is not None
    return model.attention(params["model"], masked_queries.make_tokens(ids_BxL)).swapaxes(0, 1).astype(jnp.float32)
