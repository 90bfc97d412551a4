"""How parameters and gradients lie on the devices of a train step."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from mlm.base import types

Tree = TypeVar("Tree")


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


def reduce_as(dtype: str, all_reduce: Callable[[Any], Any], tree: Tree) -> Tree:
    """The sums of arrays over devices, sent and added in a type; they keep their own."""
    sums = all_reduce(jax.tree.map(lambda x: x.astype(dtype), tree))
    return jax.tree.map(lambda total, x: total.astype(x.dtype), sums, tree)
