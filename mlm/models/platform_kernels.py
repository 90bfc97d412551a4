"""Hand-written kernels, which compute the same as the plain formulas, and the devices that use them.

config.model.kernels names those that a run uses. They change rounding, so the names are part of a run's identity.
"""

import functools

import jax
import jax.numpy as jnp
from jax import ad_checkpoint
from jax.experimental.layout import Layout, with_layout_constraint

from mlm.base import config, errors

KERNELS = (
    *("matmul", "recurrence", "cross_entropy", "blocked_cross_entropy", "gelu"),
    *("attention", "cudnn_attention", "splash_attention", "fused_attention", "fused_norm", "fused_recurrence"),
    "recomputation",
)
FUSED_ATTENTION = ("cudnn_attention", "splash_attention")  # they drop no attention weights, as fused_attention does
VOCAB_BLOCK = 8192  # entries of a block of `blocked_cross_entropy`, at most
REFERENCE = "reference"  # none of them
FUSED_KERNEL = "fused_kernel"  # jax.ad_checkpoint.checkpoint_name's name of what `mark_saved` marks
# Those that make a training step faster than XLA's code for the plain formulas, by platform. Measured by the part
# `kernels` of experiments/benchmark: results/benchmark.md; a TPU's, and a GPU's recurrence, recomputation and
# fused_attention, by what their compilers say (docs/scaling.md). On other platforms: none.
FASTER_KERNELS = {
    "cpu": ("matmul", "recurrence", "cross_entropy", "gelu", "attention"),
    "gpu": ("recurrence", "gelu", "cross_entropy", "cudnn_attention", "fused_attention", "recomputation"),
    "tpu": (
        *("recurrence", "blocked_cross_entropy", "gelu", "splash_attention", "fused_attention"),
        *("fused_recurrence", "recomputation"),
    ),
}


def resolve_kernels(kernels: str, platform: str = "") -> str:
    """The names of the kernels in one order; `auto`: those that are faster on a platform ("": this process's)."""
    names = FASTER_KERNELS.get(platform or jax.default_backend(), ()) if kernels == "auto" else kernels.split(",")
    return ",".join(name for name in KERNELS if name in names) or REFERENCE


def uses_kernel(model: config.Model, kernel: str) -> bool:
    """Whether the model uses the kernel."""
    return kernel in resolve_kernels(model.kernels).split(",")


def find_platform() -> str:
    """JAX's name of the platform that is traced for: the mesh's inside jax.shard_map, which need not be here."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (device and device.platform) or jax.default_backend()


def mark_saved(x):
    """The array, which a fused kernel reads or gives and `stack.save_products` saves."""
    return ad_checkpoint.checkpoint_name(x, FUSED_KERNEL)


def check(kernels: str) -> None:
    """Raises ConfigError for a config.model.kernels that names no kernel."""
    for name in kernels.split(","):
        known = KERNELS if "," in kernels else ("auto", REFERENCE, *KERNELS)
        errors.require_one_of("config.model.kernels", name, known)


def activation_dtype(model: config.Model):
    """The type of activations between matrix products, whose operands have model.dtype."""
    return jnp.float32 if uses_kernel(model, "matmul") else jnp.dtype(model.dtype)


def transpose(x_NxM):
    """Swaps the last two axes, in row-major layout, as XLA's fast matrix kernels on CPU need their operands."""
    return with_layout_constraint(x_NxM.swapaxes(-1, -2), Layout(tuple(range(x_NxM.ndim))))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x_NxD, w_DxF, dtype):
    """x @ w of operands of dtype, in float32 forward and backward: what follows is faster so on CPU."""
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
    """x times the normal CDF of x (Hendrycks & Gimpel 2016), forward and backward in one pass each, in float32.

    The backward pass recomputes the CDF: jax.nn.gelu stores an exponential and two branches of erfc, which is slower.
    """
    wide = x.astype(jnp.float32)
    return (wide * normal_cdf(wide)).astype(x.dtype)


def normal_cdf(x):
    """The cumulative distribution function of the standard normal distribution."""
    return 0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5)


def _gelu_backward(x, g):
    wide = x.astype(jnp.float32)
    slope = normal_cdf(wide) + wide * jnp.exp(-0.5 * wide * wide) * (2 * jnp.pi) ** -0.5
    return ((g * slope).astype(x.dtype),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)
