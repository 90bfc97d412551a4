"""`recurrence.recur` by recurrence.cc, which a C++ compiler makes on the machine at first use and XLA calls on CPU.

A kernel is packed once for all tokens, and each direction goes along its rows on a core of its own, where XLA's loop
starts every product and every pass anew. Where no compiler is found, or it fails, the path is absent.

What is kept for the way back, BxLx: an LSTM's gates and its cell's state (5 H), a GRU's gates and the recurrent product
that its new state's gate has seen (4 H), nothing of an Elman net.
"""
import functools

import jax
import jax.numpy as jnp
import numpy as np

from mlm.models import recurrence
from mlm.models.native import library

# Of each cell, as recurrence.cc has them: its number, how many H are kept, and in a gradient beside the input's.
CELLS = {"elman": (0, 0, 0), "gru": (1, 4, 1), "lstm": (2, 5, 0)}


def recur(cell: str, kernels, biases, inputs, same):
    """As `recurrence.recur`. Raises KeyError for an unknown cell."""
    return recurrence.in_float32(functools.partial(along, cell), kernels, biases, inputs, same)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def along(cell, kernels, biases, inputs, same):
    return forward(cell, kernels, biases, inputs, same)[0]


def forward(cell, kernels, biases, inputs, same):
    _, kept, _ = CELLS[cell]
    tokens, hidden = same[0].shape, len(kernels[0])
    out = call(cell, False, [(*tokens, size * hidden) for _ in kernels for size in (1, kept)],
               zip(kernels, biases, inputs, same, strict=True))
    return tuple(out[::2]), (kernels, same, out[::2], out[1::2])


def backward(cell, saved, d_outputs):
    kernels, same, h, kept = saved
    _, _, more = CELLS[cell]
    tokens, (hidden, width) = same[0].shape, kernels[0].shape
    out = call(cell, True, [(*tokens, size) for _ in kernels for size in (width, more * hidden)],
               zip(kernels, same, h, kept, d_outputs, strict=True))
    d_recurrent = [recurrence.recurrent(d_input, (d_last,) if more else ())
                   for d_input, d_last in zip(out[::2], out[1::2], strict=True)]
    befores = [recurrence.before(*each) for each in zip(h, same, strict=True)]
    d_kernels, d_biases = recurrence.of_products(kernels, befores, d_recurrent)
    return d_kernels, d_biases, tuple(out[::2]), None


along.defvjp(forward, backward)


def call(cell: str, back: bool, shapes, arguments):
    """The arrays that recurrence.cc fills, of these shapes; each direction's arguments in its order."""
    return jax.ffi.ffi_call(library.target(), [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
                            vmap_method="sequential")(*(x for each in arguments for x in each),
                                                      kind=np.int64(CELLS[cell][0]), back=back)
