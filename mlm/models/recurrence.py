"""Recurrence along rows with a hand-written backward pass: the values and gradients of `rnn.recur`, sooner.

All sigmoids and tanhs of a step are one tanh over all gates, since sigmoid(x) = (1 + tanh(x / 2)) / 2, which XLA
vectorises where it does not vectorise each gate's own. The loop back computes only what the step before waits for; the
gradient of the recurrent weights is one product over all steps, after it. Arrays with an entry a token are few: XLA
fills each with zeros before the loop that writes it. Both directions share one loop.

Letters in array names: L tokens, B rows, H units, G = gates * H. Tuples hold one entry a direction.
"""
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.models import cpu_kernels


class Cell(NamedTuple):
    """One step, forward and back. A carry is a tuple of arrays BxH, the output first.

    forward: (input_BxG, recurrent_BxG, carry) -> (carry, kept for the way back).
    backward: (kept, output before, gradient of the carry after) -> (gradient of the input; a tuple of what the gradient
    of the recurrent product has in its last columns where it is not the input's; and the gradient of the carry before,
    without what reaches it through the recurrent product).
    """

    carries: int
    forward: Callable
    backward: Callable


def gates(x_BxG, kinds: str, bias: tuple[float, ...]):
    """The gates by their kinds, s(igmoid) or t(anh), after a bias: one tanh, scaled before and after."""
    hidden = x_BxG.shape[-1] // len(kinds)
    scale_G = np.repeat([0.5 if kind == "s" else 1.0 for kind in kinds], hidden).astype(x_BxG.dtype)
    shift_G = np.repeat(bias, hidden).astype(x_BxG.dtype) * scale_G
    return jnp.tanh(x_BxG * scale_G + shift_G) * scale_G + (1 - scale_G)


def elman_forward(input_BxG, recurrent_BxG, carry):
    h_BxH = jnp.tanh(input_BxG + recurrent_BxG)
    return (h_BxH,), h_BxH


def elman_backward(after_BxH, before_BxH, d_carry):
    return d_carry[0] * (1 - after_BxH * after_BxH), (), (jnp.zeros_like(after_BxH),)


def gru_forward(input_BxG, recurrent_BxG, carry):
    (h_BxH,) = carry
    H = h_BxH.shape[-1]
    rz_BxG = gates(input_BxG[:, :2 * H] + recurrent_BxG[:, :2 * H], "ss", (0, 0))
    r_BxH, z_BxH = jnp.split(rz_BxG, 2, -1)
    n_BxH = jnp.tanh(input_BxG[:, 2 * H:] + r_BxH * recurrent_BxG[:, 2 * H:])
    return (n_BxH + z_BxH * (h_BxH - n_BxH),), (rz_BxG, n_BxH, recurrent_BxG[:, 2 * H:])


def gru_backward(kept, before_BxH, d_carry):
    (rz_BxG, n_BxH, recurrent_BxH), (d_BxH,) = kept, d_carry
    r_BxH, z_BxH = jnp.split(rz_BxG, 2, -1)
    d_n_BxH = d_BxH * (1 - z_BxH) * (1 - n_BxH * n_BxH)
    d_r_BxH = d_n_BxH * recurrent_BxH * r_BxH * (1 - r_BxH)
    d_z_BxH = d_BxH * (before_BxH - n_BxH) * z_BxH * (1 - z_BxH)
    return jnp.concatenate([d_r_BxH, d_z_BxH, d_n_BxH], -1), (d_n_BxH * r_BxH,), (d_BxH * z_BxH,)


def lstm_forward(input_BxG, recurrent_BxG, carry):
    gates_BxG = gates(input_BxG + recurrent_BxG, "ssts", (0, 1, 0, 0))
    i, f, g, o = jnp.split(gates_BxG, 4, -1)
    c_BxH = f * carry[1] + i * g
    tanh_BxH = jnp.tanh(c_BxH)
    return (o * tanh_BxH, c_BxH), (gates_BxG, tanh_BxH, carry[1])


def lstm_backward(kept, before_BxH, d_carry):
    (gates_BxG, tanh_BxH, c_BxH), (d_h, d_c) = kept, d_carry
    i, f, g, o = jnp.split(gates_BxG, 4, -1)
    d_c += d_h * o * (1 - tanh_BxH * tanh_BxH)
    d_BxG = jnp.concatenate([d_c * g * i * (1 - i), d_c * c_BxH * f * (1 - f), d_c * i * (1 - g * g),
                             d_h * tanh_BxH * o * (1 - o)], -1)
    return d_BxG, (), (jnp.zeros_like(d_h), d_c * f)


CELLS = {"elman": Cell(1, elman_forward, elman_backward), "gru": Cell(1, gru_forward, gru_backward),
         "lstm": Cell(2, lstm_forward, lstm_backward)}


def recur(cell: str, unroll: int, kernels, biases, inputs, same):
    """h_LxBxH of each direction. inputs_LxBxG and same_LxB are in the order in which the direction reads the row.

    kernels: HxG; biases: G; same: whether a token's state comes from the token before, not from zero. States are
    float32 on the way, and end as the inputs' type.
    """
    return in_float32(functools.partial(along, cell, unroll), kernels, biases, inputs, same)


def in_float32(along: Callable, kernels, biases, inputs, same):
    """`along` of the same in float32 but for the kernels, its states in the inputs' type."""
    h = along(kernels, *(tuple(x.astype(jnp.float32) for x in each) for each in (biases, inputs)), same)
    return tuple(h_LxBxH.astype(x.dtype) for h_LxBxH, x in zip(h, inputs, strict=True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def along(cell, unroll, kernels, biases, inputs, same):
    return forward(cell, unroll, kernels, biases, inputs, same)[0]


def forward(cell, unroll, kernels, biases, inputs, same):
    def step(carries, reads):
        after, out = [], []
        for carry, (input_BxG, same_B), kernel_HxG, bias_G in zip(carries, reads, kernels, biases, strict=True):
            carry = keep(same_B, carry)
            new, kept = CELLS[cell].forward(input_BxG, product(carry[0], kernel_HxG) + bias_G, carry)
            after.append(new)
            out.append((new[0], kept))
        return tuple(after), tuple(out)

    zero = tuple((jnp.zeros((x.shape[1], k.shape[0]), x.dtype),) * CELLS[cell].carries
                 for x, k in zip(inputs, kernels, strict=True))
    _, out = jax.lax.scan(step, zero, tuple(zip(inputs, same, strict=True)), unroll=unroll)
    return tuple(h_LxBxH for h_LxBxH, _ in out), (kernels, same, out)


def backward(cell, unroll, saved, d_outputs):
    kernels, same, outputs = saved
    turned = [kernel_HxG.T for kernel_HxG in kernels]
    befores = [before(h_LxBxH, same_LxB) for (h_LxBxH, _), same_LxB in zip(outputs, same, strict=True)]

    def step(d_carries, reads):
        d_before, out = [], []
        for d_carry, (d_h, kept, before_BxH, same_B), kernel_GxH in zip(d_carries, reads, turned, strict=True):
            d_carry = (d_carry[0] + d_h, *d_carry[1:])
            d_input, d_last, d_carry = CELLS[cell].backward(kept, before_BxH, d_carry)
            d_h = d_carry[0] + product(recurrent(d_input, d_last), kernel_GxH)
            d_before.append(keep(same_B, (d_h, *d_carry[1:])))
            out.append((d_input, d_last))
        return tuple(d_before), tuple(out)

    zero = tuple((jnp.zeros_like(d_h[0]),) * CELLS[cell].carries for d_h in d_outputs)
    reads = tuple(zip(d_outputs, [kept for _, kept in outputs], befores, same, strict=True))
    _, out = jax.lax.scan(step, zero, reads, reverse=True, unroll=unroll)
    return *of_products(kernels, befores, [recurrent(*d) for d in out]), tuple(d_input for d_input, _ in out), None


def before(h_LxBxH, same_LxB):
    """The state that each token's was made of."""
    return jnp.where(same_LxB[:, :, None], jnp.pad(h_LxBxH[:-1], ((1, 0), (0, 0), (0, 0))), 0)


def of_products(kernels, befores, d_recurrent):
    """The gradients of kernels and biases, by those of the recurrent products, LxBxG."""
    d_kernels, d_biases = [], []
    for kernel_HxG, before_LxBxH, d_LxBxG in zip(kernels, befores, d_recurrent, strict=True):
        before_NxH, d_NxG = (x.reshape(-1, x.shape[-1]) for x in (before_LxBxH, d_LxBxG))
        dtype = kernel_HxG.dtype
        d_kernels.append(cpu_kernels.over_rows(before_NxH.astype(dtype), d_NxG.astype(dtype)).astype(dtype))
        d_biases.append(jnp.ones(len(d_NxG), d_NxG.dtype) @ d_NxG)
    return tuple(d_kernels), tuple(d_biases)


def recurrent(d_input, d_last):
    """The gradient of the recurrent product: the input's, but for its last columns where they are others."""
    same = d_input.shape[-1] - sum(x.shape[-1] for x in d_last)
    return jnp.concatenate([d_input[..., :same], *d_last], -1)


def product(x_BxM, kernel):
    """x @ kernel of operands in the kernel's type, added up in float32, which the result stays (see fast.matmul)."""
    return jnp.matmul(x_BxM.astype(kernel.dtype), kernel, preferred_element_type=jnp.float32)


def keep(same_B, carry):
    return tuple(jnp.where(same_B[:, None], x_BxH, 0) for x_BxH in carry)


along.defvjp(forward, backward)
