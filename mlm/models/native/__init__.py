"""`recurrence.scan_cell` in C++ (recurrence.cc), compiled at first use on the machine and called by XLA on CPU.

The weights are packed once for all tokens, and each direction runs on cores of its own; XLA's loop starts every product
anew. Without a working compiler the kernel is not used.

The residuals of a token are an LSTM's gates and cell state (5 H), a GRU's gates and the recurrent product of its
candidate (4 H), and nothing for an Elman cell.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from mlm.models import recurrence
from mlm.models.native import library

# The constants of recurrence.cc for each cell: its number, the size of the residuals in H, and that of the gradient of
# the recurrent product beyond the input's, in H.
CELL_LAYOUTS = {"elman": (0, 0, 0), "gru": (1, 4, 1), "lstm": (2, 5, 0)}


def scan_cell(cell: str, kernels, biases, inputs, same):
    """As `recurrence.scan_cell`, which see. Raises KeyError for an unknown cell."""
    return recurrence.run_in_float32(functools.partial(scan_directions, cell), kernels, biases, inputs, same)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def scan_directions(cell, kernels, biases, inputs, same):
    return forward(cell, kernels, biases, inputs, same)[0]


def forward(cell, kernels, biases, inputs, same):
    _, num_residuals, _ = CELL_LAYOUTS[cell]
    tokens, rnn_dim = same[0].shape, len(kernels[0])
    outputs = call_kernel(
        cell,
        False,
        [(*tokens, size * rnn_dim) for _ in kernels for size in (1, num_residuals)],
        zip(kernels, biases, inputs, same, strict=True),
    )
    return tuple(outputs[::2]), (kernels, same, outputs[::2], outputs[1::2])


def backward(cell, saved, d_outputs):
    kernels, same, states, residuals = saved
    _, _, num_extra = CELL_LAYOUTS[cell]
    tokens, (rnn_dim, gate_dim) = same[0].shape, kernels[0].shape
    outputs = call_kernel(
        cell,
        True,
        [(*tokens, size) for _ in kernels for size in (gate_dim, num_extra * rnn_dim)],
        zip(kernels, same, states, residuals, d_outputs, strict=True),
    )
    d_recurrent = [
        recurrence.assemble_gate_gradient(d_input, (d_last,) if num_extra else ())
        for d_input, d_last in zip(outputs[::2], outputs[1::2], strict=True)
    ]
    previous = [recurrence.select_previous_states(*arrays) for arrays in zip(states, same, strict=True)]
    d_kernels, d_biases = recurrence.compute_weight_gradients(kernels, previous, d_recurrent)
    return d_kernels, d_biases, tuple(outputs[::2]), None


scan_directions.defvjp(forward, backward)


def call_kernel(cell: str, is_backward: bool, shapes, operands):
    """Calls recurrence.cc.

    Args:
        cell: elman, gru or lstm.
        is_backward: whether to run the backward pass.
        shapes: of the results.
        operands: for each direction its arrays.

    Returns:
        Arrays of these shapes.
    """
    name = library.get_ffi_target()
    assert name is not None, "rnn.py checks this first"
    return jax.ffi.ffi_call(
        name, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes], vmap_method="sequential"
    )(*(x for arrays in operands for x in arrays), kind=np.int64(CELL_LAYOUTS[cell][0]), backward=is_backward)
