"""The layers that all encoders share: dropout with a key per example, dense layers, norms, and the MLP."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import platform_kernels

MIN_LAST_AXIS = 2**12  # dropout numbers entries as if the last axis had at least this size
ACTIVATIONS: dict[str, Callable] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(nn.gelu, approximate=True),
    "relu": nn.relu,
    "relu2": lambda x: nn.relu(x) ** 2,
}
GATES = {"geglu": ACTIVATIONS["gelu"], "swiglu": nn.silu}  # the activation of one half, which multiplies the other
OUTSIDE_BIAS = ("all", "norms")  # values of model.bias with which norms and layers outside the encoder have a bias
NORMS: dict[str, Callable[..., nn.Module]] = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}


def embedding_dim(model: config.Model) -> int:
    """The width of the embeddings and of the output layer's table."""
    return model.embedding_dim or model.width


def count_unique_layers(model: config.Model) -> int:
    """The number of layers with parameters of their own; layer n, from 0, has those of layer n modulo this number."""
    return model.num_unique_layers or model.num_layers


def fold_in(key_B, number):
    """key_B with `number` folded into each key; None (evaluation) stays None."""
    return None if key_B is None else jax.vmap(jax.random.fold_in, (0, None))(key_B, number)


def sample_keep_mask(key, rate: float, shape: tuple[int, ...], offset=0):
    """Booleans of which a share `rate` (to within 2**-32) is false: a hash of the key and the number of each entry.

    The mask of an example does not depend on its padding, since the last axis counts as MIN_LAST_AXIS entries. XLA
    computes the hash inside the pass that applies the mask, and stores no mask. offset: index of the first entry along
    the first axis.
    """
    first, second = jax.random.key_data(key)
    sizes = (*shape[:-1], max(shape[-1], MIN_LAST_AXIS), 1)[1:]
    indices = [jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in range(len(shape))]
    indices[0] += jnp.uint32(offset)
    number = sum(index * jnp.uint32(math.prod(sizes[axis:])) for axis, index in enumerate(indices))
    return is_kept(number, first, second, rate)


def is_kept(number, first, second, rate: float):
    """Whether dropout keeps the entries of these numbers; first, second: the words of a key."""
    return mix_bits(mix_bits(number ^ first) + second) >= jnp.uint32(round(rate * 2**32))


def mix_bits(x):
    """A hash that permutes the 32-bit words (lowbias32, C. Wellons 2018)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def dropout(x_BxLxD, key_B, rate: float):
    """Dropout at `rate` with one key per example; key_B None returns x unchanged."""
    if key_B is None or rate == 0:
        return x_BxLxD
    keep_BxLxD = jax.vmap(lambda key: sample_keep_mask(key, rate, x_BxLxD.shape[1:]))(key_B)
    return jnp.where(keep_BxLxD, x_BxLxD / (1 - rate), 0).astype(x_BxLxD.dtype)


def initializer(model: config.Model, scale: float = 1.0):
    """The initializer of weights: truncated normal of scale * model.init_std (BERT: 0.02), or variance scaling if 0."""
    if model.init_std:
        return nn.initializers.truncated_normal(model.init_std * scale)
    return nn.initializers.variance_scaling(scale**2, "fan_in", "truncated_normal")


def dense(
    model: config.Model,
    features: int,
    name: str | None = None,
    bias_init=nn.initializers.zeros,
    *,
    scale: float = 1.0,
    bias_in: tuple[str, ...] = ("all",),
) -> nn.Dense:
    """A dense layer; scale: of its initial weights; bias_in: the values of model.bias with which it has a bias."""
    dot_general = functools.partial(platform_kernels.dot_general, jnp.dtype(model.dtype))
    return nn.Dense(
        features,
        use_bias=model.bias in bias_in,
        dtype=platform_kernels.activation_dtype(model),
        kernel_init=initializer(model, scale),
        bias_init=bias_init,
        name=name,
        dot_general=dot_general if platform_kernels.uses_kernel(model, "matmul") else None,
    )


def apply_parts(layer: nn.Dense, num_parts: int, x_BxLxD) -> list[Any]:
    """The output of a dense layer in equal parts of its last axis, each by a product of its own."""
    part = layer.clone(features=layer.features // num_parts, parent=None)
    params = {name: jnp.split(leaf, num_parts, -1) for name, leaf in layer.variables["params"].items()}
    return [part.apply({"params": {name: leaf[n] for name, leaf in params.items()}}, x_BxLxD) for n in range(num_parts)]


def residual_dense(model: config.Model, name: str | None = None) -> nn.Dense:
    """The last dense layer of a sublayer, whose output is added to the states."""
    return dense(model, model.width, name, scale=(2 * model.num_layers) ** -0.5 if model.depth_scaled_init else 1.0)


def norm(model: config.Model, name: str | None = None) -> nn.Module:
    """The norm that model.norm names, with the model's epsilon; layernorm alone has a bias."""
    dtype = platform_kernels.activation_dtype(model)
    options = {"use_bias": model.bias in OUTSIDE_BIAS} if model.norm == "layernorm" else {}
    return NORMS[model.norm](epsilon=model.norm_eps, dtype=dtype, name=name, **options)


def activate(model: config.Model, x):
    """Applies model.activation; a gated one (Shazeer 2020, arXiv 2002.05202) halves the last axis."""
    function = (ACTIVATIONS | GATES)[model.activation]
    if function is ACTIVATIONS["gelu"] and platform_kernels.uses_kernel(model, "gelu"):
        function = platform_kernels.gelu
    x, *factors = jnp.split(x, 2, -1) if model.activation in GATES else [x]
    return function(x) * factors[0] if factors else function(x)


class MLP(nn.Module):
    """Two dense layers with model.activation between them."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD):
        """Returns an array of the shape of x_BxLxD; H, the width of what is activated, is model.mlp_dim."""
        num_halves = 2 if self.model.activation in GATES else 1
        hidden_BxLxH = activate(self.model, dense(self.model, num_halves * self.model.mlp_dim, "up")(x_BxLxD))
        return residual_dense(self.model, "down")(hidden_BxLxH)
