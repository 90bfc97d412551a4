"""Hand-written paths of the models, equal to the plain formulas: which are taken, on which kind of device.

A path stands here only for devices on which it was measured to be faster than what XLA makes of the plain formula
(experiments/benchmark). config.model.fused_kernels = False takes none, and config.model.disabled_kernels leaves some out: those that are
slower on the machine at hand (mlm/train/kernel_benchmark.py, where a new path has a row, too).
"""
import functools

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from mlm.base import config, errors

PATHS = {"cpu": ("matmul", "recurrence", "cross_entropy", "gelu", "attention", "native")}


def takes(model: config.Model, path: str) -> bool:
    here = PATHS.get(jax.default_backend(), ())
    return model.fused_kernels and path in here and path not in model.disabled_kernels.split(",")


def check(plain: str) -> None:
    """Raises ConfigError for a config.model.disabled_kernels that names no path."""
    known = list(dict.fromkeys(path for paths in PATHS.values() for path in paths))
    for name in plain.split(",") if plain else ():
        errors.require_one_of("config.model.disabled_kernels", name, known if "," in plain else ["auto", *known])


def stream(model: config.Model):
    """The type of what lies between matrix products, whose operands have model.dtype."""
    return jnp.float32 if takes(model, "matmul") else jnp.dtype(model.dtype)


def transposed(x_NxM):
    """x.T of its last two axes, laid out plainly in memory, as XLA's fast matrix kernels on CPU ask of operands."""
    return with_layout_constraint(x_NxM.swapaxes(-1, -2), Layout(tuple(range(x_NxM.ndim))))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x_NxD, w_DxF, dtype):
    """x @ w of operands in dtype, added up in float32, which the result stays: what follows is quicker on CPU in
    float32 than in bfloat16. So are the products of the backward pass, which are twice the forward's work."""
    return jnp.matmul(x_NxD.astype(dtype), w_DxF.astype(dtype), preferred_element_type=jnp.float32)


def _forward(x_NxD, w_DxF, dtype):
    x_NxD, w_DxF = x_NxD.astype(dtype), w_DxF.astype(dtype)
    return matmul(x_NxD, w_DxF, dtype), (x_NxD, w_DxF)


def _backward(dtype, kept, g_NxF):
    x_NxD, w_DxF = kept
    g_NxF = g_NxF.astype(dtype)
    return jnp.matmul(g_NxF, transposed(w_DxF), preferred_element_type=jnp.float32), over_rows(x_NxD, g_NxF)


def over_rows(x_NxD, g_NxF):
    """x.T @ g, the gradient of a weight, in float32: by way of the narrower one's transpose, which costs less."""
    if x_NxD.shape[1] > g_NxF.shape[1] and x_NxD.dtype == jnp.float32:  # XLA has no bfloat16 kernel that turns a result
        return over_rows(g_NxF, x_NxD).T
    return jnp.matmul(transposed(x_NxD), g_NxF, preferred_element_type=jnp.float32)


matmul.defvjp(_forward, _backward)


def dot_general(dtype, x, w_DxF, dimension_numbers, precision=None):
    """`matmul` as nn.Dense asks for it."""
    assert dimension_numbers == (((x.ndim - 1,), (0,)), ((), ())), dimension_numbers
    return matmul(x.reshape(-1, x.shape[-1]), w_DxF, dtype).reshape(*x.shape[:-1], w_DxF.shape[-1])


@jax.custom_vjp
def gelu(x):
    """x times the share of a normal distribution below x (Hendrycks & Gimpel 2016), in one pass each way.

    XLA's own keeps an exponential and two branches of erfc beside x for the way back, which is longer than to make both
    again.
    """
    return x * below(x)


def below(x):
    """The share of a normal distribution that lies below x."""
    return 0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5)


def _gelu_backward(x, g):
    return (g * (below(x) + x * jnp.exp(-0.5 * x * x) * (2 * jnp.pi) ** -0.5),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)
