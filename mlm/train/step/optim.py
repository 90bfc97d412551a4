"""The optimiser: AdamW with BERT's decay mask, clipping, and the schedules, as one optax transformation."""
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from mlm.base import config, errors, types
from mlm.base.conditional_fields import FieldCondition

SCHEDULES = ("linear", "cosine", "wsd", "constant", "inverse_sqrt")
STABLE = ("wsd", "constant", "inverse_sqrt")  # the same after the warm-up, however many steps there are
READ = (FieldCondition(("optim.decay_fraction",), "optim.schedule", ("wsd",)),
        FieldCondition(("optim.final_lr_fraction",), "optim.schedule", unless=("constant", "inverse_sqrt")),
        FieldCondition(("optim.average_every",), "optim.average_checkpoints", unless=(0,)))


class Averaged(NamedTuple):
    """State of an optimiser whose run ends with a mean of its parameters; fields in the order of a checkpoint's."""

    count: jax.Array    # int32, updates made
    inner: Any
    mean: types.Params  # of the parameters at those moments that have been


def check(optim: config.Optim, steps: int) -> None:
    """Raises ConfigError for a config.optim that no run of so many steps could use."""
    name = "config.optim"
    errors.require_one_of(f"{name}.schedule", optim.schedule, SCHEDULES)
    for field in ("final_lr_fraction", "warmup_fraction", "decay_fraction"):
        errors.require_number(f"{name}.{field}", getattr(optim, field), 0, 1)
    for field in ("b1", "b2", "label_smoothing"):
        errors.require_number(f"{name}.{field}", getattr(optim, field), 0, 1, high_open=True)
    for field in ("weight_decay", "clip_norm"):
        errors.require_at_least(0, f"{name}.{field}", getattr(optim, field))
    for field in ("learning_rate", "eps"):
        errors.require(getattr(optim, field) > 0, f"{name}.{field}", getattr(optim, field), "more than 0")
    if optim.schedule == "wsd":
        parts = optim.warmup_fraction + optim.decay_fraction
        errors.require(parts <= 1, f"{name}.warmup_fraction + {name}.decay_fraction", parts, "at most 1")
    errors.require_at_least(0, f"{name}.average_checkpoints", optim.average_checkpoints)
    errors.require_at_least(1, f"{name}.average_every", optim.average_every)
    most = (steps - 1) // optim.average_every + 1
    errors.require(optim.average_checkpoints != 1 and optim.average_checkpoints <= most, f"{name}.average_checkpoints",
                   optim.average_checkpoints,
                   f"0, or 2 to {most}: so many there are, {name}.average_every = {optim.average_every} steps apart, of " f"config.train.steps = {steps}")


def warmup(optim: config.Optim, steps: int) -> int:
    """The steps of warm-up."""
    return round(optim.warmup_fraction * steps)


def stable(optim: config.Optim, steps: int) -> int:
    """How many of the first steps are made by the number of steps of warm-up alone, whatever that of all steps is."""
    peak = max(steps - warmup(optim, steps), 1) - round(optim.decay_fraction * steps)
    early = {"constant": steps, "inverse_sqrt": steps, "wsd": warmup(optim, steps) + max(peak, 0) + 1}
    before_mean = (steps - (optim.average_checkpoints - 1) * optim.average_every - 1 if optim.average_checkpoints else steps)
    return min(early.get(optim.schedule, 0), before_mean)


def schedule(optim: config.Optim, steps: int) -> Callable:
    """The share of the peak learning rate at each step, a function that can be traced.

    It rises linearly over the warm-up to the peak, then falls so that final_fraction would be that of step `steps`, one
    after the last; wsd stays at the peak until the last decay_fraction of the steps, constant for good. inverse_sqrt
    falls with the root of the update's number, from 1 (Vaswani et al. 2017, section 5.3), the last of the warm-up
    being at the peak.
    """
    rising = warmup(optim, steps)
    rest = max(steps - rising, 1)
    final = optim.final_lr_fraction
    after = {
        "constant": optax.constant_schedule(1.0),
        "inverse_sqrt": lambda step: jnp.sqrt(max(rising, 1) / (jnp.maximum(step, 0) + rising + 1)),
        "linear": optax.linear_schedule(1.0, final, rest),
        "cosine": optax.cosine_decay_schedule(1.0, rest, final),
        "wsd": optax.linear_schedule(1.0, final, max(round(optim.decay_fraction * steps), 1),
                                     transition_begin=rest - round(optim.decay_fraction * steps)),
    }[optim.schedule]
    # The first update is made at 1/rising of the peak, not at 0, which would waste it.
    return lambda step: jnp.where(step < rising, (step + 1) / max(rising, 1), after(step - rising))


def decays(params) -> types.Params:
    """BERT's decay mask: true for weights, false for biases and layer norms."""
    def decayed(path, _):
        return "bias" not in path[-1].key and path[-1].key != "scale"

    return jax.tree_util.tree_map_with_path(decayed, params)


def clip_by_global_norm(most: float) -> optax.GradientTransformation:
    """optax's, by one product with a scalar, which XLA joins to what reads the gradient; a division, as there, is a
    pass over all of memory."""
    def clip(gradient, _):
        share = most / jnp.maximum(optax.tree.norm(gradient), most)
        return jax.tree.map(lambda leaf: leaf * share, gradient)

    return optax.stateless(clip)


def scale_by(rates: types.Params) -> optax.GradientTransformation:
    """Multiplies each leaf of the updates by its own rate, an array that broadcasts to it."""
    return optax.stateless(lambda updates, _: jax.tree.map(jnp.multiply, updates, rates))


def averaging(inner: optax.GradientTransformation, count: int, every: int, steps: int) -> optax.GradientTransformation:
    """`inner`, whose last update of `steps` moves to the mean of the parameters after it and after count - 1 updates
    before it, each `every` updates before the next: averaged checkpoints (Vaswani et al. 2017, section 6.1).

    The mean is part of the state, so that a run that is killed and goes on ends with the same.
    """
    def init(params):
        return Averaged(jnp.int32(0), inner.init(params), jax.tree.map(jnp.zeros_like, params))

    def update(gradient, state, params):
        updates, inner_state = inner.update(gradient, state.inner, params)
        number = state.count + 1
        taken = count - (steps - number) // every  # moments that have been, with this one where it is one
        now = ((steps - number) % every == 0) & (taken > 0)

        def take(mean):
            return jax.tree.map(lambda mean, old, move: mean + (old + move - mean) / taken, mean, params, updates)

        mean = jax.lax.cond(now, take, lambda mean: mean, state.mean)
        updates = jax.lax.cond(number == steps, lambda: jax.tree.map(jnp.subtract, mean, params), lambda: updates)
        return updates, Averaged(number, inner_state, mean)

    return optax.GradientTransformation(init, update)


def build(optim: config.Optim, steps: int, knobs: types.TracedHparams, rates: types.Params | None = None
          ) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019) whose peak learning rate and weight decay are knobs, so may be traced.

    rates: what the learning rate of each leaf is multiplied by; None: of no leaf.
    """
    share = schedule(optim, steps)
    adamw = optax.chain(
        clip_by_global_norm(optim.clip_norm) if optim.clip_norm else optax.identity(),
        optax.scale_by_adam(optim.b1, optim.b2, optim.eps),
        optax.add_decayed_weights(knobs.weight_decay, decays),
        *((scale_by(rates),) if rates is not None else ()),
        optax.scale_by_learning_rate(lambda step: knobs.learning_rate * share(step)),
    )
    return (averaging(adamw, optim.average_checkpoints, optim.average_every,
                      steps) if optim.average_checkpoints else adamw)
