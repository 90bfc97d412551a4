"""A direction of a recurrent layer as one kernel for TPUs, forward and backward.

The recurrent weights stay on chip over the loop, as in Diamos et al. 2016 ("Persistent RNNs"), where a compiler's loop
runs several kernels a token. The backward pass computes the gates again from the carries before each token.

Letters in array names: L tokens, B examples, H units, G = gates * H.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mlm.base import config
from mlm.models import platform_kernels, recurrence

ROWS = 128  # examples of a program, at most
MIN_ROWS = 8  # of a register
MAX_BYTES = 2**24  # of the recurrent weights and their transpose: 1,024 units of an LSTM in bfloat16
VMEM = 2**26  # bytes that a kernel may take


def can_use_fused(model: config.Model, num_examples: int) -> bool:
    """Whether the kernel runs a layer on the devices that are traced for."""
    return (
        model.cell in recurrence.CELLS
        and platform_kernels.uses_kernel(model, "fused_recurrence")
        and platform_kernels.find_platform() == "tpu"  # a run may go on elsewhere
        and num_examples % MIN_ROWS == 0  # not so where one example creates the parameters
        and 2 * recurrence.CELLS[model.cell].gates * model.rnn_dim**2 * jnp.dtype(model.dtype).itemsize <= MAX_BYTES
    )


def scan_cell_fused(cell: recurrence.RecurrentCell, kernels, biases, inputs, same):
    """The states of each direction, of which the second reads from the end; inputs and states in the text's order."""
    states = []
    for kernel_HxG, bias_G, input_LxBxG, same_LxB in zip(kernels, biases, inputs, same, strict=True):
        is_reversed = bool(states)
        same_LxBx1 = same_LxB[:: -1 if is_reversed else 1, :, None].astype(jnp.float32)
        bias_1xG = bias_G[None].astype(jnp.float32)
        states.append(scan_direction(cell, is_reversed, kernel_HxG, bias_1xG, input_LxBxG, same_LxBx1))
    return states


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def scan_direction(cell, is_reversed, kernel_HxG, bias_1xG, input_LxBxG, same_LxBx1):
    """The states LxBxH of a direction that may read the last token first; same_LxBx1: 0 where its state is reset."""
    return scan_direction_fwd(cell, is_reversed, kernel_HxG, bias_1xG, input_LxBxG, same_LxBx1)[0]


def scan_direction_fwd(cell, is_reversed, kernel_HxG, bias_1xG, input_LxBxG, same_LxBx1):
    """(states, what `scan_direction_bwd` needs)."""
    shape, dtype = (*input_LxBxG.shape[:2], len(kernel_HxG)), input_LxBxG.dtype
    types = [dtype, dtype, *[jnp.float32] * (cell.carries - 1)]
    outputs = [jax.ShapeDtypeStruct(shape, type_) for type_ in types]
    whole, by_token = (kernel_HxG, bias_1xG), (input_LxBxG, same_LxBx1)
    h_LxBxH, *previous = run_kernel(compute_states, cell, whole, by_token, outputs, is_reversed)
    return h_LxBxH, (*whole, *by_token, previous)


def scan_direction_bwd(cell, is_reversed, residuals, d_LxBxH):
    """The gradients; that of the weights is one product over all tokens."""
    kernel_HxG, bias_1xG, input_LxBxG, same_LxBx1, previous = residuals
    whole, by_token = (kernel_HxG, kernel_HxG.T, bias_1xG), (input_LxBxG, same_LxBx1, d_LxBxH, *previous)
    types = [jax.ShapeDtypeStruct(input_LxBxG.shape, input_LxBxG.dtype)] * (1 + cell.has_recurrent_bias)
    gradients = run_kernel(compute_gradients, cell, whole, by_token, types, not is_reversed)
    (d_kernel,), (d_bias,) = recurrence.compute_weight_gradients((kernel_HxG,), previous[:1], gradients[-1:])
    return d_kernel, d_bias[None].astype(jnp.float32), gradients[0], None


scan_direction.defvjp(scan_direction_fwd, scan_direction_bwd)


def run_kernel(
    body: Callable, cell: recurrence.RecurrentCell, whole: Sequence, by_token: Sequence, outputs, is_reversed: bool
) -> Any:
    """The outputs LxBxN of a kernel that runs over the tokens of a block of examples, then over those of the next.

    body: (cell, refs of inputs, outputs and a carry's arrays) -> None; whole: inputs that stay on chip, the recurrent
    weights first; by_token: inputs LxBxN; outputs: types; is_reversed: whether the last token comes first.
    """
    (length, batch), num_units = by_token[0].shape[:2], len(whole[0])
    rows = next(rows for rows in range(ROWS, 0, -MIN_ROWS) if batch % rows == 0)
    index = lambda block, step: (length - 1 - step if is_reversed else step, block, 0)
    specify = lambda array: pl.BlockSpec((None, rows, array.shape[2]), index)
    return pl.pallas_call(
        functools.partial(body, cell),
        grid=(batch // rows, length),
        in_specs=[*[pl.BlockSpec(memory_space=pltpu.VMEM)] * len(whole), *map(specify, by_token)],
        out_specs=[specify(output) for output in outputs],
        out_shape=outputs,
        scratch_shapes=[pltpu.VMEM((rows, num_units), jnp.float32)] * cell.carries,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM),
        name=f"fused_recurrence_{body.__name__}",
    )(*whole, *by_token)


def compute_states(cell, kernel_ref, bias_ref, input_ref, same_ref, output_ref, *refs):
    """A token's output, and the carries before it."""
    previous_refs, carry_refs = refs[: cell.carries], refs[cell.carries :]
    carry = tuple(jnp.where(same_ref[...] != 0, ref[...], 0) for ref in carry_refs)
    recurrent_BxG = recurrence.matmul_float32(carry[0], kernel_ref[...]) + bias_ref[...]
    new_carry = cell.step(input_ref[...].astype(jnp.float32), recurrent_BxG, carry)
    output_ref[...] = new_carry[0].astype(output_ref.dtype)
    for previous_ref, carry_ref, previous, new in zip(previous_refs, carry_refs, carry, new_carry, strict=True):
        previous_ref[...] = previous.astype(previous_ref.dtype)
        carry_ref[...] = new


def compute_gradients(cell, kernel_ref, transposed_ref, bias_ref, input_ref, same_ref, d_output_ref, *refs):
    """The gradient of a token's input, and where it differs of its recurrent product."""
    previous_refs, gradient_refs = refs[: cell.carries], refs[cell.carries : -cell.carries]
    d_refs = refs[-cell.carries :]

    @pl.when(pl.program_id(1) == 0)
    def _():
        for ref in d_refs:
            ref[...] = jnp.zeros_like(ref)

    carry = tuple(ref[...].astype(jnp.float32) for ref in previous_refs)
    recurrent_BxG = recurrence.matmul_float32(carry[0], kernel_ref[...]) + bias_ref[...]
    _, pullback = jax.vjp(cell.step, input_ref[...].astype(jnp.float32), recurrent_BxG, carry)
    d_output, *d_others = (ref[...] for ref in d_refs)
    *d_operands, d_carry = pullback((d_output + d_output_ref[...].astype(jnp.float32), *d_others))
    d_output = d_carry[0] + recurrence.matmul_float32(d_operands[1], transposed_ref[...])
    for ref, x in zip(d_refs, (d_output, *d_carry[1:]), strict=True):
        ref[...] = jnp.where(same_ref[...] != 0, x, 0)
    for ref, x in zip(gradient_refs, d_operands, strict=False):
        ref[...] = x.astype(ref.dtype)
