"""Recurrent encoders: Elman (1990), GRU (Cho et al. 2014) and LSTM (Hochreiter & Schmidhuber 1997) layers.

A layer is x + project(recurrence(norm(x))), in place of the Transformer's attention and MLP.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.models import incremental, layers, lm, platform_kernels, recurrence


class RecurrentCell(NamedTuple):
    """A recurrent cell. Its carry is a tuple of arrays BxH, the output first."""

    gates: int
    carries: int
    step: Callable  # (input_BxG, recurrent_BxG, carry) -> carry, G = gates * H


def gru_step(input_BxG, recurrent_BxG, carry):
    """The variant of cuDNN, which applies the reset gate after the recurrent product."""
    (h_BxH,) = carry
    input_r, input_z, input_n = jnp.split(input_BxG, 3, -1)
    recurrent_r, recurrent_z, recurrent_n = jnp.split(recurrent_BxG, 3, -1)
    r_BxH, z_BxH = jax.nn.sigmoid(input_r + recurrent_r), jax.nn.sigmoid(input_z + recurrent_z)
    new_BxH = jnp.tanh(input_n + r_BxH * recurrent_n)
    return ((1 - z_BxH) * new_BxH + z_BxH * h_BxH,)


def lstm_step(input_BxG, recurrent_BxG, carry):
    """The bias of the forget gate starts at 1 (Jozefowicz et al. 2015)."""
    _, c_BxH = carry
    i, f, g, o = jnp.split(input_BxG + recurrent_BxG, 4, -1)
    c_BxH = jax.nn.sigmoid(f + 1) * c_BxH + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c_BxH), c_BxH


CELLS = {
    "elman": RecurrentCell(1, 1, lambda input_BxG, recurrent_BxG, _: (jnp.tanh(input_BxG + recurrent_BxG),)),
    "gru": RecurrentCell(3, 1, gru_step),
    "lstm": RecurrentCell(4, 2, lstm_step),
}


def input_bias_initializer(model: config.Model):
    """Chrono initialization: gates that remember for 1 to model.chrono_init tokens (Tallec & Ollivier 2018, eq. 16)."""

    def init_gates(key, shape, dtype=jnp.float32):
        zero_H = jnp.zeros(model.rnn_dim, dtype)
        open_H = jnp.log(jax.random.uniform(key, zero_H.shape, dtype, 1, model.chrono_init - 1))
        is_lstm = model.cell == "lstm"
        return jnp.concatenate([-open_H, open_H - 1, zero_H, zero_H] if is_lstm else [zero_H, open_H, zero_H])

    return init_gates if model.chrono_init and model.cell in ("lstm", "gru") else nn.initializers.zeros


def scan_cell(cell: RecurrentCell, kernel_HxG, bias_G, input_LxBxG, same_LxB, unroll: int):
    """h_LxBxH of a cell that starts from a zero state, and again wherever same_LxB is false."""

    def step(carry, inputs):
        input_BxG, same_B = inputs
        carry = tuple(jnp.where(same_B[:, None], c_BxH, 0) for c_BxH in carry)
        carry = cell.step(input_BxG, carry[0] @ kernel_HxG + bias_G, carry)
        return carry, carry[0]

    zero_BxH = jnp.zeros((input_LxBxG.shape[1], kernel_HxG.shape[0]), input_LxBxG.dtype)
    _, h_LxBxH = jax.lax.scan(step, (zero_BxH,) * cell.carries, (input_LxBxG, same_LxB), unroll=unroll)
    return h_LxBxH


class RecurrentLayer(layers.ResidualLayer):
    """A recurrent layer with norms and a residual connection."""

    @nn.compact
    def __call__(self, x_BxLxD, number, shared, key_B, recur=None):
        """Returns x_BxLxD; shared: (segments_BxL, left_B) of RecurrentEncoder; recur: in place of the method."""
        sublayer = recur or (lambda y_BxLxD: self.recur(y_BxLxD, *shared))
        return self.add("", sublayer, x_BxLxD, key_B, skip_norm=self.skips_norm(number))

    def recur(self, y_BxLxD, segments_BxL, left_B):
        """out_BxLxD of the recurrence, in one direction or both."""
        model, cell = self.model, CELLS[self.model.cell]
        rnn_dim, gate_dim = model.rnn_dim, cell.gates * model.rnn_dim
        y_LxBxD = jnp.swapaxes(y_BxLxD, 0, 1)
        has_bias, zeros = model.cell == "gru" and model.bias == "all", (nn.initializers.zeros, (gate_dim,))

        def init_kernel(key):
            init = nn.initializers.orthogonal()
            return jnp.concatenate([init(k, (rnn_dim, rnn_dim)) for k in jax.random.split(key, cell.gates)], 1)

        kernels, biases, inputs, same = [], [], [], []
        for name in ("forward", "backward")[: 1 if model.directionality == "causal" else 2]:
            step = -1 if name == "backward" else 1
            segments_LxB = segments_BxL.T[::step]
            project = layers.dense(model, gate_dim, f"{name}_input", input_bias_initializer(model))
            inputs.append(project(y_LxBxD[::step]))
            same.append(jnp.pad(segments_LxB[1:] == segments_LxB[:-1], ((1, 0), (0, 0))))
            kernel_HxG = self.param(f"{name}_kernel", init_kernel)
            # In the other cells the recurrent product is added to the input, which has a bias.
            bias_G = self.param(f"{name}_bias", *zeros) if has_bias else jnp.zeros(gate_dim)
            kernels.append(kernel_HxG.astype(model.dtype))
            biases.append(bias_G.astype(y_LxBxD.dtype))
        if platform_kernels.uses_kernel(model, "recurrence"):
            states = recurrence.scan_cell(model.cell, model.rnn_unroll, *map(tuple, (kernels, biases, inputs, same)))
        else:
            directions = zip(kernels, biases, inputs, same, strict=True)
            states = [scan_cell(cell, *operands, model.rnn_unroll) for operands in directions]
        forward_LxBxH, *backward = states
        backward = [h_LxBxH[::-1] for h_LxBxH in backward]
        if left_B is not None:
            backward = [jnp.where(left_B[:, None], 0, h_LxBxH) for h_LxBxH in backward]
        h_LxBxH = jnp.concatenate([forward_LxBxH, *backward], -1)
        return jnp.swapaxes(layers.residual_dense(model, "out")(h_LxBxH), 0, 1)


class RecurrentEncoder(nn.Module):
    """The states of tokens from stacks of recurrent layers."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, segments_BxL, left_B, key_B):
        """Returns h_BxLxD after a final norm; left_B: the examples without a backward state, None for none."""
        h_BxLxD = layers.Stack(self.model, RecurrentLayer, name="stack")(x_BxLxD, (segments_BxL, left_B), key_B)
        return layers.final_norm(self.model, h_BxLxD)


def build(model: config.Model, vocab_size: int) -> types.Model:
    """The pure functions of the model over a vocabulary of this size."""
    cell = CELLS[model.cell]
    decoder = incremental.build_recurrent_decoder(RecurrentLayer, cell.step, cell.carries)
    return lm.build(model, vocab_size, RecurrentEncoder, decoder)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config that a recurrent model cannot use."""
    errors.require_number("config.model.rnn_unroll", cfg.model.rnn_unroll, 1, cfg.pack.seq_len)
    has_gate_biases = cfg.model.cell != "elman" and cfg.model.bias == "all"
    is_possible = not has_gate_biases or cfg.model.chrono_init == 0 or cfg.model.chrono_init > 2
    errors.require_field(cfg, "model.chrono_init", is_possible, "0, or at least 3 tokens")


SPEC = types.ModelSpec(
    build,
    check,
    ("lstm", "gru", "elman"),
    conditional_fields=("rnn_dim", "rnn_unroll", "first_norm"),
    cell_fields={"chrono_init": ("lstm", "gru")},
)
