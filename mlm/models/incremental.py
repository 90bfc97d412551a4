"""Decoding one token at a time with a causal model: the cache of each family and how a token extends it.

A cache is a tree whose leaves have the batch on axis 1. A leaf of a layer has size 1 on axis 0, and each layer has
leaves of its own, so that a loop updates them in place. Letters in array names: S slots of the cache, W of a window,
G = gates * H.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import layers
from mlm.models.attention import rotate
from mlm.models.recurrence import matmul_float32


class IncrementalDecoder(NamedTuple):
    """An encoder that reads one token at a time; `body` holds its parameters, without embeddings and output layer."""

    prefill: Callable  # (model, body, x_BxLxD, length_B, max_len) -> cache of the first length_B tokens
    step: Callable  # (model, body, x_BxD, position_B, cache) -> (h_BxD of the token at position_B, cache)


def _split_layers(model: config.Model, body):
    """The parameters of each layer of a stack; the barrier lets XLA hoist the slices out of a loop."""
    stacked, barrier = body["stack"]["layers"]["layer"], jax.lax.optimization_barrier
    return [jax.tree.map(lambda leaf, k=k: barrier(leaf[k]), stacked) for k in range(model.num_layers)]


def _apply_norm(model, params, x) -> Any:
    return layers.norm(model, "norm").apply({"params": params}, x)


def _apply_dense(model, params, x) -> Any:
    return layers.dense(model, params["kernel"].shape[1], "dense").apply({"params": params}, x)


def _pad_inputs(x, params):
    """x padded with zeros to the inputs of a dense layer: a "mixed" model's inputs from the right side."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, params["kernel"].shape[0] - x.shape[-1])])


def _apply_mlp(model, params, x) -> Any:
    return layers.MLP(model).apply({"params": params}, x)


def _transformer_layer(model, params, x_BxLxD, attend):
    """A TransformerLayer in evaluation; attend: (qkv_BxLx3D) -> out_BxLxD."""

    def attention(x):
        qkv_BxLx3D = _apply_dense(model, params["attention"]["qkv"], x)
        return _apply_dense(model, params["attention"]["out"], attend(qkv_BxLx3D))

    if model.norm_placement == "pre":
        x_BxLxD += attention(_apply_norm(model, params["attention_norm"], x_BxLxD))
        return x_BxLxD + _apply_mlp(model, params["mlp"], _apply_norm(model, params["mlp_norm"], x_BxLxD))
    x_BxLxD = _apply_norm(model, params["attention_norm"], x_BxLxD + attention(x_BxLxD))
    return _apply_norm(model, params["mlp_norm"], x_BxLxD + _apply_mlp(model, params["mlp"], x_BxLxD))


def _split_heads(model, qkv_BxLx3D, position_BxL):
    """q, k and v, each BxHxLxd."""
    B, L, width = qkv_BxLx3D.shape
    qkv_BxLx3xHxd = qkv_BxLx3D.reshape(B, L, 3, model.num_heads, width // 3 // model.num_heads)
    q, k, v = (qkv_BxLx3xHxd[:, :, i] for i in range(3))
    if model.positions == "rotary":
        q, k = rotate(q, position_BxL), rotate(k, position_BxL)
    return (x.astype(model.dtype).swapaxes(1, 2) for x in (q, k, v))


def _attend(q_BxHxLxd, k_BxHxSxd, v_BxHxSxd, visible_Bx1xLxS):
    """out_BxLxD, as in attention.attend."""
    B, H, L, d = q_BxHxLxd.shape
    scores = jnp.einsum("bhld,bhsd->bhls", q_BxHxLxd, k_BxHxSxd, preferred_element_type=jnp.float32) / d**0.5
    weights_BxHxLxS = jax.nn.softmax(jnp.where(visible_Bx1xLxS, scores, -1e9)).astype(v_BxHxSxd.dtype)
    return jnp.einsum("bhls,bhsd->bhld", weights_BxHxLxS, v_BxHxSxd).swapaxes(1, 2).reshape(B, L, H * d)


def _prefill_attention(model, body, x_BxLxD, length_B, max_len):
    """The keys and values of each layer; later tokens overwrite those of padding before any query sees them."""
    B, L, _ = x_BxLxD.shape
    position_BxL = jnp.broadcast_to(jnp.arange(L), (B, L))
    keys, values = [], []

    def attend(qkv_BxLx3D):
        q, k, v = _split_heads(model, qkv_BxLx3D, position_BxL)
        for cached, x_BxHxLxd in ((keys, k), (values, v)):
            cached.append(jnp.pad(x_BxHxLxd, ((0, 0), (0, 0), (0, max_len - L), (0, 0)))[None])
        return _attend(q, k, v, jnp.tri(L, dtype=bool))

    for params in _split_layers(model, body):
        x_BxLxD = _transformer_layer(model, params, x_BxLxD, attend)
    return {"keys": keys, "values": values}


def _decode_attention(model, body, x_BxD, position_B, cache):
    batch_B = jnp.arange(len(x_BxD))
    keys, values = [], []

    def attend(qkv_Bx1x3D):
        q, *new = _split_heads(model, qkv_Bx1x3D, position_B[:, None])
        layer = len(keys)
        for cached, name, x_BxHx1xd in zip((keys, values), ("keys", "values"), new, strict=True):
            cached.append(cache[name][layer].at[0, batch_B, :, position_B].set(x_BxHx1xd[:, :, 0]))
        visible_BxS = jnp.arange(keys[-1].shape[3]) <= position_B[:, None]
        return _attend(q, keys[-1][0], values[-1][0], visible_BxS[:, None, None])

    h_Bx1xD = x_BxD[:, None]
    for params in _split_layers(model, body):
        h_Bx1xD = _transformer_layer(model, params, h_Bx1xD, attend)
    h_BxD = _apply_norm(model, body["norm"], h_Bx1xD)[:, 0] if model.norm_placement == "pre" else h_Bx1xD[:, 0]
    return h_BxD, {"keys": keys, "values": values}


ATTENTION_DECODER = IncrementalDecoder(_prefill_attention, _decode_attention)


def build_recurrent_decoder(step: Callable, carries: int) -> IncrementalDecoder:
    """The decoder of an RNN.

    Args:
        step: of the cell, (input_BxG, recurrent_BxG, carry) -> carry, a tuple of arrays BxH.
        carries: how many arrays a carry has.
    """

    def run_layer(model, params, x_BxLxD, carry, is_token_BxL):
        """(output of the layer, carry after the last token)."""
        input_BxLxG = _apply_dense(model, params["forward_input"], _apply_norm(model, params["norm"], x_BxLxD))
        kernel_HxG, bias_G = params["forward_kernel"].astype(model.dtype), params.get("forward_bias", 0)

        def read_token(carry, inputs):
            input_BxG, is_token_B = inputs
            new = step(input_BxG, matmul_float32(carry[0], kernel_HxG) + bias_G, carry)
            carry = tuple(jnp.where(is_token_B[:, None], *pair) for pair in zip(new, carry, strict=True))
            return carry, carry[0]

        carry, h_LxBxH = jax.lax.scan(read_token, carry, (input_BxLxG.swapaxes(0, 1), is_token_BxL.T))
        h_BxLxH = _pad_inputs(h_LxBxH.swapaxes(0, 1).astype(x_BxLxD.dtype), params["out"])
        return x_BxLxD + _apply_dense(model, params["out"], h_BxLxH), carry

    def run_layers(model, body, x_BxLxD, cache, is_token_BxL):
        new_cache = []
        for params, carry in zip(_split_layers(model, body), cache, strict=True):
            x_BxLxD, carry = run_layer(model, params, x_BxLxD, tuple(x[0] for x in carry), is_token_BxL)
            new_cache.append(tuple(x[None] for x in carry))
        return _apply_norm(model, body["norm"], x_BxLxD), new_cache

    def prefill(model, body, x_BxLxD, length_B, max_len):
        B, L, _ = x_BxLxD.shape
        zero = [(jnp.zeros((1, B, model.rnn_dim)),) * carries] * model.num_layers
        return run_layers(model, body, x_BxLxD, zero, jnp.arange(L) < length_B[:, None])[1]

    def decode(model, body, x_BxD, position_B, cache):
        h_Bx1xD, cache = run_layers(model, body, x_BxD[:, None], cache, jnp.ones((len(x_BxD), 1), bool))
        return h_Bx1xD[:, 0], cache

    return IncrementalDecoder(prefill, decode)


def _prefill_window(model, body, x_BxLxD, length_B, max_len):
    """The embeddings of the last W - 1 tokens, the newest last; zero if there are fewer."""
    position_WxB = length_B - jnp.arange(model.window - 1, 0, -1)[:, None]
    last_WxBxD = jnp.take_along_axis(x_BxLxD.swapaxes(0, 1), jnp.maximum(position_WxB, 0)[..., None], 0)
    return jnp.where(position_WxB[..., None] >= 0, last_WxBxD, 0)


def _decode_window(model, body, x_BxD, position_B, cache):
    last_WxBxD = jnp.concatenate([cache, x_BxD[None]])
    if model.cell == "window":
        context_BxE = last_WxBxD.swapaxes(0, 1).reshape(len(x_BxD), -1)
    else:
        context_BxE = last_WxBxD.sum(0) / jnp.minimum(position_B + 1, model.window)[:, None].astype(x_BxD.dtype)
    h_BxD = _apply_dense(model, body["context"], _pad_inputs(context_BxE, body["context"]))
    for params in _split_layers(model, body):
        h_BxD += _apply_mlp(model, params["mlp"], _apply_norm(model, params["norm"], h_BxD))
    return _apply_norm(model, body["norm"], h_BxD), last_WxBxD[1:]


WINDOW_DECODER = IncrementalDecoder(_prefill_window, _decode_window)
