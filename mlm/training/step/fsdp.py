"""Parameters, gradients and optimizer moments split over devices: along which axis, and where devices gather them.

ZeRO's third stage (Rajbhandari et al. 2020, arXiv 1910.02054). Each device keeps a shard of every matrix. It gathers a
layer's parameters when it computes that layer, and receives only its own shard of each summed gradient. Parameters
outside the layers, such as the embeddings, are gathered once per pass. Without this, XLA would gather the activations
of the whole batch in each layer instead.
"""

# JAX, optax and NumPy leave some of their own types unknown; what this file declares is checked strictly.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from mlm.base import types

LAYERS_KEY = "layers"  # in the path of arrays that hold all layers along their first axis
REPLICATED = -1  # in place of an axis: every device has the full array


def choose_axis(path: tuple[Any, ...], shape: tuple[int, ...], num_devices: int) -> int:
    """The axis along which an array is split: the largest that num_devices divides, or REPLICATED.

    The axis of the layers is never split: a loop reads one layer after the other, and a device that held only some
    of them would need all the others at once. Vectors are replicated: they are a thousandth of a model, and each
    would cost a message.
    """
    first = int(is_stacked(path))
    candidates = [axis for axis in range(first, len(shape)) if shape[axis] % num_devices == 0]
    if num_devices == 1 or len(shape) - first < 2 or not candidates:
        return REPLICATED
    return max(candidates, key=lambda axis: shape[axis])


def is_stacked(path: tuple[Any, ...]) -> bool:
    """Whether an array holds all layers; path: as jax.tree_util gives it."""
    return LAYERS_KEY in (getattr(key, "key", None) for key in path)


def choose_axes(tree: Any, num_devices: int):
    """`choose_axis` for each array of a tree of full arrays, abstract or not."""
    return jax.tree_util.tree_map_with_path(lambda path, x: choose_axis(path, x.shape, num_devices), tree)


def make_partition_specs(tree: Any, num_devices: int):
    """The PartitionSpec of each array of a tree of full arrays."""
    return jax.tree.map(
        lambda axis: jax.P() if axis == REPLICATED else jax.P(*[None] * axis, "data"), choose_axes(tree, num_devices)
    )


def make_shardings(tree: Any, mesh: Any):
    """The NamedSharding of each array of a tree of full arrays."""
    return jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), make_partition_specs(tree, mesh.size))


def compute_shard_shapes(tree: Any, num_devices: int):
    """The shape of one device's shard of each array of a tree of full arrays."""

    def compute_shape(split_axis: int | None, x: types.Array):
        shape = [size // num_devices if axis == split_axis else size for axis, size in enumerate(x.shape)]
        return jax.ShapeDtypeStruct(shape, x.dtype)

    return jax.tree.map(compute_shape, choose_axes(tree, num_devices), tree)


def gather_array(axis: int, shard: types.Array):
    """The full array; the gradient of a shard is the sum of all devices' gradients of it (a reduce-scatter)."""
    return shard if axis == REPLICATED else jax.lax.all_gather(shard, "data", axis=axis, tiled=True)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["axis"])
@dataclasses.dataclass(frozen=True)
class LayerShard:
    """A device's shard of a stacked array, or of one layer's; the layer gathers it when it reads its parameters."""

    array: jax.Array
    axis: int  # of one layer's array

    def gather(self) -> jax.Array:
        """The full array of one layer."""
        return gather_array(self.axis, self.array)


class FSDP:
    """A ShardingStrategy in which each device holds a shard of every matrix, its gradient and its optimizer moments.

    Built inside the step that jax.jit compiles, from the full parameters.
    """

    def __init__(self, mesh: Any, params: types.Params):
        self.mesh, self.params = mesh, params

    def find_axis(self, path: tuple[Any, ...]) -> int:
        """The axis along which the parameter at this path is split."""
        full = functools.reduce(lambda tree, key: tree[key.key], path, self.params)
        return choose_axis(path, full.shape, self.mesh.size)

    def map_devices(self, function: Callable[..., Any]):
        """Runs the function inside jax.shard_map on each device's shards and examples."""

        def call(
            params: types.Params,
            trainable_params: types.Params,
            step: types.Array,
            batch: types.Batch,
            hparams: types.TracedHparams,
        ):
            specs, trainable_specs = (make_partition_specs(tree, self.mesh.size) for tree in (params, trainable_params))
            in_specs = specs, trainable_specs, jax.P(), jax.P("data"), jax.P()
            out_specs = trainable_specs, jax.P(), jax.P()
            return shard_map(function, self.mesh, in_specs, out_specs)(params, trainable_params, step, batch, hparams)

        return call

    def gather_params(self, params: types.Params):
        """Gathers all but the parameters of stacked layers."""

        def gather(path: tuple[Any, ...], shard: types.Array):
            axis = self.find_axis(path)
            return LayerShard(shard, axis - 1) if is_stacked(path) and axis != REPLICATED else gather_array(axis, shard)

        return jax.tree_util.tree_map_with_path(gather, params)

    def reduce_gradients(self, grads: types.Params):
        """Sums what all devices hold; the gradients of shards are sums already, by the transpose of their gathering."""
        return jax.tree_util.tree_map_with_path(
            lambda path, grad: self.all_reduce(grad) if self.find_axis(path) == REPLICATED else grad, grads
        )

    def all_reduce(self, tree: Any):
        """The sums of all devices."""
        return tree if self.mesh.size == 1 else jax.lax.psum(tree, "data")


def shard_map(function: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """jax.shard_map without its check of replication, which does not know our gathered layers."""
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
