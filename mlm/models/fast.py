"""Hand-written paths of the models, equal to the plain formulas: which are taken, on which kind of device.

A path stands here only for devices on which it was measured to be faster than what XLA makes of the plain formula
(experiments/benchmark.py). config.model.fast = False takes none.
"""
import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from mlm import config

PATHS = {"cpu": ("matmul", "recurrence", "cross_entropy")}


def takes(model: config.Model, path: str) -> bool:
    return model.fast and path in PATHS.get(jax.default_backend(), ())


def transposed(x_NxM):
    """x.T laid out plainly in memory, which XLA's fast matrix kernels on CPU ask of their operands."""
    return with_layout_constraint(x_NxM.T, Layout((0, 1)))


@jax.custom_vjp
def matmul(x_NxD, w_DxF):
    """x @ w, added up in float32; so are the products of the backward pass, which are twice the forward's work."""
    return jnp.matmul(x_NxD, w_DxF, preferred_element_type=jnp.float32).astype(x_NxD.dtype)


def _forward(x_NxD, w_DxF):
    return matmul(x_NxD, w_DxF), (x_NxD, w_DxF)


def _backward(kept, g_NxF):
    x_NxD, w_DxF = kept
    x_grad = jnp.matmul(g_NxF, transposed(w_DxF), preferred_element_type=jnp.float32)
    return x_grad.astype(x_NxD.dtype), over_rows(x_NxD, g_NxF).astype(w_DxF.dtype)


def over_rows(x_NxD, g_NxF):
    """x.T @ g, the gradient of a weight, in float32: by way of the narrower one's transpose, which costs less."""
    if x_NxD.shape[1] > g_NxF.shape[1] and x_NxD.dtype == jnp.float32:  # XLA has no bfloat16 kernel that turns a result
        return over_rows(g_NxF, x_NxD).T
    return jnp.matmul(transposed(x_NxD), g_NxF, preferred_element_type=jnp.float32)


matmul.defvjp(_forward, _backward)


def dot_general(x, w_DxF, dimension_numbers, precision=None):
    """`matmul` as nn.Dense asks for it."""
    assert dimension_numbers == (((x.ndim - 1,), (0,)), ((), ())), dimension_numbers
    return matmul(x.reshape(-1, x.shape[-1]), w_DxF).reshape(*x.shape[:-1], w_DxF.shape[-1])
