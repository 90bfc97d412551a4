"""Decoding one token at a time with a causal model: the cache of each family and how a token extends it.

A cache is a tree whose leaves have the batch on axis 1. A leaf of a layer has size 1 on axis 0, and each layer has
leaves of its own, so that a loop updates them in place. Letters in array names: S slots of the cache, W of a window,
G = gates * H.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import layers, positions
from mlm.models.recurrence import matmul_float32


class IncrementalDecoder(NamedTuple):
    """An encoder that reads one token at a time; `body` holds its parameters, without embeddings and output layer."""

    prefill: Callable  # (model, body, x_BxLxD, length_B, max_len) -> cache of the first length_B tokens
    step: Callable  # (model, body, x_BxD, position_B, cache) -> (h_BxD of the token at position_B, cache)


def apply_layers(layer_class: Callable, model: config.Model, body, x, get_arguments: Callable) -> Any:
    """The states after all layers and the final norm.

    get_arguments: (number of a layer, its parameters) -> what it reads beside x and its number.
    """
    # The barrier lets XLA hoist the slices out of a loop.
    stacked, barrier = body["stack"]["layers"]["layer"], jax.lax.optimization_barrier
    for number in range(1, model.num_layers + 1):
        index = (number - 1) % layers.count_unique_layers(model)
        params = jax.tree.map(lambda leaf, index=index: barrier(leaf[index]), stacked)
        x = layer_class(model).apply({"params": params}, x, number, *get_arguments(number, params))
    return x if model.norm_placement == "post" else layers.norm(model).apply({"params": body["norm"]}, x)


def _apply_dense(model, params, x) -> Any:
    """A dense layer of x, which is padded with zeros to its inputs: a "mixed" model's from the right side."""
    num_inputs, num_outputs = params["kernel"].shape
    if x.shape[-1] < num_inputs:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, num_inputs - x.shape[-1])])
    return layers.dense(model, num_outputs).apply({"params": params}, x)


def build_attention_decoder(layer_class: Callable) -> IncrementalDecoder:
    """The decoder of layers (x_BxLxD, number, context, key_B, attend) -> x_BxLxD; it caches keys and values."""

    def extend(model, body, x_BxLxD, position_BxL, visible_Bx1xLxS, cache):
        """(h_BxLxD, the cache with the tokens at position_BxL), of which they see the first S slots at most."""
        batch_Bx1, S = jnp.arange(len(x_BxLxD))[:, None], visible_Bx1xLxS.shape[3]
        new_cache = []

        def attend(module, q_BxLxHxd, k_BxLxHxd, v_BxLxHxd, visible_Bx1xLxS, key_B, bias, segments):
            q, k, v = (x.astype(model.dtype) for x in (q_BxLxHxd, k_BxLxHxd, v_BxLxHxd))
            pairs = zip(cache[len(new_cache)], (k, v), strict=True)
            new_cache.append(tuple(old.at[0, batch_Bx1, :, position_BxL].set(x) for old, x in pairs))
            k_BxHxSxd, v_BxHxSxd = (x[0, :, :, :S] for x in new_cache[-1])
            bias_BxHxLxS = bias(q, k_BxHxSxd.swapaxes(1, 2)) if callable(bias) else bias
            return _attend(q.swapaxes(1, 2), k_BxHxSxd, v_BxHxSxd, visible_Bx1xLxS, bias_BxHxLxS)

        context = positions.make_context(model, visible_Bx1xLxS, positions.read_table(model, body), position_BxL)
        return apply_layers(layer_class, model, body, x_BxLxD, lambda *_: (context, None, attend)), new_cache

    def prefill(model, body, x_BxLxD, length_B, max_len):
        """Later tokens overwrite the keys and values of padding before any query sees them."""
        B, L, _ = x_BxLxD.shape
        empty = jnp.zeros((1, B, model.num_heads, max_len, model.width // model.num_heads), model.dtype)
        cache, position_BxL = [(empty, empty)] * model.num_layers, jnp.broadcast_to(jnp.arange(L), (B, L))
        return extend(model, body, x_BxLxD, position_BxL, jnp.tri(L, dtype=bool)[None, None], cache)[1]

    def decode(model, body, x_BxD, position_B, cache):
        visible_BxS = jnp.arange(cache[0][0].shape[3]) <= position_B[:, None]
        h_Bx1xD, cache = extend(model, body, x_BxD[:, None], position_B[:, None], visible_BxS[:, None, None], cache)
        return h_Bx1xD[:, 0], cache

    return IncrementalDecoder(prefill, decode)


def _attend(q_BxHxLxd, k_BxHxSxd, v_BxHxSxd, visible_Bx1xLxS, bias_BxHxLxS):
    """out_BxLxHxd, as in attention.attend."""
    scores_BxHxLxS = jnp.einsum("bhld,bhsd->bhls", q_BxHxLxd, k_BxHxSxd, preferred_element_type=jnp.float32)
    scores_BxHxLxS = scores_BxHxLxS / q_BxHxLxd.shape[-1] ** 0.5
    scores_BxHxLxS = scores_BxHxLxS if bias_BxHxLxS is None else scores_BxHxLxS + bias_BxHxLxS
    weights_BxHxLxS = jax.nn.softmax(jnp.where(visible_Bx1xLxS, scores_BxHxLxS, -1e9)).astype(v_BxHxSxd.dtype)
    return jnp.einsum("bhls,bhsd->bhld", weights_BxHxLxS, v_BxHxSxd).swapaxes(1, 2)


def _read_tokens(read_token: Callable, inputs, carry, is_token_BxL):
    """(h_BxLxH, carry after the last token) by a loop over the tokens of inputs, arrays BxLx...."""

    def step(carry, token):
        inputs, is_token_B = token
        h_BxH, new = read_token(inputs, carry)
        keep = lambda new, old: jnp.where(is_token_B.reshape(-1, *[1] * (new.ndim - 1)), new, old)
        return jax.tree.map(keep, new, carry), h_BxH

    by_token = jax.tree.map(lambda x: x.swapaxes(0, 1), (inputs, is_token_BxL))
    carry, h_LxBxH = jax.lax.scan(step, carry, by_token)
    return h_LxBxH.swapaxes(0, 1), carry


def build_sequential_reader(step: Callable, carries: int) -> tuple[Callable, Callable]:
    """(make_carry, read) of a cell's step, with so many carries (recurrence.py)."""

    def make_carry(model, params, x_BxLxD):
        return (jnp.zeros((len(x_BxLxD), model.rnn_dim)),) * carries

    def read(model, params, x_BxLxD, carry, is_token_BxL, position_BxL):
        input_BxLxG = _apply_dense(model, params["forward_input"], x_BxLxD)
        kernel_HxG, bias_G = params["forward_kernel"].astype(model.dtype), params.get("forward_bias", 0)

        def read_token(input_BxG, carry):
            carry = step(input_BxG, matmul_float32(carry[0], kernel_HxG) + bias_G, carry)
            return carry[0], carry

        return _read_tokens(read_token, input_BxLxG, carry, is_token_BxL)

    return make_carry, read


def build_parallel_reader(cell: Callable) -> tuple[Callable, Callable]:
    """(make_carry, read) of a cell of parallel_cells.py, which reads one token here."""

    def apply(model, params, x_BxD, is_first_B, carry) -> Any:
        out_1xBxH, carry = cell(model).apply({"params": params["forward_cell"]}, x_BxD[None], ~is_first_B[None], carry)
        return out_1xBxH[0], carry

    def make_carry(model, params, x_BxLxD):
        _, carry = jax.eval_shape(lambda x_BxD: apply(model, params, x_BxD, x_BxD[:, 0] == 0, None), x_BxLxD[:, 0])
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), carry)

    def read(model, params, x_BxLxD, carry, is_token_BxL, position_BxL):
        read_token = lambda inputs, carry: apply(model, params, inputs[0], inputs[1], carry)
        return _read_tokens(read_token, (x_BxLxD, position_BxL == 0), carry, is_token_BxL)

    return make_carry, read


def build_recurrent_decoder(layer_class: Callable, make_carry: Callable, read: Callable) -> IncrementalDecoder:
    """The decoder of layers (x_BxLxD, number, shared, key_B, recur), of which the forward direction reads on.

    make_carry: (model, parameters of a layer, x_BxLxD) -> the carry before the first token, a tree of arrays with the
    batch first. read: (model, parameters of a layer, x_BxLxD, carry, is_token_BxL, position_BxL) -> (h_BxLxH, carry).
    """

    def run_layers(model, body, x_BxLxD, cache, is_token_BxL, position_BxL):
        new_cache = []

        def get_arguments(number, params):
            def recur_further(x_BxLxD):
                carry = jax.tree.map(lambda x: x[0], cache[number - 1])
                h_BxLxH, carry = read(model, params, x_BxLxD, carry, is_token_BxL, position_BxL)
                new_cache.append(jax.tree.map(lambda x: x[None], carry))
                return _apply_dense(model, params["out"], h_BxLxH.astype(x_BxLxD.dtype))

            return None, None, recur_further

        return apply_layers(layer_class, model, body, x_BxLxD, get_arguments), new_cache

    def prefill(model, body, x_BxLxD, length_B, max_len):
        position_BxL = jnp.broadcast_to(jnp.arange(x_BxLxD.shape[1]), x_BxLxD.shape[:2])
        first_layer = jax.tree.map(lambda leaf: leaf[0], body["stack"]["layers"]["layer"])
        carry = jax.tree.map(lambda x: x[None], make_carry(model, first_layer, x_BxLxD))
        is_token_BxL = position_BxL < length_B[:, None]
        return run_layers(model, body, x_BxLxD, [carry] * model.num_layers, is_token_BxL, position_BxL)[1]

    def decode(model, body, x_BxD, position_B, cache):
        is_token_Bx1 = jnp.ones((len(x_BxD), 1), bool)
        h_Bx1xD, cache = run_layers(model, body, x_BxD[:, None], cache, is_token_Bx1, position_B[:, None])
        return h_Bx1xD[:, 0], cache

    return IncrementalDecoder(prefill, decode)


def build_window_decoder(layer_class: Callable) -> IncrementalDecoder:
    """The decoder of a feedforward net; its cache holds the embeddings of the last W - 1 tokens, the newest last."""

    def prefill(model, body, x_BxLxD, length_B, max_len):
        """The embeddings are zero if there are fewer tokens."""
        position_WxB = length_B - jnp.arange(model.window - 1, 0, -1)[:, None]
        last_WxBxD = jnp.take_along_axis(x_BxLxD.swapaxes(0, 1), jnp.maximum(position_WxB, 0)[..., None], 0)
        return jnp.where(position_WxB[..., None] >= 0, last_WxBxD, 0)

    def decode(model, body, x_BxD, position_B, cache):
        last_WxBxD = jnp.concatenate([cache, x_BxD[None]])
        if model.cell == "window":
            context_BxE = last_WxBxD.swapaxes(0, 1).reshape(len(x_BxD), -1)
        else:
            context_BxE = last_WxBxD.sum(0) / jnp.minimum(position_B + 1, model.window)[:, None].astype(x_BxD.dtype)
        h_BxD = _apply_dense(model, body["context"], context_BxE)
        return apply_layers(layer_class, model, body, h_BxD, lambda *_: (None, None)), last_WxBxD[1:]

    return IncrementalDecoder(prefill, decode)


def build_rereading_decoder(encoder_class: Callable) -> IncrementalDecoder:
    """The decoder of any causal encoder: its cache holds the embeddings, all of which are read for each token."""

    def prefill(model, body, x_BxLxD, length_B, max_len):
        """Later tokens overwrite the embeddings of padding before any token sees them."""
        return jnp.pad(x_BxLxD, ((0, 0), (0, max_len - x_BxLxD.shape[1]), (0, 0)))[None]

    def decode(model, body, x_BxD, position_B, cache):
        batch_B, is_mixed = jnp.arange(len(x_BxD)), model.directionality == "mixed"
        encoder = encoder_class(model if is_mixed else dataclasses.replace(model, directionality="causal"))
        cache = cache.at[0, batch_B, position_B].set(x_BxD)
        segments_BxS = (jnp.arange(cache.shape[2]) <= position_B[:, None]).astype(jnp.int32)
        left_B = jnp.ones_like(batch_B, bool) if is_mixed else None
        h_BxSxD = encoder.apply({"params": body}, cache[0], segments_BxS, left_B, None)
        return h_BxSxD[batch_B, position_B], cache

    return IncrementalDecoder(prefill, decode)
