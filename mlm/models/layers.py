"""What every encoder shares: embeddings, dropout by row, layers run by one scan, and the output layer."""
import contextlib
import contextvars
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import cpu_kernels

STRIDE = 2**12  # numbers that the last axis of what is dropped takes at least

_reader: contextvars.ContextVar[Callable | None] = contextvars.ContextVar("reader", default=None)


@contextlib.contextmanager
def read_through(reader: Callable):
    """While this block is traced, each layer of a Stack has reader(parameters) for its parameters."""
    before = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(before)


def fold(key_B, number):
    """The row keys of one draw of many: key_B with `number` folded in, or None in evaluation."""
    return None if key_B is None else jax.vmap(jax.random.fold_in, (0, None))(key_B, number)


def kept(key, rate: float, shape: tuple[int, ...], place=0):
    """Booleans, false for a share `rate` of them to within 2**-32: a hash of the key and of each one's number.

    place: of the first of them along the first axis. The last axis takes STRIDE numbers at the least, so that of a
    row's tokens, and of those that they look at, the same are dropped however much padding follows. XLA draws one
    within the pass that drops, since it needs no other, and stores none.
    """
    first, second = jax.random.key_data(key)
    sizes = (*shape[:-1], max(shape[-1], STRIDE), 1)[1:]
    place_x = [jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in range(len(shape))]
    place_x[0] += jnp.uint32(place)
    number = sum(place * jnp.uint32(math.prod(sizes[axis:])) for axis, place in enumerate(place_x))
    return mixed(mixed(number ^ first) + second) >= jnp.uint32(round(rate * 2**32))


def mixed(x):
    """A permutation of the 32-bit words, each bit of its result one of chance (lowbias32, C. Wellons 2018)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def dropout(x_BxLxD, key_B, rate: float):
    """Zeroes a share `rate` of x and rescales the rest; each row draws from its own key. key_B None: x as it is."""
    if key_B is None or rate == 0:
        return x_BxLxD
    kept_BxLxD = jax.vmap(lambda key: kept(key, rate, x_BxLxD.shape[1:]))(key_B)
    return jnp.where(kept_BxLxD, x_BxLxD / (1 - rate), 0).astype(x_BxLxD.dtype)


def initializer(model: config.Model):
    """Weights: a truncated normal of model.init_std (BERT: 0.02), or scaled to the matrix's inputs where that is 0."""
    if model.init_std:
        return nn.initializers.truncated_normal(model.init_std)
    return nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")


def dense(model: config.Model, features: int, name: str, bias_init=nn.initializers.zeros) -> nn.Dense:
    product = (functools.partial(cpu_kernels.dot_general, jnp.dtype(model.dtype)) if cpu_kernels.takes(model,
                                                                                                       "matmul") else None)
    return nn.Dense(features, dtype=cpu_kernels.stream(model), kernel_init=initializer(model), bias_init=bias_init,
                    name=name, dot_general=product)


def norm(model: config.Model, name: str) -> nn.LayerNorm:
    return nn.LayerNorm(epsilon=model.norm_eps, dtype=cpu_kernels.stream(model), name=name)


def activate(model: config.Model, x):
    """model.activation of each entry."""
    if model.activation == "gelu" and cpu_kernels.takes(model, "gelu"):
        return cpu_kernels.gelu(x)
    return nn.relu(x) if model.activation == "relu" else nn.gelu(x, approximate=model.activation == "gelu_tanh")


class MLP(nn.Module):
    """Two dense layers with model.activation between them."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD):
        hidden_BxLxH = activate(self.model, dense(self.model, self.model.mlp_dim, "up")(x_BxLxD))
        return dense(self.model, self.model.width, "down")(hidden_BxLxH)


class Stack(nn.Module):
    """model.num_layers copies of a layer, their parameters stacked along a leading axis, run by one scan.

    layer: a module of (x_BxLxD, shared, key_B) -> x_BxLxD; `shared` is the same for every layer. What stands after
    each is kept in the collection "intermediates", for those who make it mutable. With model.remat the backward pass
    computes each layer again from its input, all that the forward pass then keeps of it (Chen et al. 2016, arXiv
    1604.06174).
    """

    model: config.Model
    layer: Any

    @nn.compact
    def __call__(self, x_BxLxD, shared, key_B):
        class Step(nn.Module):
            model: config.Model
            layer: Any

            @nn.compact
            def __call__(self, x_BxLxD, index, shared, key_B):
                x_BxLxD = self.layer(self.model, name="layer")(x_BxLxD, shared, fold(key_B, index))
                self.sow("intermediates", "after", x_BxLxD)
                return x_BxLxD, None

        layers, each, layer = self.model.num_layers, Step, self.layer
        unroll = self.model.scan_unroll or layers
        if (reader := _reader.get()) is not None:
            layer = nn.map_variables(layer, "params", functools.partial(_read, reader))
        if self.model.remat:  # in a loop of its own, the backward pass shares nothing with the forward pass anyway
            each = nn.remat(Step, prevent_cse=unroll == layers)
        steps = nn.scan(each, variable_axes={"params": 0, "intermediates": 0}, split_rngs={"params": True},
                        in_axes=(0, nn.broadcast, nn.broadcast), length=layers, unroll=unroll)
        x_BxLxD, _ = steps(self.model, layer, name="layers")(x_BxLxD, jnp.arange(1, layers + 1), shared, key_B)
        return x_BxLxD


def _read(reader, variables):
    return variables | {"params": reader(variables["params"])}
