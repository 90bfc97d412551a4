"""Batch-size warm-up: the first steps use some of their microbatches, and spare the compute of the others.

Which examples those are does not depend on the number of devices: microbatch m has the examples whose index in the
global batch is m modulo the number of microbatches. Steps begin with different ones, so that what an objective does by
an example's index, such as the causal examples of hybrid, has its usual share over the steps.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mlm.base import config, errors, types

if TYPE_CHECKING:
    import jax


def check(train: config.Train) -> None:
    """Raises ConfigError for a batch-size warm-up that no run could use."""
    fraction, expected = train.batch_warmup_fraction, "0, or config.train.grad_accum_steps above 1"
    errors.require(not fraction or train.grad_accum_steps > 1, "config.train.batch_warmup_fraction", fraction, expected)


def count_microbatches(train: config.Train, step: Any) -> Any:
    """How many of its microbatches a step uses, from one to all. Steps that are not traced start no device (NumPy)."""
    xp: Any = np
    if not isinstance(step, int | np.ndarray):
        import jax.numpy as xp
    num_warmup = max(round(train.batch_warmup_fraction * train.steps), 1)
    fraction = train.initial_batch_fraction + (1 - train.initial_batch_fraction) * step / num_warmup
    count = xp.floor(xp.float32(train.grad_accum_steps * fraction + 1e-4))  # which may fall just below an integer
    return xp.clip(count, 1, train.grad_accum_steps).astype(xp.int32)


def count_batches_read(train: config.Train) -> types.Array:
    """How many full batches of examples a run has used after each of its steps."""
    if not train.batch_warmup_fraction:
        return np.arange(1, train.steps + 1)
    return np.cumsum(count_microbatches(train, np.arange(train.steps)), dtype=np.int64) / train.grad_accum_steps


def count_batches(train: config.Train, steps: range) -> float:
    """How many full batches of examples these steps, counted from 0, use: their compute and time are proportional."""
    if not train.batch_warmup_fraction:
        return len(steps)
    return int(count_microbatches(train, np.array(steps)).sum()) / train.grad_accum_steps


def compute_mean_fraction(train: config.Train, steps: range | None = None) -> float:
    """The share of a full batch that a step uses, mean over these steps, counted from 0; None: over the run."""
    steps = range(train.steps) if steps is None else steps
    return count_batches(train, steps) / len(steps) if steps else 1.0


def split_batch(train: config.Train, step: types.Array, tree: Any) -> Any:
    """Arrays of examples with a leading axis of microbatches; the step uses the first of them."""
    import jax
    import jax.numpy as jnp

    num_parts = train.grad_accum_steps
    return jax.tree.map(
        lambda x: jnp.roll(x.reshape(-1, num_parts, *x.shape[1:]).swapaxes(0, 1), -(step % num_parts), 0), tree
    )


def flag_used(train: config.Train, step: types.Array, batch_size: int) -> jax.Array:
    """is_used_B: whether the step uses each example of the batch of a device."""
    import jax.numpy as jnp

    part_B = (jnp.arange(batch_size) - step) % train.grad_accum_steps
    return part_B < count_microbatches(train, step)
