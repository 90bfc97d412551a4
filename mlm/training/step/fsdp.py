"""Parameters, gradients and optimizer moments split over devices: along which axis, and where devices gather them.

ZeRO's third stage (Rajbhandari et al. 2020, arXiv 1910.02054). Each device keeps a shard of every matrix. It gathers a
layer's parameters when it computes that layer, and receives only its own shard of each summed gradient. Parameters
outside the layers, such as the embeddings, are gathered once per pass. Without this, XLA would gather the activations
of the whole batch in each layer instead.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax

from mlm.base import types
from mlm.models import layers

LAYERS_KEY = "layers"  # in the path of arrays that hold all layers along their first axis
REPLICATED = -1  # in place of an axis: every device has the full array


def choose_axis(path, shape: tuple[int, ...], num_devices: int) -> int:
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


def is_stacked(path) -> bool:
    """Whether an array holds all layers; path: as jax.tree_util gives it."""
    return LAYERS_KEY in (getattr(key, "key", None) for key in path)


def choose_axes(tree, num_devices: int):
    """`choose_axis` for each array of a tree of full arrays, abstract or not."""
    return jax.tree_util.tree_map_with_path(lambda path, x: choose_axis(path, x.shape, num_devices), tree)


def make_partition_specs(tree, num_devices: int):
    """The PartitionSpec of each array of a tree of full arrays."""
    return jax.tree.map(
        lambda axis: jax.P() if axis == REPLICATED else jax.P(*[None] * axis, "data"), choose_axes(tree, num_devices)
    )


def make_shardings(tree, mesh):
    """The NamedSharding of each array of a tree of full arrays."""
    return jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), make_partition_specs(tree, mesh.size))


def compute_shard_shapes(tree, num_devices: int):
    """The shape of one device's shard of each array of a tree of full arrays."""

    def compute_shape(split_axis, x):
        shape = [size // num_devices if axis == split_axis else size for axis, size in enumerate(x.shape)]
        return jax.ShapeDtypeStruct(shape, x.dtype)

    return jax.tree.map(compute_shape, choose_axes(tree, num_devices), tree)


def gather_array(axis: int, shard):
    """The full array; the gradient of a shard is the sum of all devices' gradients of it (a reduce-scatter)."""
    return shard if axis == REPLICATED else jax.lax.all_gather(shard, "data", axis=axis, tiled=True)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["axis"])
@dataclasses.dataclass(frozen=True)
class LayerShard:
    """A device's shard of an array of all layers, or of one layer, with the axis along which one layer is split."""

    array: jax.Array
    axis: int


def gather_layer(shards):
    """The full arrays of a layer."""
    return jax.tree.map(
        lambda leaf: gather_array(leaf.axis, leaf.array) if isinstance(leaf, LayerShard) else leaf,
        shards,
        is_leaf=lambda leaf: isinstance(leaf, LayerShard),
    )


def bind_gather_params(function: Callable, params: types.Params, num_devices: int) -> Callable:
    """function(gather_params, ...) as one device runs it.

    Its gather_params turns shards into full parameters, except those of the layers: they are gathered when the model
    reads them. params: the full parameters, for their shapes.
    """
    axes = choose_axes(params, num_devices)

    def gather_params(shards):
        return jax.tree_util.tree_map_with_path(
            lambda path, axis, shard: (
                LayerShard(shard, axis - 1) if is_stacked(path) and axis != REPLICATED else gather_array(axis, shard)
            ),
            axes,
            shards,
        )

    def call(*values):
        with layers.map_layer_params(gather_layer):
            return function(gather_params, *values)

    return call


def map_over_devices(mesh, function: Callable, params: types.Params, in_specs, out_specs) -> Callable:
    """`bind_gather_params` on each device of a mesh; in_specs, out_specs: as jax.shard_map takes them."""
    return jax.shard_map(
        bind_gather_params(function, params, mesh.size),
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,
    )


def reduce_gradients(
    mesh,
    all_reduce: Callable,
    local_gradients: Callable,
    params: types.Params,
    trainable_params: types.Params,
    step,
    batch: types.Batch,
    hparams: types.TracedHparams,
):
    """`update.reduce_gradients` with sharded parameters: each device gets only its own shard of the gradients."""
    axes = choose_axes(trainable_params, mesh.size)

    def reduce_on_device(gather_params, params, trainable_params, step, batch, hparams):
        grads, sums, weight = local_gradients(all_reduce, gather_params, params, trainable_params, step, batch, hparams)
        grads = jax.tree.map(lambda axis, grad: all_reduce(grad) if axis == REPLICATED else grad, axes, grads)
        return grads, all_reduce(sums), weight

    replicated = jax.P()
    params_specs = make_partition_specs(params, mesh.size)
    trainable_specs = make_partition_specs(trainable_params, mesh.size)
    in_specs = params_specs, trainable_specs, replicated, jax.P("data"), replicated
    out_specs = trainable_specs, replicated, replicated
    return map_over_devices(mesh, reduce_on_device, params, in_specs, out_specs)(
        params, trainable_params, step, batch, hparams
    )
