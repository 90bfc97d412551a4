"""How parameters, gradients and optimizer moments lie on the devices of a train step: replicated, or split (FSDP).

FSDP is ZeRO's third stage (Rajbhandari et al. 2020, arXiv 1910.02054). Each device keeps a shard of every matrix
that has an axis which the devices divide, and the whole of others (`choose_axis`). It gathers a layer's parameters when
it computes that layer, and receives only its own shard of each summed gradient. Parameters outside the layers, such as
the embeddings, are gathered once per pass. Without this, XLA would gather the activations of the whole batch in each
layer instead.

Several slices each hold all parameters, as PyTorch's hybrid sharding has it: devices gather within their slice, and
slices add up their shards of the gradients, once a step.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from mlm.base import types

Tree = TypeVar("Tree")
LAYERS_KEY = "layers"  # in the path of arrays that hold all layers along their first axis (models/stack.py: Stack)
REPLICATED = -1  # in place of an axis: every device has the full array
SLICE_AXIS = "slice"  # of a mesh of several slices; along it, every slice has the same shards


class Replicated:
    """Each device holds all parameters. The step runs on each device, inside jax.shard_map or jax.pmap.

    names: the mesh's axes; reduce_dtype: in which devices send their gradients.
    """

    def __init__(self, num_devices: int, names: tuple[str, ...] = ("data",), reduce_dtype: str = "float32"):
        self.num_devices, self.names, self.reduce_dtype = num_devices, names, reduce_dtype

    def map_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of (params, trainable_params, step, batch, hparams), run by each device on its part of them.

        That is the function itself. FSDP enters jax.shard_map here, for the gradients alone; its optimizer runs
        outside, on sharded arrays.
        """
        return function

    def gather_params(self, params: types.Params) -> Any:
        """The parameters that this device holds, as an objective reads them."""
        return params

    def reduce_gradients(self, grads: types.Params) -> types.Params:
        """The gradients of this device's examples, summed over all devices; the part that this device holds."""
        return reduce_as(self.reduce_dtype, self.all_reduce, grads) if self.num_devices > 1 else grads

    def all_reduce(self, tree: Tree) -> Tree:
        """The sums of all devices; on one device the tree itself, which XLA on CPU would copy."""
        return tree if self.num_devices == 1 else jax.lax.psum(tree, self.names)

    def gather_examples(self, tree: Tree) -> Tree:
        """Arrays of this device's examples as those of all devices; their gradient is the sum of all devices'."""
        if self.num_devices == 1:
            return tree
        return jax.tree.map(lambda x_Bx: jax.lax.all_gather(x_Bx, self.names, tiled=True), tree)


def reduce_as(dtype: str, all_reduce: Callable[[Any], Any], tree: Tree) -> Tree:
    """The sums of arrays over devices, sent and added in a type; they keep their own."""
    sums = all_reduce(jax.tree.map(lambda x: x.astype(dtype), tree))
    return jax.tree.map(lambda total, x: total.astype(x.dtype), sums, tree)


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


def list_shard_axes(mesh: Any) -> tuple[str, ...]:
    """The mesh's axes along which arrays are split: one, or those of a TPU's torus."""
    return tuple(name for name in mesh.axis_names if name != SLICE_AXIS)


def count_shards(mesh: Any) -> int:
    """The number of shards of an array: the devices of a slice."""
    return math.prod(mesh.shape[name] for name in list_shard_axes(mesh))


def make_example_spec(mesh: Any):
    """The PartitionSpec of examples, of which each device has its own."""
    return jax.P(join_axes(mesh.axis_names))


def join_axes(names: tuple[str, ...]) -> str | tuple[str, ...]:
    """Names of mesh axes as one entry of a PartitionSpec; JAX tells one name from a tuple of one."""
    return names[0] if len(names) == 1 else names


def list_whole_matrices(num_shards: int, params: types.Params) -> list[str]:
    """The paths of the matrices that each device holds whole, since num_shards divides none of their axes."""
    return [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, x in jax.tree_util.tree_leaves_with_path(params)
        if num_shards > 1
        and len(x.shape) - is_stacked(path) > 1
        and choose_axis(path, x.shape, num_shards) == REPLICATED
    ]


def make_partition_specs(tree: Any, mesh: Any):
    """The PartitionSpec of each array of a tree of full arrays."""
    names, num_shards = join_axes(list_shard_axes(mesh)), count_shards(mesh)

    def make_spec(path: tuple[Any, ...], x: types.Array):
        axis = choose_axis(path, x.shape, num_shards)
        return jax.P() if axis == REPLICATED else jax.P(*[None] * axis, names)

    return jax.tree_util.tree_map_with_path(make_spec, tree)


def make_shardings(tree: Any, mesh: Any):
    """The NamedSharding of each array of a tree of full arrays."""
    return jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), make_partition_specs(tree, mesh))


def compute_shard_shapes(tree: Any, num_shards: int):
    """The shape of one device's shard of each array of a tree of full arrays."""

    def compute_shape(path: tuple[Any, ...], x: types.Array):
        split_axis = choose_axis(path, x.shape, num_shards)
        shape = [size // num_shards if axis == split_axis else size for axis, size in enumerate(x.shape)]
        return jax.ShapeDtypeStruct(shape, x.dtype)

    return jax.tree_util.tree_map_with_path(compute_shape, tree)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def gather_array(axis: int, names: tuple[str, ...], reduce_dtype: str, shard: types.Array):
    """The full array of shards along an axis; a shard's gradient is the sum of all devices', sent in reduce_dtype."""
    return jax.lax.all_gather(shard, names, axis=axis, tiled=True)


def _gather_forward(axis: int, names: tuple[str, ...], reduce_dtype: str, shard: types.Array):
    return gather_array(axis, names, reduce_dtype, shard), None


def _scatter_gradient(axis: int, names: tuple[str, ...], reduce_dtype: str, _: None, grad: types.Array):
    return (reduce_scatter(axis, names, grad.astype(reduce_dtype)).astype(grad.dtype),)


gather_array.defvjp(_gather_forward, _scatter_gradient)


def reduce_scatter(axis: int, names: tuple[str, ...], grad: types.Array):
    """This device's shard, along an axis of the array, of the sum of all devices' arrays.

    Along several mesh axes, one after the other, each on its own leading axis of the array: for a slice such as v5e-16,
    which is no full torus, libtpu 0.0.42 makes of one reduce-scatter over all its chips an all-reduce of the whole
    array, and of one along an axis whose parts do not fill its tiles, too.
    """
    if len(names) == 1:
        return jax.lax.psum_scatter(grad, names, scatter_dimension=axis, tiled=True)
    sizes = [jax.lax.axis_size(name) for name in names]
    parts = grad.reshape(*grad.shape[:axis], *sizes, -1, *grad.shape[axis + 1 :])
    parts = jnp.moveaxis(parts, range(axis, axis + len(names)), range(len(names)))
    for name in names:
        parts = jax.lax.psum_scatter(parts, name, scatter_dimension=0, tiled=False)
    return parts


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["axis", "names", "reduce_dtype"]
)
@dataclasses.dataclass(frozen=True)
class LayerShard:
    """A device's shard of a stacked array, or of one layer's; the layer gathers it when it reads its parameters."""

    array: jax.Array
    axis: int  # of one layer's array
    names: tuple[str, ...]  # of the mesh axes
    reduce_dtype: str

    @property
    def full_size(self) -> int:
        """The number of entries of the full array."""
        return self.array.size * math.prod(jax.lax.axis_size(name) for name in self.names)

    def gather(self) -> jax.Array:
        """The full array of one layer."""
        return gather_array(self.axis, self.names, self.reduce_dtype, self.array)


class FSDP(Replicated):
    """Each device holds a shard of every matrix, its gradient and its optimizer moments; built inside the step."""

    def __init__(self, mesh: Any, params: types.Params, reduce_dtype: str = "float32"):
        super().__init__(mesh.size, mesh.axis_names, reduce_dtype)
        self.mesh, self.params, self.shard_axes = mesh, params, list_shard_axes(mesh)

    def find_axis(self, path: tuple[Any, ...]) -> int:
        """The axis along which the parameter at this path is split."""
        full = functools.reduce(lambda tree, key: tree[key.key], path, self.params)
        return choose_axis(path, full.shape, count_shards(self.mesh))

    def map_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Runs the function inside jax.shard_map on each device's shards and examples."""

        def call(params: types.Params, trainable_params: types.Params, *step_batch_hparams: Any):
            specs, trainable_specs = (make_partition_specs(tree, self.mesh) for tree in (params, trainable_params))
            in_specs = specs, trainable_specs, jax.P(), make_example_spec(self.mesh), jax.P()
            mapped = shard_map(function, self.mesh, in_specs, (trainable_specs, jax.P(), jax.P()))
            return mapped(params, trainable_params, *step_batch_hparams)

        return call

    def gather_params(self, params: types.Params):
        """Gathers all but the parameters of stacked layers."""

        def gather(path: tuple[Any, ...], shard: types.Array):
            axis = self.find_axis(path)
            if axis == REPLICATED:
                return shard
            if is_stacked(path):
                return LayerShard(shard, axis - 1, self.shard_axes, self.reduce_dtype)
            return gather_array(axis, self.shard_axes, self.reduce_dtype, shard)

        return jax.tree_util.tree_map_with_path(gather, params)

    def reduce_gradients(self, grads: types.Params):
        """Sums what all devices hold; the gradients of shards are sums over a slice, by the transpose of gathering."""

        def reduce(path: tuple[Any, ...], grad: types.Array):
            names = self.mesh.axis_names
            if self.find_axis(path) != REPLICATED:
                names = tuple(name for name in names if name == SLICE_AXIS)
            if not names or self.mesh.size == 1:
                return grad
            return reduce_as(self.reduce_dtype, functools.partial(jax.lax.psum, axis_name=names), grad)

        return jax.tree_util.tree_map_with_path(reduce, grads)


def shard_map(function: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """jax.shard_map without its check of replication, which does not know our gathered layers."""
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
