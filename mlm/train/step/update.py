"""The pure train step and evaluation step: code of one device, which is handed its sum over all of them."""
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from mlm.base import config, types
from mlm.train.step import optim, trainable


def row_keys(seed, step, index_B):
    """One key a row, the same whichever device holds the row."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, index_B)


def eval_keys(knobs: types.TracedHparams, index_B):
    """The key of each row of a split: it freezes the row's masks, whatever the model and however long it trained."""
    return row_keys(knobs.seed, 0, index_B)


def init_state(cfg: config.Config, model: types.Model, objective: types.Objective,
               knobs: types.TracedHparams) -> types.TrainState:
    # Steps draw from the seed's key with their number folded in; 2^31 is no step's number.
    key_model, key_objective = jax.random.split(jax.random.fold_in(jax.random.key(knobs.seed), 2**31))
    params = {"model": model.init(key_model), "objective": objective.init(key_objective, model)}
    part = trainable.moving(params, frozen(cfg, objective))
    return types.TrainState(jnp.int32(0), params, transform(cfg, part, knobs).init(part))


def frozen(cfg: config.Config, objective: types.Objective) -> Callable:
    """How much of a leaf of the parameters is frozen, by its path."""
    return functools.partial(trainable.held, cfg.finetune, cfg.model.num_layers, objective.words)


def transform(cfg: config.Config, part: types.Params, knobs: types.TracedHparams) -> optax.GradientTransformation:
    """The optimiser of the parameters that are trained."""
    rates = trainable.rates(part, cfg.finetune, cfg.model.num_layers) if cfg.finetune.layerwise_lr_decay < 1 else None
    return optim.build(cfg.optim, cfg.train.steps, knobs, rates)


def train_step(cfg: config.Config, model: types.Model, objective: types.Objective, total: Callable,
               state: types.TrainState, batch: types.Batch, knobs: types.TracedHparams, spread: Callable | None = None
               ) -> tuple[types.TrainState, dict]:
    """One update from this device's rows of the batch; metrics are those of the global batch.

    total: a tree of this device's sums -> the global batch's. spread: `summed`, or what stands in its place where
    parameters are split over devices; state and batch are then all devices'.
    """
    knobs = objective.now(knobs, state.step / cfg.train.steps)
    holds = frozen(cfg, objective)
    part = trainable.moving(state.params, holds)
    gradient, sums, weight = (spread or summed)(total, functools.partial(gradients, cfg, model, objective),
                                                state.params, part, state.step, batch, knobs)

    updates, opt_state = transform(cfg, part, knobs).update(gradient, state.opt_state, part)
    params = trainable.joined(state.params, optax.apply_updates(part, updates), holds)
    metrics = {
        "loss": minimised(objective, knobs, sums.loss_B, weight),
        "gradient_norm": optax.tree.norm(gradient),
        "parameter_norm": optax.tree.norm(params),
        "learning_rate": knobs.learning_rate * optim.schedule(cfg.optim, cfg.train.steps)(state.step),
        "sums": sums,
    }
    return types.TrainState(state.step + 1, params, opt_state), metrics


def summed(total: Callable, own: Callable, *values) -> tuple[types.Params, types.LossSums, dict]:
    """What `gradients`, own, gives of the values, summed over devices."""
    gradient, sums, weight = own(total, lambda params: params, *values)
    return *total((gradient, sums)), weight


def gradients(cfg: config.Config, model: types.Model, objective: types.Objective, total: Callable, whole: Callable,
              params: types.Params, part: types.Params, step, batch: types.Batch, knobs: types.TracedHparams
              ) -> tuple[types.Params, types.LossSums, dict]:
    """The gradient by `part` of the parameters, and the sums of the losses, both of this device's rows alone, under the
    weights of the global batch, which stand beside them.

    whole: parameters as this device has them -> as the objective reads them.
    """
    key_B = row_keys(knobs.seed, step, batch.index_B)
    holds = frozen(cfg, objective)

    def losses(part, batch, key_B, view):
        per_row = objective.loss(whole(trainable.joined(params, part, holds)), model, batch, key_B, knobs, train=True,
                                 view=view)
        return jax.tree.map(jnp.sum, per_row)

    def taken(part, batch, key_B, view):
        sums = losses(part, batch, key_B, view)
        return sums.loss_B, sums

    def back(pull, loss, weight):  # weights depend on no parameter
        (gradient,) = pull(jax.grad(minimised, 2)(objective, knobs, loss, weight))
        return gradient

    views = objective.views
    if cfg.train.grad_accum_steps * views == 1:
        loss, pull, sums = jax.vjp(lambda part: taken(part, batch, key_B, 0), part, has_aux=True)
        weight = total(sums.weight_B)
        return back(pull, loss, weight), sums, weight

    # The compiler drops all of this call but the drawing of masks. Knowing weights first lets gradients be added over
    # parts and still be those of the mean over the whole batch.
    each = [losses(part, batch, key_B, view).weight_B for view in range(views)]
    weight = total(jax.tree.map(lambda *parts: sum(parts), *each))
    parts = jax.tree.map(lambda x: x.reshape(cfg.train.grad_accum_steps, -1, *x.shape[1:]), (batch, key_B))

    def add_part(gradient, number):  # each part of the batch, under each view of its rows
        rows = jax.tree.map(lambda x: x[number // views], parts)
        loss, pull, sums = jax.vjp(lambda part: taken(part, *rows, number % views), part, has_aux=True)
        return jax.tree.map(jnp.add, gradient, back(pull, loss, weight)), sums

    gradient, sums = jax.lax.scan(add_part, jax.tree.map(jnp.zeros_like, part),
                                  jnp.arange(cfg.train.grad_accum_steps * views))
    return gradient, jax.tree.map(lambda x: x.sum(0), sums), weight


def minimised(objective: types.Objective, knobs: types.TracedHparams, loss: dict, weight: dict):
    """The terms of a loss, summed over rows, each over its weight, with the objective's factors."""
    factor = objective.factors(knobs)
    return sum(factor.get(term, 1) * (loss[term] / jnp.maximum(weight[term], 1)) for term in weight)


def eval_step(model: types.Model, objective: types.Objective, params, batch: types.Batch,
              knobs: types.TracedHparams) -> types.LossSums:
    """What each row loses under its frozen masks, which its index and the seed alone decide."""
    return objective.loss(params, model, batch, eval_keys(knobs, batch.index_B), knobs, train=False)
