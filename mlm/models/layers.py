"""The layers that all encoders share: dropout with a key per example, dense layers, norms, and a scan over layers."""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import platform_kernels

MIN_LAST_AXIS = 2**12  # dropout numbers entries as if the last axis had at least this size


def fold_in(key_B, number):
    """key_B with `number` folded into each key; None (evaluation) stays None."""
    return None if key_B is None else jax.vmap(jax.random.fold_in, (0, None))(key_B, number)


def sample_keep_mask(key, rate: float, shape: tuple[int, ...], offset=0):
    """Booleans of which a share `rate` (to within 2**-32) is false: a hash of the key and the number of each entry.

    The mask of an example does not depend on its padding, since the last axis counts as MIN_LAST_AXIS entries. XLA
    computes the hash inside the pass that applies the mask, and stores no mask.

    Args:
        key: a random key.
        rate: the share of false entries.
        shape: of the mask.
        offset: index of the first entry along the first axis.
    """
    first, second = jax.random.key_data(key)
    sizes = (*shape[:-1], max(shape[-1], MIN_LAST_AXIS), 1)[1:]
    indices = [jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in range(len(shape))]
    indices[0] += jnp.uint32(offset)
    number = sum(index * jnp.uint32(math.prod(sizes[axis:])) for axis, index in enumerate(indices))
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


def initializer(model: config.Model):
    """The initializer of weights: truncated normal of model.init_std (BERT: 0.02), or variance scaling if that is 0."""
    if model.init_std:
        return nn.initializers.truncated_normal(model.init_std)
    return nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")


def dense(model: config.Model, features: int, name: str, bias_init=nn.initializers.zeros) -> nn.Dense:
    """A dense layer whose product has the kernel `matmul` if the model uses that."""
    dot_general = (
        functools.partial(platform_kernels.dot_general, jnp.dtype(model.dtype))
        if platform_kernels.uses_kernel(model, "matmul")
        else None
    )
    return nn.Dense(
        features,
        dtype=platform_kernels.activation_dtype(model),
        kernel_init=initializer(model),
        bias_init=bias_init,
        name=name,
        dot_general=dot_general,
    )


def norm(model: config.Model, name: str) -> nn.LayerNorm:
    """A LayerNorm with the model's epsilon."""
    return nn.LayerNorm(epsilon=model.norm_eps, dtype=platform_kernels.activation_dtype(model), name=name)


def activate(model: config.Model, x):
    """Applies model.activation."""
    if model.activation == "gelu" and platform_kernels.uses_kernel(model, "gelu"):
        return platform_kernels.gelu(x)
    return apply_activation(model.activation, x)


def apply_activation(name: str, x):
    """gelu, gelu_tanh or relu by the plain formula."""
    return nn.relu(x) if name == "relu" else nn.gelu(x, approximate=name == "gelu_tanh")


class MLP(nn.Module):
    """Two dense layers with model.activation between them."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD):
        """Returns an array of the shape of x_BxLxD; H, the width between the layers, is model.mlp_dim."""
        hidden_BxLxH = activate(self.model, dense(self.model, self.model.mlp_dim, "up")(x_BxLxD))
        return dense(self.model, self.model.width, "down")(hidden_BxLxH)


class ScanStep(nn.Module):
    """A layer as a step of the scan: it folds its number into the keys and sows its output."""

    model: config.Model
    layer: Any

    @nn.compact
    def __call__(self, x_BxLxD, index, shared, key_B):
        """Returns the layer's output, and nothing for the scan to stack."""
        x_BxLxD = self.layer(self.model, name="layer")(x_BxLxD, shared, fold_in(key_B, index))
        self.sow("intermediates", "after", x_BxLxD)
        return x_BxLxD, None


class Stack(nn.Module):
    """model.num_layers copies of a layer, their parameters stacked along a leading axis, run by one scan.

    layer: a module of (x_BxLxD, shared, key_B) -> x_BxLxD; `shared` is the same for every layer. The output of each
    layer is sown in the collection "intermediates". With model.remat the forward pass stores only the input of each
    layer, and the backward pass recomputes the rest (Chen et al. 2016, arXiv 1604.06174). A parameter with a method
    `gather` is a device's shard: each layer gathers its own (mlm/training/step/fsdp.py).
    """

    model: config.Model
    layer: Any

    @nn.compact
    def __call__(self, x_BxLxD, shared, key_B):
        """Returns the last layer's x_BxLxD, without a final norm; each layer folds its index into key_B."""
        num_layers, step, layer = self.model.num_layers, ScanStep, self.layer
        unroll = self.model.scan_unroll or num_layers
        if any(map(is_shard, jax.tree.leaves(self.variables.get("params"), is_leaf=is_shard))):
            layer = nn.map_variables(layer, "params", gather_shards)
        if self.model.remat:  # in a loop that is not unrolled, XLA cannot merge the two passes anyway
            step = nn.remat(ScanStep, prevent_cse=unroll == num_layers)
        scan = nn.scan(
            step,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast),  # pyright: ignore[reportArgumentType]
            length=num_layers,
            unroll=unroll,
        )
        x_BxLxD, _ = scan(self.model, layer, name="layers")(x_BxLxD, jnp.arange(1, num_layers + 1), shared, key_B)
        return x_BxLxD


def is_shard(leaf) -> bool:
    """Whether a parameter is a device's shard."""
    return hasattr(leaf, "gather")


def gather_shards(variables):
    """A layer's variables with full arrays in place of shards."""
    return jax.tree.map(lambda leaf: leaf.gather() if is_shard(leaf) else leaf, variables, is_leaf=is_shard)
