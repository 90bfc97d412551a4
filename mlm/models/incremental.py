"""A model that sees the left alone, read a token at a time: what each family keeps of the tokens so far.

A cache is a tree whose leaves have the rows on axis 1, and one layer on axis 0 where they are of a layer: one leaf for
each layer, so that a loop writes into it where it lies. Letters in array names: S tokens for which there is room, W of
a window, G = gates * H.
"""
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import layers
from mlm.models.attention import rotate
from mlm.models.recurrence import product


class Decoder(NamedTuple):
    """What stands between embeddings and output layer, of the parameters that an Encoder calls `body`."""

    read: Callable            # (model, body, x_BxLxD, length_B, room) -> cache of rows of so many tokens
    step: Callable            # (model, body, x_BxD, place_B, cache) -> (h_BxD of the token at that place, cache)


def _each(model: config.Model, body):
    """The parameters of each layer of a stack; XLA takes a slice alone out of no loop, but one behind a barrier."""
    stacked, apart = body["stack"]["layers"]["layer"], jax.lax.optimization_barrier
    return [jax.tree.map(lambda leaf, k=k: apart(leaf[k]), stacked) for k in range(model.num_layers)]


def _norm(model, params, x):
    return layers.norm(model, "norm").apply({"params": params}, x)


def _dense(model, params, x):
    return layers.dense(model, params["kernel"].shape[1], "dense").apply({"params": params}, x)


def _filled(x, params):
    """x with zeros up to the inputs of a dense layer: what a row that may see both sides has of its right."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, params["kernel"].shape[0] - x.shape[-1])])


def _mlp(model, params, x):
    return layers.MLP(model).apply({"params": params}, x)


def _transformer_layer(model, params, x_BxLxD, attend):
    """transformer.Layer in evaluation; attend: (qkv_BxLx3D) -> out_BxLxD."""
    def attention(x):
        qkv_BxLx3D = _dense(model, params["attention"]["qkv"], x)
        return _dense(model, params["attention"]["out"], attend(qkv_BxLx3D))

    if model.norm_placement == "pre":
        x_BxLxD += attention(_norm(model, params["attention_norm"], x_BxLxD))
        return x_BxLxD + _mlp(model, params["mlp"], _norm(model, params["mlp_norm"], x_BxLxD))
    x_BxLxD = _norm(model, params["attention_norm"], x_BxLxD + attention(x_BxLxD))
    return _norm(model, params["mlp_norm"], x_BxLxD + _mlp(model, params["mlp"], x_BxLxD))


def _heads(model, qkv_BxLx3D, place_BxL):
    """q, k and v, each BxHxLxd, of tokens at these places."""
    B, L, width = qkv_BxLx3D.shape
    qkv_BxLx3xHxd = qkv_BxLx3D.reshape(B, L, 3, model.num_heads, width // 3 // model.num_heads)
    q, k, v = (qkv_BxLx3xHxd[:, :, i] for i in range(3))
    if model.positions == "rotary":
        q, k = rotate(q, place_BxL), rotate(k, place_BxL)
    return (x.astype(model.dtype).swapaxes(1, 2) for x in (q, k, v))


def _mixed(q_BxHxLxd, k_BxHxSxd, v_BxHxSxd, visible_Bx1xLxS):
    """out_BxLxD, as attention.Attention has it."""
    B, H, L, d = q_BxHxLxd.shape
    scores = jnp.einsum("bhld,bhsd->bhls", q_BxHxLxd, k_BxHxSxd, preferred_element_type=jnp.float32) / d ** 0.5
    weights_BxHxLxS = jax.nn.softmax(jnp.where(visible_Bx1xLxS, scores, -1e9)).astype(v_BxHxSxd.dtype)
    return jnp.einsum("bhls,bhsd->bhld", weights_BxHxLxS, v_BxHxSxd).swapaxes(1, 2).reshape(B, L, H * d)


def _attention_read(model, body, x_BxLxD, length_B, room):
    """Keys and values by layer; those of padding are written over before they are seen."""
    B, L, _ = x_BxLxD.shape
    place_BxL = jnp.broadcast_to(jnp.arange(L), (B, L))
    keys, values = [], []

    def attend(qkv_BxLx3D):
        q, k, v = _heads(model, qkv_BxLx3D, place_BxL)
        for kept, x_BxHxLxd in ((keys, k), (values, v)):
            kept.append(jnp.pad(x_BxHxLxd, ((0, 0), (0, 0), (0, room - L), (0, 0)))[None])
        return _mixed(q, k, v, jnp.tri(L, dtype=bool))

    for params in _each(model, body):
        x_BxLxD = _transformer_layer(model, params, x_BxLxD, attend)
    return {"keys": keys, "values": values}


def _attention_step(model, body, x_BxD, place_B, cache):
    row_B = jnp.arange(len(x_BxD))
    keys, values = [], []

    def attend(qkv_Bx1x3D):
        q, *new = _heads(model, qkv_Bx1x3D, place_B[:, None])
        layer = len(keys)
        for kept, name, x_BxHx1xd in zip((keys, values), ("keys", "values"), new, strict=True):
            kept.append(cache[name][layer].at[0, row_B, :, place_B].set(x_BxHx1xd[:, :, 0]))
        visible_BxS = jnp.arange(keys[-1].shape[3]) <= place_B[:, None]
        return _mixed(q, keys[-1][0], values[-1][0], visible_BxS[:, None, None])

    h_Bx1xD = x_BxD[:, None]
    for params in _each(model, body):
        h_Bx1xD = _transformer_layer(model, params, h_Bx1xD, attend)
    h_BxD = _norm(model, body["norm"], h_Bx1xD)[:, 0] if model.norm_placement == "pre" else h_Bx1xD[:, 0]
    return h_BxD, {"keys": keys, "values": values}


ATTENTION = Decoder(_attention_read, _attention_step)


def recurrent(step: Callable, carries: int) -> Decoder:
    """Of an RNN's layers, whose cell's step is (input_BxG, recurrent_BxG, carry) -> carry, a tuple of arrays BxH."""
    def along(model, params, x_BxLxD, carry, there_BxL):
        """x behind a layer, and the carry behind the last token that is there."""
        input_BxLxG = _dense(model, params["forward_input"], _norm(model, params["norm"], x_BxLxD))
        kernel_HxG, bias_G = params["forward_kernel"].astype(model.dtype), params.get("forward_bias", 0)

        def one(carry, reads):
            input_BxG, there_B = reads
            new = step(input_BxG, product(carry[0], kernel_HxG) + bias_G, carry)
            carry = tuple(jnp.where(there_B[:, None], *pair) for pair in zip(new, carry, strict=True))
            return carry, carry[0]

        carry, h_LxBxH = jax.lax.scan(one, carry, (input_BxLxG.swapaxes(0, 1), there_BxL.T))
        h_BxLxH = _filled(h_LxBxH.swapaxes(0, 1).astype(x_BxLxD.dtype), params["out"])
        return x_BxLxD + _dense(model, params["out"], h_BxLxH), carry

    def all_layers(model, body, x_BxLxD, carried, there_BxL):
        after = []
        for params, carry in zip(_each(model, body), carried, strict=True):
            x_BxLxD, carry = along(model, params, x_BxLxD, tuple(x[0] for x in carry), there_BxL)
            after.append(tuple(x[None] for x in carry))
        return _norm(model, body["norm"], x_BxLxD), after

    def read(model, body, x_BxLxD, length_B, room):
        B, L, _ = x_BxLxD.shape
        zero = [(jnp.zeros((1, B, model.rnn_dim)),) * carries] * model.num_layers
        return all_layers(model, body, x_BxLxD, zero, jnp.arange(L) < length_B[:, None])[1]

    def next_one(model, body, x_BxD, place_B, cache):
        h_Bx1xD, cache = all_layers(model, body, x_BxD[:, None], cache, jnp.ones((len(x_BxD), 1), bool))
        return h_Bx1xD[:, 0], cache

    return Decoder(read, next_one)


def _window_read(model, body, x_BxLxD, length_B, room):
    """The embeddings of the last W - 1 tokens, the newest last; zero where there are fewer."""
    at_WxB = length_B - jnp.arange(model.window - 1, 0, -1)[:, None]
    last_WxBxD = jnp.take_along_axis(x_BxLxD.swapaxes(0, 1), jnp.maximum(at_WxB, 0)[..., None], 0)
    return jnp.where(at_WxB[..., None] >= 0, last_WxBxD, 0)


def _window_step(model, body, x_BxD, place_B, cache):
    last_WxBxD = jnp.concatenate([cache, x_BxD[None]])
    if model.cell == "window":
        context_BxE = last_WxBxD.swapaxes(0, 1).reshape(len(x_BxD), -1)
    else:
        context_BxE = last_WxBxD.sum(0) / jnp.minimum(place_B + 1, model.window)[:, None].astype(x_BxD.dtype)
    h_BxD = _dense(model, body["context"], _filled(context_BxE, body["context"]))
    for params in _each(model, body):
        h_BxD += _mlp(model, params["mlp"], _norm(model, params["norm"], h_BxD))
    return _norm(model, body["norm"], h_BxD), last_WxBxD[1:]


WINDOW = Decoder(_window_read, _window_step)
