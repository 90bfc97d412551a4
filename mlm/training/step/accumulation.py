"""Gradients of a batch, summed over its microbatches and over the masks of its examples."""

# JAX, optax and NumPy leave some of their own types unknown; what this file declares is checked strictly.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from mlm.base import batch_warmup, config, types


class GradientFn(Protocol):
    """The gradients of some examples under one of their masks."""

    def __call__(self, trainable_params: types.Params, examples: Any, mask_index: Any, /) -> tuple[types.Params, Any]:
        """(gradients, a tree of scalar sums); examples: arrays with a leading axis of examples."""
        ...


def accumulate_gradients(
    train: config.Train,
    gradient_fn: GradientFn,
    trainable_params: types.Params,
    examples: Any,
    step: types.Array,
    num_masks: int,
) -> tuple[types.Params, Any]:
    """What `gradient_fn` returns, summed over the microbatches that a step uses and over the masks.

    Args:
        train: grad_accum_steps is the number of microbatches; batch-size warm-up uses some of them.
        examples: those of this device, arrays with a leading axis.
        num_masks: passes over each example, each under another mask.
    """
    num_parts = train.grad_accum_steps
    if num_parts * num_masks == 1:
        return gradient_fn(trainable_params, examples, 0)

    def compute_pass(microbatches: Any, number: Any) -> tuple[types.Params, Any]:
        microbatch = jax.tree.map(lambda x: x[number // num_masks], microbatches)
        return gradient_fn(trainable_params, microbatch, number % num_masks)

    if train.batch_warmup_fraction > 0:  # the number of passes is traced
        microbatches = batch_warmup.split_batch(train, step, examples)
        shapes = jax.eval_shape(lambda: compute_pass(microbatches, 0))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.fori_loop(
            0,
            num_masks * batch_warmup.count_microbatches(train, step),
            lambda number, total: jax.tree.map(jnp.add, total, compute_pass(microbatches, number)),
            zeros,
        )

    microbatches = jax.tree.map(lambda x: x.reshape(num_parts, -1, *x.shape[1:]), examples)

    def add_pass(grads: types.Params, number: jax.Array) -> tuple[types.Params, Any]:
        new_grads, sums = compute_pass(microbatches, number)
        return jax.tree.map(jnp.add, grads, new_grads), sums

    zeros = jax.tree.map(jnp.zeros_like, trainable_params)
    grads, sums = jax.lax.scan(add_pass, zeros, jnp.arange(num_parts * num_masks))
    return grads, jax.tree.map(lambda x: x.sum(0), sums)
