"""What a layer of an encoder or decoder is, the scan over them, and what of them is saved for the backward pass."""

import contextlib
import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config
from mlm.models import fused_norm, layers, platform_kernels

# (primitive, *abstract inputs, **parameters) -> whether its result is saved; None: nothing is.
Policy = Callable[..., Any] | None
CUDNN_ATTENTION = "dot_product_attention_fwd_wrapper"  # JAX's primitive: attention, and what its backward pass needs


def save_all_but_attention(num_scores: int) -> Policy:
    """Saves all but attention's scores (num_scores a layer), what follows from them, and random bits."""

    def is_saved(primitive, *arrays, **params):
        has_batch = primitive.name == "dot_general" and params["dimension_numbers"][1] != ((), ())
        shapes = [params.get("shape", ()), *(getattr(array, "shape", ()) for array in arrays)]
        with contextlib.suppress(ValueError):
            shapes.append(np.broadcast_shapes(*shapes))  # of an operation on entries
        is_score = any(math.prod(shape) == num_scores for shape in shapes)
        return not (has_batch or is_score or primitive.name.startswith("random_"))

    return is_saved


def save_products(primitive: Any, *arrays: Any, **params: Any) -> bool:
    """Saves products with weights, and what a fused kernel such as splash attention reads and gives.

    The backward pass computes the rest again: operations on entries, which cost an accelerator less than storing and
    reading their results, and the scores of attention where no kernel fuses them.
    """
    is_product = jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *arrays, **params)
    is_named = primitive.name == "name" and params["name"] == platform_kernels.FUSED_KERNEL
    return is_product or is_named or primitive.name == CUDNN_ATTENTION


POLICIES: dict[str, Callable[[int], Policy]] = {  # of config.model.remat_policy, from the number of scores of a layer
    "all": lambda num_scores: None,
    "dots": lambda num_scores: jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "attention": save_all_but_attention,
}


def save_all_but_gathered(sizes: Collection[int]) -> Policy:
    """A policy that gathers a layer's parameters again in the backward pass (ZeRO-3); sizes: of the gathered arrays."""

    def is_saved(primitive, *arrays, **params):
        if primitive.name == "custom_vjp_call":  # the gathering is one (mlm/training/step/sharding.py)
            arrays = params["call_jaxpr"].out_avals
        elif primitive.name not in ("convert_element_type", "reshape", "transpose"):
            return True
        return arrays[0].size not in sizes

    return is_saved


def join_policies(policies: list[Policy]) -> Policy:
    """Saves what all of them save."""
    saving = [policy for policy in policies if policy is not None]
    if len(saving) < len(policies):
        return None
    return lambda *arguments, **params: all(policy(*arguments, **params) for policy in saving)


class LayerScale(nn.Module):
    """A learned factor of each entry of a sublayer's output (Touvron et al. 2021, arXiv 2103.17239, equation 4)."""

    initial: float

    @nn.compact
    def __call__(self, x_BxLxD):
        """Returns an array of the shape of x_BxLxD."""
        scale_D = self.param("scale", nn.initializers.constant(self.initial), x_BxLxD.shape[-1:])
        return x_BxLxD * scale_D.astype(x_BxLxD.dtype)


class ResidualLayer(nn.Module):
    """A layer whose sublayers stand between norms and residual connections."""

    model: config.Model

    def add(self, name: str, sublayer: Callable, x_BxLxD, key_B, *, skip_norm=False):
        """x_BxLxD plus the output of a sublayer, after dropout; model.norm_placement says where the norms are.

        name: begins the norms' names; skip_norm: whether the sublayer reads x_BxLxD itself; may be traced.
        """
        model, prefix = self.model, f"{name}_" if name else ""
        sublayer_norm = layers.norm(model, f"{prefix}norm")
        is_fused = fused_norm.can_use_fused(model, x_BxLxD)
        params = sublayer_norm.variables["params"] if is_fused else None
        y_BxLxD = x_BxLxD
        if model.norm_placement != "post":
            y_BxLxD = fused_norm.normalize(model, params, x_BxLxD) if is_fused else sublayer_norm(x_BxLxD)
            y_BxLxD = y_BxLxD if skip_norm is False else jnp.where(skip_norm, x_BxLxD, y_BxLxD)
        y_BxLxD = sublayer(y_BxLxD)
        if model.norm_placement == "sandwich":
            y_BxLxD = layers.norm(model, f"{prefix}post_norm")(y_BxLxD)
        if model.layer_scale:
            y_BxLxD = LayerScale(model.layer_scale, name=f"{prefix}layer_scale")(y_BxLxD)
        if is_fused and model.norm_placement == "post":
            return fused_norm.normalize(model, params, x_BxLxD, y_BxLxD, key_B)
        x_BxLxD = x_BxLxD + layers.dropout(y_BxLxD, key_B, model.dropout)
        x_BxLxD = platform_kernels.mark_saved(x_BxLxD) if platform_kernels.find_platform() == "gpu" else x_BxLxD
        return sublayer_norm(x_BxLxD) if model.norm_placement == "post" else x_BxLxD

    def skips_norm(self, number):
        """Whether the first sublayer of layer `number` reads its input without a norm; False if no layer does."""
        return False if self.model.first_norm else number == 1


class ScanStep(nn.Module):
    """A layer as a step of the scan: it folds its number into the keys and sows its output."""

    model: config.Model
    layer: Any

    @nn.compact
    def __call__(self, x_BxLxD, number, shared, key_B):
        """Returns the layer's output, and nothing for the scan to stack."""
        x_BxLxD = self.layer(self.model, name="layer")(x_BxLxD, number, shared, layers.fold_in(key_B, number))
        self.sow("intermediates", "after", x_BxLxD)
        return x_BxLxD, None


class Stack(nn.Module):
    """model.num_layers layers, run by a scan over their parameters, which are stacked along a leading axis.

    layer: a module of (x_BxLxD, number, shared, key_B) -> x_BxLxD; `number` counts the layers from 1, `shared` is the
    same for every layer. With model.num_unique_layers the scan is over those, and runs again until num_layers have run.
    The output of each layer is sown in the collection "intermediates", an array for each run of the scan. In
    "projections" attention keeps queries, keys and values of a layer, with its kernels. With model.remat the forward
    pass stores the input of each layer and what model.remat_policy says, and the backward pass recomputes the rest
    (Chen et al. 2016, arXiv 1604.06174). The kernel `recomputation` does so with what costs little to compute. A
    parameter with a method `gather` is a device's shard: each layer gathers its own, in the forward pass and again in
    the backward pass (mlm/training/step/sharding.py).
    """

    model: config.Model
    layer: Any

    @nn.compact
    def __call__(self, x_BxLxD, shared, key_B):
        """Returns the last layer's x_BxLxD, without a final norm; each layer folds its number into key_B."""
        num_unique, step, layer = layers.count_unique_layers(self.model), ScanStep, self.layer
        unroll = self.model.scan_unroll or num_unique
        shards = list(filter(is_shard, jax.tree.leaves(self.variables.get("params"), is_leaf=is_shard)))
        if shards:
            gather = lambda leaf: leaf.gather() if is_shard(leaf) else leaf
            layer = nn.map_variables(layer, "params", lambda params: jax.tree.map(gather, params, is_leaf=is_shard))
        # A recurrence would run its loop again.
        recomputes = platform_kernels.uses_kernel(self.model, "recomputation") and not self.model.cell
        if self.model.remat or recomputes or shards:
            policies = [save_all_but_gathered({shard.full_size // num_unique for shard in shards})]
            if self.model.remat:
                num_scores = x_BxLxD.shape[0] * self.model.num_heads * x_BxLxD.shape[1] ** 2
                policies.append(POLICIES[self.model.remat_policy](num_scores))
            elif recomputes:
                policies.append(save_products)
            # In a loop that is not unrolled, XLA cannot merge the two passes anyway.
            step = nn.remat(ScanStep, prevent_cse=unroll == num_unique, policy=join_policies(policies))
        scan = nn.scan(
            step,
            variable_axes={"params": 0, "intermediates": 0},
            variable_carry="projections",
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast),  # pyright: ignore[reportArgumentType]
            length=num_unique,
            unroll=unroll,
        )
        if recomputes and not shards and not self.is_initializing() and platform_kernels.find_platform() == "gpu":
            # The weights of all layers are cast in one pass, not in two for each layer, and so are their gradients.
            dtype = platform_kernels.activation_dtype(self.model)

            def cast_kernel(path, leaf):
                return leaf.astype(dtype) if path[-1].key == "kernel" else leaf

            scan = nn.map_variables(scan, "params", functools.partial(jax.tree_util.tree_map_with_path, cast_kernel))
        run_layers = scan(self.model, layer, name="layers")
        for first in range(1, self.model.num_layers + 1, num_unique):
            x_BxLxD, _ = run_layers(x_BxLxD, jnp.arange(first, first + num_unique), shared, key_B)
        return x_BxLxD


class NormalizedStack(nn.Module):
    """The states of tokens from a stack of layers and a final norm: an encoder, or a decoder that reads a source.

    layer: as of `Stack`. prepare: of (this module, x_BxLxD, *inputs) -> what the first layer reads, and what all of
    them share. An encoder's inputs are segments_BxL and left_B: the examples of a "mixed" model that see the left side
    only.
    """

    model: config.Model
    layer: Any
    prepare: Callable[..., tuple[Any, Any]]

    @nn.compact
    def __call__(self, x_BxLxD, *inputs_and_key_B):
        """Returns h_BxLxD."""
        *inputs, key_B = inputs_and_key_B
        x_BxLxD, shared = self.prepare(self, x_BxLxD, *inputs)
        h_BxLxD = Stack(self.model, self.layer, name="stack")(x_BxLxD, shared, key_B)
        return h_BxLxD if self.model.norm_placement == "post" else layers.norm(self.model, "norm")(h_BxLxD)


def is_shard(leaf) -> bool:
    """Whether a parameter is a device's shard."""
    return hasattr(leaf, "gather")
