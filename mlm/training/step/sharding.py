"""How parameters and gradients lie on the devices of a train step."""

# JAX, optax and NumPy leave some of their own types unknown; what this file declares is checked strictly.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax

from mlm.base import types

Tree = TypeVar("Tree")


class ShardingStrategy(Protocol):
    """Which part of the parameters and gradients each device holds."""

    def map_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of (params, trainable_params, step, batch, hparams), run by each device on its part of them.

        Where the whole step runs inside jax.shard_map or jax.pmap (Replicated) that is the function itself. FSDP enters
        jax.shard_map here, for the gradients alone; its optimizer runs outside, on sharded arrays.
        """
        ...

    def gather_params(self, params: types.Params) -> Any:
        """The parameters that this device holds, as an objective reads them."""
        ...

    def reduce_gradients(self, grads: types.Params) -> types.Params:
        """The gradients of this device's examples, summed over all devices; the part that this device holds."""
        ...

    def all_reduce(self, tree: Tree) -> Tree:
        """A tree of this device's sums, summed over all devices."""
        ...


@dataclasses.dataclass(frozen=True)
class Replicated:
    """Each device holds all parameters. The step runs on each device, inside jax.shard_map or jax.pmap."""

    num_devices: int
    names: tuple[str, ...] = ("data",)  # the mesh's axes
    reduce_dtype: str = "float32"  # in which devices send their gradients

    def map_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself."""
        return function

    def gather_params(self, params: types.Params) -> types.Params:
        """The parameters as they are."""
        return params

    def reduce_gradients(self, grads: types.Params) -> types.Params:
        """The sums of all devices."""
        return reduce_as(self.reduce_dtype, self.all_reduce, grads) if self.num_devices > 1 else grads

    def all_reduce(self, tree: Tree) -> Tree:
        """The sums of all devices; on one device the tree itself, which XLA on CPU would copy."""
        return tree if self.num_devices == 1 else jax.lax.psum(tree, self.names)


def reduce_as(dtype: str, all_reduce: Callable[[Any], Any], tree: Tree) -> Tree:
    """The sums of arrays over devices, sent and added in a type; they keep their own."""
    sums = all_reduce(jax.tree.map(lambda x: x.astype(dtype), tree))
    return jax.tree.map(lambda total, x: total.astype(x.dtype), sums, tree)
