"""The update of a run as one optax transformation: clipping, the optimizer, weight decay, schedule and averages."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import tree_map_with_path

from mlm.base import config, errors, text_files, types
from mlm.base.conditional_fields import list_registry_conditions
from mlm.training.step import trainable
from mlm.training.step.optimizers import OPTIMIZERS, ParameterGroup, Transformation, find_group

EXTENDABLE_SCHEDULES = ("wsd", "constant", "inverse_sqrt")  # the same after the warm-up, however many steps there are
_FIELDS = {name: spec.fields for name, spec in OPTIMIZERS.items()}
FIELD_CONDITIONS = list_registry_conditions("optim.optimizer", _FIELDS, "optim.")


class AverageState(NamedTuple):
    """State of `average_checkpoints`; the order of the fields is that in checkpoints."""

    count: jax.Array  # int32, updates made  # pyright: ignore[reportIncompatibleMethodOverride]
    inner: Any
    mean: types.Params  # of the parameters averaged so far


class EmaState(NamedTuple):
    """State of `average_updates`; the order of the fields is that in checkpoints."""

    count: jax.Array  # int32, updates made  # pyright: ignore[reportIncompatibleMethodOverride]
    inner: Any
    params: types.Params  # those that the gradients are taken at; before the first update, the state's own


def check(optim: config.Optim, steps: int) -> None:
    """Raises ConfigError for a config.optim that no run of this many steps could use."""
    name = "config.optim"
    errors.require_one_of(f"{name}.optimizer", optim.optimizer, list(OPTIMIZERS))
    for group in text_files.split_names(optim.decay_groups):
        errors.require_one_of(f"{name}.decay_groups", group, list(ParameterGroup))
    if optim.schedule == "wsd":
        parts = optim.warmup_fraction + optim.decay_fraction
        errors.require(parts <= 1, f"{name}.warmup_fraction + {name}.decay_fraction", parts, "at most 1")
    expected = f"0, since {name}.average_checkpoints averages the parameters already"
    errors.require(not (optim.ema_decay and optim.average_checkpoints), f"{name}.ema_decay", optim.ema_decay, expected)
    max_count = (steps - 1) // optim.average_every + 1
    is_possible = optim.average_checkpoints != 1 and optim.average_checkpoints <= max_count
    expected = (
        f"0, or 2 to {max_count}: the number of checkpoints {name}.average_every = "
        f"{optim.average_every} steps apart among config.train.steps = {steps}"
    )
    errors.require(is_possible, f"{name}.average_checkpoints", optim.average_checkpoints, expected)


def count_warmup_steps(optim: config.Optim, steps: int) -> int:
    """The number of warm-up steps."""
    return round(optim.warmup_fraction * steps)


def count_stable_steps(optim: config.Optim, steps: int) -> int:
    """How many of the first steps depend only on the number of warm-up steps, not on the total number of steps."""
    peak = max(steps - count_warmup_steps(optim, steps), 1) - round(optim.decay_fraction * steps)
    decay_start = count_warmup_steps(optim, steps) + max(peak, 0) + 1
    stable_steps: dict[str, int] = {"constant": steps, "inverse_sqrt": steps, "wsd": decay_start}
    average_start = steps
    if optim.average_checkpoints:
        average_start -= (optim.average_checkpoints - 1) * optim.average_every + 1
    return min(stable_steps.get(optim.schedule, 0), average_start)


def build_schedule(optim: config.Optim, steps: int) -> Callable[[types.Array], jax.Array]:
    """A traceable function: step -> the fraction of the peak learning rate.

    It rises linearly during the warm-up to 1, then falls so that it would be final_lr_fraction at step `steps`, one
    after the last. "wsd" stays at the peak until the last decay_fraction of the steps, "constant" to the end.
    "inverse_sqrt" falls with the square root of the update's number, counted from 1 (Vaswani et al. 2017, section 5.3);
    the last step of the warm-up is at the peak. The decay of "wsd" is linear, or 1 - sqrt(the share of it that is over)
    (Hägele et al. 2024, arXiv 2405.18392, section 4).
    """
    num_warmup = count_warmup_steps(optim, steps)
    num_decay = max(steps - num_warmup, 1)
    num_final = round(optim.decay_fraction * steps)  # steps of the decay of wsd
    final = optim.final_lr_fraction

    def decay_by_sqrt(step: Any) -> jax.Array:
        share = jnp.clip((step - (num_decay - num_final)) / max(num_final, 1), 0, 1)
        return 1 - (1 - final) * jnp.sqrt(share)

    decay_schedules: dict[str, Callable[[Any], Any]] = {
        "constant": optax.constant_schedule(1.0),
        "inverse_sqrt": lambda step: jnp.sqrt(max(num_warmup, 1) / (jnp.maximum(step, 0) + num_warmup + 1)),
        "linear": optax.linear_schedule(1.0, final, num_decay),
        "cosine": optax.cosine_decay_schedule(1.0, num_decay, final),
        "wsd": optax.linear_schedule(1.0, final, max(num_final, 1), transition_begin=num_decay - num_final)
        if optim.decay_shape == "linear"
        else decay_by_sqrt,
    }
    decay_schedule = decay_schedules[optim.schedule]
    # The first update is made at 1/num_warmup of the peak, not at 0, which would waste it.
    return lambda step: jnp.where(step < num_warmup, (step + 1) / max(num_warmup, 1), decay_schedule(step - num_warmup))


def clip_by_global_norm(max_norm: float) -> Transformation:
    """optax.clip_by_global_norm by a multiplication, which XLA fuses with what reads the gradients."""

    def clip(grads: types.Params, _: Any) -> types.Params:
        scale = max_norm / jnp.maximum(optax.tree.norm(grads), max_norm)
        return jax.tree.map(lambda grad: grad * scale, grads)

    return optax.stateless(clip)


def average_checkpoints(inner: Transformation, count: int, interval: int, steps: int) -> Transformation:
    """`inner`, but the last update moves to the mean of the last `count` checkpoints (Vaswani et al. 2017, 6.1).

    The mean is part of the state, so a run that is killed and continued ends with the same.
    """

    def init(params: types.Params) -> AverageState:
        return AverageState(jnp.int32(0), inner.init(params), jax.tree.map(jnp.zeros_like, params))

    def update(updates: types.Params, state: Any, params: types.Params = None) -> tuple[types.Params, AverageState]:
        updates, inner_state = inner.update(updates, state.inner, params)
        number = state.count + 1
        num_added = count - (steps - number) // interval  # with this checkpoint, if it is one
        is_checkpoint = ((steps - number) % interval == 0) & (num_added > 0)

        def add_checkpoint(mean: types.Params) -> types.Params:
            return jax.tree.map(lambda mean, old, move: mean + (old + move - mean) / num_added, mean, params, updates)

        mean = jax.lax.cond(is_checkpoint, add_checkpoint, lambda mean: mean, state.mean)
        updates = jax.lax.cond(number == steps, lambda: jax.tree.map(jnp.subtract, mean, params), lambda: updates)
        return updates, AverageState(number, inner_state, mean)

    return Transformation(init, update)


def average_updates(inner: Transformation, decay: float) -> Transformation:
    """`inner`, whose parameters the state keeps apart, while the updated parameters are their exponential average.

    So all that reads the parameters of a state reads the average: evaluation, checkpoints, what is fine-tuned. The mean
    after t updates has the weights of Adam's corrected moments (Kingma & Ba 2015, section 3): (1 - decay) decay^(t - i)
    / (1 - decay^t) for the parameters after update i, and none for the initial ones.
    """

    def init(params: types.Params) -> EmaState:
        return EmaState(jnp.int32(0), inner.init(params), jax.tree.map(jnp.copy, params))

    def update(updates: types.Params, state: Any, params: types.Params = None) -> tuple[types.Params, EmaState]:
        raw_params = get_gradient_point(state, params)
        updates, inner_state = inner.update(updates, state.inner, raw_params)
        raw_params, number = optax.apply_updates(raw_params, updates), state.count + 1
        share = (decay - 1) / jnp.expm1(number * math.log(decay))  # exact where decay is close to 1
        moves = jax.tree.map(lambda raw, mean: share * (raw - mean), raw_params, params)
        return moves, EmaState(number, inner_state, raw_params)

    return Transformation(init, update)


def get_gradient_point(opt_state: Any, params: types.Params) -> types.Params:
    """The parameters at which the next gradient is taken: with an exponential average, not the averaged ones.

    params: the trainable ones of the train state. Before the first update they count: a run may start from others than
    the random ones that the optimizer was initialized with.
    """
    if not isinstance(opt_state, EmaState):
        return params
    return jax.tree.map(lambda new, raw: jnp.where(opt_state.count == 0, new, raw), params, opt_state.params)


def build_optimizer(
    cfg: config.Config, hparams: types.TracedHparams, link_updates: Callable[[types.Params], types.Params] | None = None
) -> Transformation:
    """The optimizer of a run; link_updates: the objective's.

    In the first config.init.embedding_steps only what has an entry of the vocabulary moves, while the moments of all
    else warm up.
    """
    optim, steps, embedding_steps = cfg.optim, cfg.train.steps, cfg.init.embedding_steps
    schedule = build_schedule(optim, steps)
    groups = text_files.split_names(optim.decay_groups)
    is_decayed = lambda path, leaf: find_group(path, leaf) in groups
    decay = optax.add_decayed_weights(hparams.weight_decay, functools.partial(tree_map_with_path, is_decayed))
    starts_late = lambda step: jnp.where(step < embedding_steps, 0.0, 1.0)
    scale_layers = optax.stateless(lambda updates, _: trainable.scale_by_depth(cfg, updates))
    optimizer = optax.chain(
        clip_by_global_norm(optim.clip_norm) if optim.clip_norm else optax.identity(),
        *OPTIMIZERS[optim.optimizer].build(optim, decay, cfg.model),
        *((scale_layers,) if cfg.finetune.layerwise_lr_decay < 1 else ()),
        optax.scale_by_learning_rate(lambda step: hparams.learning_rate * schedule(step)),
        *((optax.masked(optax.scale_by_schedule(starts_late), trainable.flag_body),) if embedding_steps else ()),
        *((optax.stateless(lambda updates, _: link_updates(updates)),) if link_updates else ()),
    )
    if optim.ema_decay:
        return average_updates(optimizer, optim.ema_decay)
    if optim.average_checkpoints:
        return average_checkpoints(optimizer, optim.average_checkpoints, optim.average_every, steps)
    return optimizer
