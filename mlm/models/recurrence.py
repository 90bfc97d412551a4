"""Recurrent cells, and how they run over a sequence: by JAX's own gradient, or faster by a hand-written one.

Both give equal values and gradients. The fast one computes all gates of a step with one tanh, since
sigmoid(x) = (1 + tanh(x / 2)) / 2: XLA vectorizes one tanh over all gates, but not one function per gate. Its backward
loop computes only what the previous step needs; the gradient of the recurrent weights is one product over all steps,
after the loop. The loops write few arrays with an entry per token, since XLA fills each with zeros first. Both
directions share one loop.

Letters in array names: L tokens, B examples, H units, G = gates * H. Tuples hold one entry per direction.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config
from mlm.models import platform_kernels


class RecurrentCell(NamedTuple):
    """All that is true of a recurrent cell. A carry is a tuple of arrays BxH, the output first."""

    gates: int  # G / H
    carries: int
    step: Callable  # (input_BxG, recurrent_BxG, carry) -> new carry
    forward: Callable  # as step, with one tanh -> (new carry, residuals)
    # (residuals, previous output, gradient of the new carry) -> (gradient of the input; a tuple of the last columns of
    # the gradient of the recurrent product, where they differ from the input's; gradient of the previous carry, without
    # what flows through the recurrent product)
    backward: Callable
    has_recurrent_bias: bool = False  # of the recurrent product, where it is not just added to the input
    # (open_H, zero_H) -> biases of all gates with which a unit remembers for exp(open_H) tokens; None: it has no gates
    chrono_gates: Callable | None = None


def apply_gates(x_BxG, kinds: str, bias: tuple[float, ...]):
    """The gates by their kinds, s(igmoid) or t(anh), after a bias: one tanh, scaled before and after."""
    dim = x_BxG.shape[-1] // len(kinds)
    scale_G = np.repeat([0.5 if kind == "s" else 1.0 for kind in kinds], dim).astype(x_BxG.dtype)
    shift_G = np.repeat(bias, dim).astype(x_BxG.dtype) * scale_G
    return jnp.tanh(x_BxG * scale_G + shift_G) * scale_G + (1 - scale_G)


def elman_step(input_BxG, recurrent_BxG, carry):
    """A tanh of both (Elman 1990)."""
    return (jnp.tanh(input_BxG + recurrent_BxG),)


def _elman_forward(input_BxG, recurrent_BxG, carry):
    h_BxH = jnp.tanh(input_BxG + recurrent_BxG)
    return (h_BxH,), h_BxH


def _elman_backward(h_BxH, previous_BxH, d_carry):
    return d_carry[0] * (1 - h_BxH * h_BxH), (), (jnp.zeros_like(h_BxH),)


def gru_step(input_BxG, recurrent_BxG, carry):
    """A GRU (Cho et al. 2014) whose reset gate multiplies the recurrent product, as in cuDNN and torch.nn."""
    (h_BxH,) = carry
    input_r, input_z, input_n = jnp.split(input_BxG, 3, -1)
    recurrent_r, recurrent_z, recurrent_n = jnp.split(recurrent_BxG, 3, -1)
    r_BxH, z_BxH = jax.nn.sigmoid(input_r + recurrent_r), jax.nn.sigmoid(input_z + recurrent_z)
    new_BxH = jnp.tanh(input_n + r_BxH * recurrent_n)
    return ((1 - z_BxH) * new_BxH + z_BxH * h_BxH,)


def _gru_forward(input_BxG, recurrent_BxG, carry):
    (h_BxH,) = carry
    H = h_BxH.shape[-1]
    rz_BxG = apply_gates(input_BxG[:, : 2 * H] + recurrent_BxG[:, : 2 * H], "ss", (0, 0))
    r_BxH, z_BxH = jnp.split(rz_BxG, 2, -1)
    n_BxH = jnp.tanh(input_BxG[:, 2 * H :] + r_BxH * recurrent_BxG[:, 2 * H :])
    return (n_BxH + z_BxH * (h_BxH - n_BxH),), (rz_BxG, n_BxH, recurrent_BxG[:, 2 * H :])


def _gru_backward(residuals, previous_BxH, d_carry):
    (rz_BxG, n_BxH, recurrent_BxH), (d_BxH,) = residuals, d_carry
    r_BxH, z_BxH = jnp.split(rz_BxG, 2, -1)
    d_n_BxH = d_BxH * (1 - z_BxH) * (1 - n_BxH * n_BxH)
    d_r_BxH = d_n_BxH * recurrent_BxH * r_BxH * (1 - r_BxH)
    d_z_BxH = d_BxH * (previous_BxH - n_BxH) * z_BxH * (1 - z_BxH)
    return jnp.concatenate([d_r_BxH, d_z_BxH, d_n_BxH], -1), (d_n_BxH * r_BxH,), (d_BxH * z_BxH,)


def lstm_step(input_BxG, recurrent_BxG, carry):
    """An LSTM whose forget gate has a bias of 1 (Jozefowicz et al. 2015)."""
    _, c_BxH = carry
    i, f, g, o = jnp.split(input_BxG + recurrent_BxG, 4, -1)
    c_BxH = jax.nn.sigmoid(f + 1) * c_BxH + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c_BxH), c_BxH


def _lstm_forward(input_BxG, recurrent_BxG, carry):
    gates_BxG = apply_gates(input_BxG + recurrent_BxG, "ssts", (0, 1, 0, 0))
    i, f, g, o = jnp.split(gates_BxG, 4, -1)
    c_BxH = f * carry[1] + i * g
    tanh_BxH = jnp.tanh(c_BxH)
    return (o * tanh_BxH, c_BxH), (gates_BxG, tanh_BxH, carry[1])


def _lstm_backward(residuals, previous_BxH, d_carry):
    (gates_BxG, tanh_BxH, c_BxH), (d_h, d_c) = residuals, d_carry
    i, f, g, o = jnp.split(gates_BxG, 4, -1)
    d_c += d_h * o * (1 - tanh_BxH * tanh_BxH)
    d_BxG = jnp.concatenate(
        [d_c * g * i * (1 - i), d_c * c_BxH * f * (1 - f), d_c * i * (1 - g * g), d_h * tanh_BxH * o * (1 - o)], -1
    )
    return d_BxG, (), (jnp.zeros_like(d_h), d_c * f)


CELLS = {
    "lstm": RecurrentCell(
        *(4, 2, lstm_step, _lstm_forward, _lstm_backward),
        chrono_gates=lambda open_H, zero_H: [-open_H, open_H - 1, zero_H, zero_H],
    ),
    "gru": RecurrentCell(
        *(3, 1, gru_step, _gru_forward, _gru_backward),
        has_recurrent_bias=True,
        chrono_gates=lambda open_H, zero_H: [zero_H, open_H, zero_H],
    ),
    "elman": RecurrentCell(1, 1, elman_step, _elman_forward, _elman_backward),
}  # the first is the default


def build_kernel_initializer(model: config.Model, gates: int):
    """An orthogonal matrix for each gate."""
    init, num_units = jax.nn.initializers.orthogonal(), model.rnn_dim
    return lambda key: jnp.concatenate([init(k, (num_units, num_units)) for k in jax.random.split(key, gates)], 1)


def build_bias_initializer(model: config.Model, chrono_gates: Callable | None):
    """Chrono initialization: gates that remember for 1 to model.chrono_init tokens (Tallec & Ollivier 2018, eq. 16)."""
    if not (model.chrono_init and chrono_gates):
        return jax.nn.initializers.zeros

    def init_gates(key, shape, dtype=jnp.float32):
        zero_H = jnp.zeros(model.rnn_dim, dtype)
        open_H = jnp.log(jax.random.uniform(key, zero_H.shape, dtype, 1, model.chrono_init - 1))
        return jnp.concatenate(chrono_gates(open_H, zero_H))

    return init_gates


def scan_cell(cell: RecurrentCell, kernel_HxG, bias_G, input_LxBxG, same_LxB, unroll: int):
    """h_LxBxH of a cell that starts from a zero state, and again wherever same_LxB is false."""

    def step(carry, inputs):
        input_BxG, same_B = inputs
        carry = reset_carry(same_B, carry)
        carry = cell.step(input_BxG, carry[0] @ kernel_HxG + bias_G, carry)
        return carry, carry[0]

    zero_BxH = jnp.zeros((input_LxBxG.shape[1], kernel_HxG.shape[0]), input_LxBxG.dtype)
    _, h_LxBxH = jax.lax.scan(step, (zero_BxH,) * cell.carries, (input_LxBxG, same_LxB), unroll=unroll)
    return h_LxBxH


def scan_cell_fast(cell: RecurrentCell, unroll: int, kernels, biases, inputs, same):
    """The states of each direction, a tuple of h_LxBxH. They are computed in float32 and have the type of the inputs.

    Kernels are HxG, biases G, inputs LxBxG in the order in which the direction reads the sequence. same: LxB, whether
    the state continues that of the previous token; else it starts from zero.
    """
    wide = (tuple(x.astype(jnp.float32) for x in arrays) for arrays in (biases, inputs))
    is_pair = len(inputs) > 1 and platform_kernels.find_platform() == "gpu"
    scan: Callable = scan_pair if is_pair else scan_directions
    states: Any = scan(cell, unroll, kernels, *wide, same)
    return tuple(h_LxBxH.astype(x.dtype) for h_LxBxH, x in zip(states, inputs, strict=True))


def scan_pair(cell, unroll, *operands):
    """`scan_directions` with one product a token for both directions: a GPU's loop waits for each of its kernels."""

    def scan(*arrays):
        states: Any = scan_directions(cell, unroll, *((x,) for x in arrays))
        return states[0]

    return jax.vmap(scan)(*map(jnp.stack, operands))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def scan_directions(cell, unroll, kernels, biases, inputs, same):
    """The states LxBxH of a layer, for each of its directions, run in one loop."""
    return scan_directions_fwd(cell, unroll, kernels, biases, inputs, same)[0]


def scan_directions_fwd(cell, unroll, kernels, biases, inputs, same):
    """`scan_directions`, and what its gradient needs (jax.custom_vjp)."""

    def step(carries, step_inputs):
        new_carries, outputs = [], []
        for carry, (input_BxG, same_B), kernel_HxG, bias_G in zip(carries, step_inputs, kernels, biases, strict=True):
            carry = reset_carry(same_B, carry)
            recurrent_BxG = matmul_float32(carry[0], kernel_HxG) + bias_G
            new_carry, residuals = cell.forward(input_BxG, recurrent_BxG, carry)
            new_carries.append(new_carry)
            outputs.append((new_carry[0], residuals))
        return tuple(new_carries), tuple(outputs)

    zero = tuple(
        (jnp.zeros((x.shape[1], k.shape[0]), x.dtype),) * cell.carries for x, k in zip(inputs, kernels, strict=True)
    )
    _, outputs = jax.lax.scan(step, zero, tuple(zip(inputs, same, strict=True)), unroll=unroll)
    return tuple(h_LxBxH for h_LxBxH, _ in outputs), (kernels, same, outputs)


def scan_directions_bwd(cell, unroll, saved, d_outputs):
    """The gradients of `scan_directions`; those of the recurrent weights are one product over all steps."""
    kernels, same, outputs = saved
    transposed = [kernel_HxG.T for kernel_HxG in kernels]
    previous = [  # states before each token
        jnp.where(same_LxB[:, :, None], jnp.pad(h_LxBxH[:-1], ((1, 0), (0, 0), (0, 0))), 0)
        for (h_LxBxH, _), same_LxB in zip(outputs, same, strict=True)
    ]

    def step(d_carries, step_inputs):
        d_previous, gradients = [], []
        rows = zip(d_carries, step_inputs, transposed, strict=True)
        for d_carry, (d_h, residuals, previous_BxH, same_B), kernel_GxH in rows:
            d_carry = (d_carry[0] + d_h, *d_carry[1:])
            d_input, d_last, d_carry = cell.backward(residuals, previous_BxH, d_carry)
            d_h = d_carry[0] + matmul_float32(assemble_gate_gradient(d_input, d_last), kernel_GxH)
            d_previous.append(reset_carry(same_B, (d_h, *d_carry[1:])))
            gradients.append((d_input, d_last))
        return tuple(d_previous), tuple(gradients)

    zero = tuple((jnp.zeros_like(d_h[0]),) * cell.carries for d_h in d_outputs)
    loop_inputs = tuple(zip(d_outputs, [residuals for _, residuals in outputs], previous, same, strict=True))
    _, gradients = jax.lax.scan(step, zero, loop_inputs, reverse=True, unroll=unroll)
    return (
        *compute_weight_gradients(kernels, previous, [assemble_gate_gradient(*d) for d in gradients]),
        tuple(d_input for d_input, _ in gradients),
        None,
    )


def compute_weight_gradients(kernels, previous, d_recurrent):
    """The gradients of kernels and biases, from those of the recurrent products, LxBxG."""
    d_kernels, d_biases = [], []
    for kernel_HxG, previous_LxBxH, d_LxBxG in zip(kernels, previous, d_recurrent, strict=True):
        previous_NxH, d_NxG = (x.reshape(-1, x.shape[-1]) for x in (previous_LxBxH, d_LxBxG))
        dtype = kernel_HxG.dtype
        d_kernels.append(platform_kernels.contract_rows(previous_NxH.astype(dtype), d_NxG.astype(dtype)).astype(dtype))
        d_biases.append(jnp.ones(len(d_NxG), d_NxG.dtype) @ d_NxG)
    return tuple(d_kernels), tuple(d_biases)


def assemble_gate_gradient(d_input, d_last):
    """The gradient of the recurrent product: the input's, with the last columns replaced by d_last."""
    num_shared = d_input.shape[-1] - sum(x.shape[-1] for x in d_last)
    return jnp.concatenate([d_input[..., :num_shared], *d_last], -1)


def matmul_float32(x_BxM, kernel):
    """x @ kernel with operands of the kernel's type and a float32 result (see platform_kernels.matmul)."""
    return jnp.matmul(x_BxM.astype(kernel.dtype), kernel, preferred_element_type=jnp.float32)


def reset_carry(same_B, carry):
    """The carry, zero where same_B is false."""
    return tuple(jnp.where(same_B[:, None], x_BxH, 0) for x_BxH in carry)


scan_directions.defvjp(scan_directions_fwd, scan_directions_bwd)
