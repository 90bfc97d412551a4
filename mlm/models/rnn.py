"""Recurrent encoders: Elman (1990), GRU (Cho et al. 2014) and LSTM (Hochreiter & Schmidhuber 1997) layers, and those of
cells that train in parallel (parallel_cells.py).

A layer is x + project(recurrence(norm(x))), in place of the Transformer's attention and MLP.
"""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.models import fused_recurrence, incremental, layers, lm, parallel_cells, platform_kernels, recurrence, stack

CELLS: dict[str, Any] = recurrence.CELLS | parallel_cells.CELLS  # the first is the default


class RecurrentLayer(stack.ResidualLayer):
    """A recurrent layer with norms and a residual connection."""

    @nn.compact
    def __call__(self, x_BxLxD, number, shared, key_B, recur=None):
        """Returns x_BxLxD; shared: (segments_BxL, left_B) of RecurrentEncoder; recur: in place of the method."""
        sublayer = recur or (lambda y_BxLxD: self.recur(y_BxLxD, *shared))
        return self.add("", sublayer, x_BxLxD, key_B, skip_norm=self.skips_norm(number))

    def recur(self, y_BxLxD, segments_BxL, left_B):
        """out_BxLxD of the recurrence, in one direction or both."""
        model = self.model
        y_LxBxD = jnp.swapaxes(y_BxLxD, 0, 1)
        is_fused = fused_recurrence.can_use_fused(model, len(y_BxLxD))
        inputs = []  # of each direction: its name, what it reads in its order, whether a token continues its segment
        for name in ("forward", "backward")[: 1 if model.directionality == "causal" else 2]:
            step = -1 if name == "backward" else 1
            segments_LxB = segments_BxL.T[::step]
            same_LxB = jnp.pad(segments_LxB[1:] == segments_LxB[:-1], ((1, 0), (0, 0)))
            inputs.append((name, y_LxBxD if is_fused else y_LxBxD[::step], same_LxB))  # the kernel turns by itself
        if model.cell in parallel_cells.CELLS:
            cell = CELLS[model.cell]
            outputs = [cell(model, name=f"{name}_cell")(y_LxBxD, same_LxB) for name, y_LxBxD, same_LxB in inputs]
            states = [out_LxBxH.astype(y_LxBxD.dtype) for out_LxBxH, _ in outputs]
        else:
            states = self.run_sequential(inputs, is_fused=is_fused)
        forward_LxBxH, *backward = states
        if not is_fused:
            backward = [h_LxBxH[::-1] for h_LxBxH in backward]
        if left_B is not None:
            backward = [jnp.where(left_B[:, None], 0, h_LxBxH) for h_LxBxH in backward]
        h_LxBxH = jnp.concatenate([forward_LxBxH, *backward], -1)
        return jnp.swapaxes(layers.residual_dense(model, "out")(h_LxBxH), 0, 1)

    def run_sequential(self, inputs, *, is_fused: bool):
        """The states LxBxH of a cell of recurrence in each direction; is_fused: by the kernel, in the text's order."""
        model, cell = self.model, recurrence.CELLS[self.model.cell]
        gate_dim, init_kernel = cell.gates * model.rnn_dim, recurrence.build_kernel_initializer(model, cell.gates)
        has_bias, zeros = cell.has_recurrent_bias and model.bias == "all", (nn.initializers.zeros, (gate_dim,))
        directions = []
        for name, y_LxBxD, same_LxB in inputs:
            init_bias = recurrence.build_bias_initializer(model, cell.chrono_gates)
            input_LxBxG = layers.dense(model, gate_dim, f"{name}_input", init_bias)(y_LxBxD)
            kernel_HxG = self.param(f"{name}_kernel", init_kernel).astype(model.dtype)
            bias_G = self.param(f"{name}_bias", *zeros) if has_bias else jnp.zeros(gate_dim)
            directions.append((kernel_HxG, bias_G.astype(y_LxBxD.dtype), input_LxBxG, same_LxB))
        if is_fused:
            return fused_recurrence.scan_cell_fused(cell, *zip(*directions, strict=True))
        if platform_kernels.uses_kernel(model, "recurrence"):
            return recurrence.scan_cell_fast(cell, model.rnn_unroll, *zip(*directions, strict=True))
        scan = functools.partial(recurrence.scan_cell, cell, unroll=model.rnn_unroll)
        return [scan(*operands) for operands in directions]


RecurrentEncoder = functools.partial(
    stack.NormalizedStack, layer=RecurrentLayer, prepare=lambda module, x_BxLxD, *segments: (x_BxLxD, segments)
)


def build(model: config.Model, vocab_size: int) -> types.Model:
    """The pure functions of the model over a vocabulary of this size."""
    if model.cell in parallel_cells.CELLS:
        reader = incremental.build_parallel_reader(parallel_cells.CELLS[model.cell])
    else:
        cell = recurrence.CELLS[model.cell]
        reader = incremental.build_sequential_reader(cell.step, cell.carries)
    decoder = incremental.build_recurrent_decoder(RecurrentLayer, *reader)
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
    conditional_fields=("rnn_dim", "first_norm"),
    cell_fields={
        "chrono_init": tuple(name for name, cell in CELLS.items() if cell.chrono_gates),
        "rnn_unroll": tuple(recurrence.CELLS),
        "state_dim": ("ssd",),
    },
)
