"""Hand-written kernels, which compute the same as the plain formulas, and the devices that use them.

A kernel is listed only for devices on which it is faster than XLA's code for the plain formula (measured in
experiments/benchmark). config.model.fused_kernels = False disables all of them; config.model.disabled_kernels names
those that are slower on this machine (mlm/training/kernel_benchmark.py, which measures every kernel).
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from mlm.base import config, errors

KERNELS = {"cpu": ("matmul", "recurrence", "cross_entropy", "gelu", "attention", "native")}


def uses_kernel(model: config.Model, kernel: str) -> bool:
    """Whether the model uses the kernel on this device."""
    available = KERNELS.get(jax.default_backend(), ())
    return model.fused_kernels and kernel in available and kernel not in model.disabled_kernels.split(",")


def check(disabled: str) -> None:
    """Raises ConfigError for a config.model.disabled_kernels that names no kernel."""
    known = list(dict.fromkeys(kernel for kernels in KERNELS.values() for kernel in kernels))
    for name in disabled.split(",") if disabled else ():
        errors.require_one_of("config.model.disabled_kernels", name, known if "," in disabled else ["auto", *known])


def activation_dtype(model: config.Model):
    """The type of activations between matrix products, whose operands have model.dtype."""
    return jnp.float32 if uses_kernel(model, "matmul") else jnp.dtype(model.dtype)


def transpose(x_NxM):
    """Swaps the last two axes, in row-major layout, as XLA's fast matrix kernels on CPU need their operands."""
    return with_layout_constraint(x_NxM.swapaxes(-1, -2), Layout(tuple(range(x_NxM.ndim))))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x_NxD, w_DxF, dtype):
    """x @ w with operands of dtype and a float32 result, forward and backward.

    The operations that follow are faster on CPU in float32 than in bfloat16.
    """
    return jnp.matmul(x_NxD.astype(dtype), w_DxF.astype(dtype), preferred_element_type=jnp.float32)


def _forward(x_NxD, w_DxF, dtype):
    x_NxD, w_DxF = x_NxD.astype(dtype), w_DxF.astype(dtype)
    return matmul(x_NxD, w_DxF, dtype), (x_NxD, w_DxF)


def _backward(dtype, residuals, g_NxF):
    x_NxD, w_DxF = residuals
    g_NxF = g_NxF.astype(dtype)
    return jnp.matmul(g_NxF, transpose(w_DxF), preferred_element_type=jnp.float32), contract_rows(x_NxD, g_NxF)


def contract_rows(x_NxD, g_NxF):
    """x.T @ g, the gradient of a weight, in float32; it transposes the narrower operand, which is cheaper."""
    # XLA has no bfloat16 kernel that transposes its result.
    if x_NxD.shape[1] > g_NxF.shape[1] and x_NxD.dtype == jnp.float32:
        return contract_rows(g_NxF, x_NxD).T
    return jnp.matmul(transpose(x_NxD), g_NxF, preferred_element_type=jnp.float32)


matmul.defvjp(_forward, _backward)


def dot_general(dtype, x, w_DxF, dimension_numbers, precision=None):
    """`matmul` with the signature that nn.Dense needs."""
    assert dimension_numbers == (((x.ndim - 1,), (0,)), ((), ())), dimension_numbers
    out_NxF = matmul(x.reshape(-1, x.shape[-1]), w_DxF, dtype)
    return jnp.reshape(out_NxF, (*x.shape[:-1], w_DxF.shape[-1]))  # pyright: ignore[reportArgumentType]


@jax.custom_vjp
def gelu(x):
    """x times the normal CDF of x (Hendrycks & Gimpel 2016), forward and backward in one pass each.

    The backward pass recomputes the CDF: jax.nn.gelu stores an exponential and two branches of erfc, which is slower.
    """
    return x * normal_cdf(x)


def normal_cdf(x):
    """The cumulative distribution function of the standard normal distribution."""
    return 0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5)


def _gelu_backward(x, g):
    return (g * (normal_cdf(x) + x * jnp.exp(-0.5 * x * x) * (2 * jnp.pi) ** -0.5),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)
