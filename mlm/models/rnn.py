"""Recurrent encoders: Elman (1990), GRU (Cho et al. 2014) and LSTM (Hochreiter & Schmidhuber 1997) layers.

A layer is the Transformer's with recurrence in the place of attention and MLP: x + project(recurrence(norm(x))).
"""
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm import config, types
from mlm.models import layers


class Cell(NamedTuple):
    """One step of recurrence. carry is a tuple of arrays BxH, the output first."""

    gates: int
    carries: int
    step: Callable  # (input_BxG, recurrent_BxG, carry) -> carry, G = gates * H


def elman(input_BxG, recurrent_BxG, carry):
    return (jnp.tanh(input_BxG + recurrent_BxG),)


def gru(input_BxG, recurrent_BxG, carry):
    """The variant that resets after the product, as cuDNN computes it."""
    (h_BxH,) = carry
    input_r, input_z, input_n = jnp.split(input_BxG, 3, -1)
    recurrent_r, recurrent_z, recurrent_n = jnp.split(recurrent_BxG, 3, -1)
    r_BxH, z_BxH = jax.nn.sigmoid(input_r + recurrent_r), jax.nn.sigmoid(input_z + recurrent_z)
    new_BxH = jnp.tanh(input_n + r_BxH * recurrent_n)
    return ((1 - z_BxH) * new_BxH + z_BxH * h_BxH,)


def lstm(input_BxG, recurrent_BxG, carry):
    """The forget gate starts open (a bias of 1; Jozefowicz et al. 2015)."""
    _, c_BxH = carry
    i, f, g, o = jnp.split(input_BxG + recurrent_BxG, 4, -1)
    c_BxH = jax.nn.sigmoid(f + 1) * c_BxH + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c_BxH), c_BxH


STEPS = {"elman": Cell(1, 1, elman), "gru": Cell(3, 1, gru), "lstm": Cell(4, 2, lstm)}
CELLS = ("lstm", "gru", "elman")


def recur(cell: Cell, kernel_HxG, bias_G, input_BxLxG, segments_BxL, *, reverse: bool, unroll: int):
    """Runs a cell along each row, forward or in reverse, from a zero state that returns where the segment changes."""
    before = slice(1, None) if reverse else slice(None, -1)
    edge = ((0, 0), (0, 1)) if reverse else ((0, 0), (1, 0))
    same_BxL = segments_BxL == jnp.pad(segments_BxL[:, before], edge, constant_values=-1)

    def step(carry, inputs):
        input_BxG, same_B = inputs
        carry = tuple(jnp.where(same_B[:, None], c_BxH, 0) for c_BxH in carry)
        carry = cell.step(input_BxG, carry[0] @ kernel_HxG + bias_G, carry)
        return carry, carry[0]

    zero_BxH = jnp.zeros((input_BxLxG.shape[0], kernel_HxG.shape[0]), input_BxLxG.dtype)
    inputs = (jnp.swapaxes(input_BxLxG, 0, 1), jnp.swapaxes(same_BxL, 0, 1))
    _, h_LxBxH = jax.lax.scan(step, (zero_BxH,) * cell.carries, inputs, reverse=reverse, unroll=unroll)
    return jnp.swapaxes(h_LxBxH, 0, 1)


class Layer(nn.Module):
    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, segments_BxL, key_B):
        model, cell = self.model, STEPS[self.model.cell]
        hidden, gates = model.hidden, cell.gates * model.hidden
        y_BxLxD = layers.norm(model, "norm")(x_BxLxD)
        directions = []
        for name in ("forward", "backward")[: 1 + model.bidirectional]:
            input_BxLxG = layers.dense(model, gates, f"{name}_input")(y_BxLxD)
            orthogonal = nn.initializers.orthogonal()
            kernel_HxG = self.param(
                f"{name}_kernel",
                lambda key: jnp.concatenate([orthogonal(k, (hidden, hidden)) for k in jax.random.split(key, cell.gates)], 1),  # noqa: B023, E501
            )
            bias_G = self.param(f"{name}_bias", nn.initializers.zeros, (gates,)) if model.cell == "gru" else 0.0
            directions.append(recur(cell, kernel_HxG.astype(input_BxLxG.dtype), jnp.asarray(bias_G, input_BxLxG.dtype),
                                    input_BxLxG, segments_BxL, reverse=name == "backward", unroll=model.time_unroll))
        out_BxLxD = layers.dense(model, model.width, "out")(jnp.concatenate(directions, -1))
        return x_BxLxD + layers.dropout(out_BxLxD, key_B, model.dropout)


class Encoder(nn.Module):
    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, segments_BxL, key_B):
        h_BxLxD = layers.Stack(self.model, Layer, name="stack")(x_BxLxD, segments_BxL, key_B)
        return layers.norm(self.model, "norm")(h_BxLxD)


def build(model: config.Model, vocab_size: int) -> types.Model:
    return layers.masked_lm(model, vocab_size, Encoder)
