"""Parameters, gradients and moments split over devices: along which axis, and where a device makes them whole.

ZeRO's third stage (Rajbhandari et al. 2020, arXiv 1910.02054): a device keeps its part of each matrix, gathers those of
a layer when that layer is computed, and adds up its part of each gradient alone. What stands outside the layers, such
as the embeddings, is gathered once a pass. Left to itself XLA gathers in each layer the whole batch's rows instead.
"""
import dataclasses
import functools
from collections.abc import Callable

import jax

from mlm.base import types
from mlm.models import layers

STACK = "layers"  # in the path of arrays that hold all layers along their first axis
WHOLE = -1        # in the place of an axis: every device has the whole array


def axis(path, shape: tuple[int, ...], devices: int) -> int:
    """Along which an array is split: its largest axis that divides by the number of devices; or WHOLE.

    Never along that of the layers: a loop over them reads one after the other, and a device that has some of them alone
    would need all the others' at once. Vectors stay whole: they are a thousandth of a model, and a message each.
    """
    first = int(stacked(path))
    free = [number for number in range(first, len(shape)) if shape[number] % devices == 0]
    if devices == 1 or len(shape) - first < 2 or not free:
        return WHOLE
    return max(free, key=lambda number: shape[number])


def stacked(path) -> bool:
    """Whether an array holds all layers; path: as jax.tree_util gives it."""
    return STACK in (getattr(key, "key", None) for key in path)


def axes(tree, devices: int):
    """`axis` of each array in a tree of whole ones, abstract or not."""
    return jax.tree_util.tree_map_with_path(lambda path, x: axis(path, x.shape, devices), tree)


def specs(tree, devices: int):
    """How jax.shard_map cuts a tree of whole arrays."""
    return jax.tree.map(lambda number: jax.P() if number == WHOLE else jax.P(*[None] * number, "data"),
                        axes(tree, devices))


def shardings(tree, mesh):
    """Where a tree of whole arrays lies."""
    return jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), specs(tree, mesh.size))


def parts(tree, devices: int):
    """The shapes of what each device has of a tree of whole arrays."""
    def part(number, x):
        shape = [size // devices if at == number else size for at, size in enumerate(x.shape)]
        return jax.ShapeDtypeStruct(shape, x.dtype)

    return jax.tree.map(part, axes(tree, devices), tree)


def gather(number: int, part):
    """An array from its parts; the gradient of a part is the sum of all devices' gradients of it (a reduce-scatter)."""
    return part if number == WHOLE else jax.lax.all_gather(part, "data", axis=number, tiled=True)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["axis"])
@dataclasses.dataclass(frozen=True)
class Part:
    """A device's part of an array of all layers, or of one of them, with the axis along which one is split."""

    array: jax.Array
    axis: int


def layer(parts):
    """The arrays of a layer."""
    return jax.tree.map(lambda part: gather(part.axis, part.array) if isinstance(part, Part) else part, parts,
                        is_leaf=lambda part: isinstance(part, Part))


def reading(function: Callable, params: types.Params, devices: int) -> Callable:
    """function(whole, ...) on one of the devices, which has its part of some parameters, given here whole for their
    shapes. It is handed `whole`, which gathers them, but for the layers': those are gathered as they are read.
    """
    split = axes(params, devices)

    def whole(parts):
        return jax.tree_util.tree_map_with_path(
            lambda path, number, part: Part(part, number - 1) if stacked(path) and number != WHOLE else
            gather(number, part), split, parts)

    def call(*values):
        with layers.read_through(layer):
            return function(whole, *values)

    return call


def local(mesh, function: Callable, params: types.Params, inputs, outputs) -> Callable:
    """`reading` on each device of a mesh; inputs, outputs: how what is handed and returned is cut."""
    return jax.shard_map(reading(function, params, mesh.size), mesh=mesh, in_specs=inputs, out_specs=outputs,
                         check_vma=False)


def summed(mesh, total: Callable, own: Callable, params: types.Params, part: types.Params, step, batch: types.Batch,
           knobs: types.TracedHparams):
    """As update.summed, of which each device makes its part of the gradient from its rows."""
    split = axes(part, mesh.size)

    def sums(whole, params, part, step, batch, knobs):
        gradient, sums, weight = own(total, whole, params, part, step, batch, knobs)
        gradient = jax.tree.map(lambda number, leaf: total(leaf) if number == WHOLE else leaf, split, gradient)
        return gradient, total(sums), weight

    same, of_params, of_part = jax.P(), specs(params, mesh.size), specs(part, mesh.size)
    inputs, outputs = (of_params, of_part, same, jax.P("data"), same), (of_part, same, same)
    return local(mesh, sums, params, inputs, outputs)(params, part, step, batch, knobs)
