"""What a layer's forward pass saves for the backward pass, which computes the rest again: jax.checkpoint's policies."""

import contextlib
import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np

# (primitive, *abstract inputs, **parameters) -> whether its result is saved; None: nothing is.
Policy = Callable[..., Any] | None
FUSED_KERNEL = "fused_kernel"  # jax.ad_checkpoint.checkpoint_name's name of what a fused kernel reads and gives
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
    is_named = primitive.name == "name" and params["name"] == FUSED_KERNEL
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


def join_policies(first: Policy, second: Policy) -> Policy:
    """Saves what both save."""
    if first is None or second is None:
        return None
    return lambda *arguments, **params: first(*arguments, **params) and second(*arguments, **params)
