"""Recurrent encoders: Elman (1990), GRU (Cho et al. 2014) and LSTM (Hochreiter & Schmidhuber 1997) layers.

A layer is x + project(recurrence(norm(x))), in place of the Transformer's attention and MLP.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.models import incremental, layers, lm, platform_kernels, recurrence, stack
from mlm.models.recurrence import CELLS


def input_bias_initializer(model: config.Model):
    """Chrono initialization: gates that remember for 1 to model.chrono_init tokens (Tallec & Ollivier 2018, eq. 16)."""
    chrono_gates = CELLS[model.cell].chrono_gates
    if not (model.chrono_init and chrono_gates):
        return nn.initializers.zeros

    def init_gates(key, shape, dtype=jnp.float32):
        zero_H = jnp.zeros(model.rnn_dim, dtype)
        open_H = jnp.log(jax.random.uniform(key, zero_H.shape, dtype, 1, model.chrono_init - 1))
        return jnp.concatenate(chrono_gates(open_H, zero_H))

    return init_gates


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
        has_bias, zeros = cell.has_recurrent_bias and model.bias == "all", (nn.initializers.zeros, (gate_dim,))

        def init_kernel(key):
            init = nn.initializers.orthogonal()
            return jnp.concatenate([init(k, (rnn_dim, rnn_dim)) for k in jax.random.split(key, cell.gates)], 1)

        directions = []
        for name in ("forward", "backward")[: 1 if model.directionality == "causal" else 2]:
            step = -1 if name == "backward" else 1
            project = layers.dense(model, gate_dim, f"{name}_input", input_bias_initializer(model))
            input_LxBxG, segments_LxB = project(y_LxBxD[::step]), segments_BxL.T[::step]
            same_LxB = jnp.pad(segments_LxB[1:] == segments_LxB[:-1], ((1, 0), (0, 0)))
            kernel_HxG = self.param(f"{name}_kernel", init_kernel).astype(model.dtype)
            bias_G = self.param(f"{name}_bias", *zeros) if has_bias else jnp.zeros(gate_dim)
            directions.append((kernel_HxG, bias_G.astype(y_LxBxD.dtype), input_LxBxG, same_LxB))
        if platform_kernels.uses_kernel(model, "recurrence"):
            states = recurrence.scan_cell_fast(cell, model.rnn_unroll, *zip(*directions, strict=True))
        else:
            scan = functools.partial(recurrence.scan_cell, cell, unroll=model.rnn_unroll)
            states = [scan(*operands) for operands in directions]
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
        h_BxLxD = stack.Stack(self.model, RecurrentLayer, name="stack")(x_BxLxD, (segments_BxL, left_B), key_B)
        return layers.final_norm(self.model, h_BxLxD)


def build(model: config.Model, vocab_size: int) -> types.Model:
    """The pure functions of the model over a vocabulary of this size."""
    cell = CELLS[model.cell]
    decoder = incremental.build_recurrent_decoder(RecurrentLayer, cell.step, cell.carries)
    return lm.build(model, vocab_size, RecurrentEncoder, decoder)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config that a recurrent model cannot use."""
    errors.require_number("config.model.rnn_unroll", cfg.model.rnn_unroll, 1, cfg.pack.seq_len)
    has_gate_biases = CELLS[cfg.model.cell].chrono_gates is not None and cfg.model.bias == "all"
    is_possible = not has_gate_biases or cfg.model.chrono_init == 0 or cfg.model.chrono_init > 2
    errors.require_field(cfg, "model.chrono_init", is_possible, "0, or at least 3 tokens")


SPEC = types.ModelSpec(
    build,
    check,
    tuple(CELLS),
    conditional_fields=("rnn_dim", "rnn_unroll", "first_norm"),
    cell_fields={"chrono_init": tuple(name for name, cell in CELLS.items() if cell.chrono_gates)},
)
