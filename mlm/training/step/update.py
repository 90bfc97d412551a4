"""The pure train step and evaluation step."""

# JAX, optax and NumPy leave some of their own types unknown; what this file declares is checked strictly.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mlm.base import batch_warmup, config, types
from mlm.training.step import optim, trainable
from mlm.training.step.sharding import ShardingStrategy

Sums = dict[str, jax.Array]  # by term of the loss


def make_example_keys(seed: types.Array, step: types.Array, index_B: types.Array) -> jax.Array:
    """One key per example, the same whichever device holds the example."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, index_B)


def make_eval_keys(hparams: types.TracedHparams, index_B: types.Array) -> jax.Array:
    """The key of each example of a split. It fixes the example's masks, whatever the model and its training length."""
    return make_example_keys(hparams.seed, 0, index_B)


def init_state(
    cfg: config.Config, model: types.Model, objective: types.Objective, hparams: types.TracedHparams
) -> types.TrainState:
    """The train state at step 0."""
    # Steps draw from the seed's key with their number folded in; 2^31 is no step's number.
    key_model, key_objective = jax.random.split(jax.random.fold_in(jax.random.key(hparams.seed), 2**31))
    params = {"model": model.init(key_model), "objective": objective.init(key_objective, model)}
    trainable_params = trainable.select_trainable(params, make_freeze_rule(cfg, objective))
    opt_state = build_optimizer(cfg, trainable_params, hparams).init(trainable_params)
    return types.TrainState(jnp.int32(0), params, opt_state)


def make_freeze_rule(cfg: config.Config, objective: types.Objective) -> trainable.FreezeRule:
    """(path of a leaf) -> how much of the leaf is frozen, as `trainable.count_frozen_layers` gives it."""
    return functools.partial(
        trainable.count_frozen_layers, cfg.finetune, cfg.model.num_layers, objective.predicts_tokens
    )


def build_optimizer(
    cfg: config.Config, trainable_params: types.Params, hparams: types.TracedHparams
) -> optax.GradientTransformation:
    """The optimizer of the trainable parameters."""
    multipliers = None
    if cfg.finetune.layerwise_lr_decay < 1:
        multipliers = trainable.compute_lr_multipliers(trainable_params, cfg.finetune, cfg.model.num_layers)
    return optim.build_transformation(cfg.optim, cfg.train.steps, hparams, multipliers, model=cfg.model)


def train_step(
    cfg: config.Config,
    model: types.Model,
    objective: types.Objective,
    sharding: ShardingStrategy,
    state: types.TrainState,
    batch: types.Batch,
    hparams: types.TracedHparams,
) -> tuple[types.TrainState, dict[str, Any]]:
    """Makes one update; the metrics are those of the global batch. `sharding` says which part each device holds."""
    hparams = objective.schedule_hparams(hparams, state.step / cfg.train.steps)
    freeze_rule = make_freeze_rule(cfg, objective)
    trainable_params = trainable.select_trainable(state.params, freeze_rule)
    local_gradients = functools.partial(compute_gradients, cfg, model, objective, sharding)
    gradient_point = optim.get_gradient_point(state.opt_state, trainable_params)
    grads, sums, loss = sharding.map_devices(local_gradients)(state.params, gradient_point, state.step, batch, hparams)

    optimizer = build_optimizer(cfg, trainable_params, hparams)
    updates, opt_state = optimizer.update(grads, state.opt_state, trainable_params)
    params = trainable.merge_params(state.params, optax.apply_updates(trainable_params, updates), freeze_rule)
    metrics = {
        "loss": compute_weighted_loss(objective, hparams, *loss),
        "gradient_norm": optax.tree.norm(grads),
        "parameter_norm": optax.tree.norm(params),
        "learning_rate": hparams.learning_rate * optim.build_schedule(cfg.optim, cfg.train.steps)(state.step),
        "sums": sums,
    }
    return types.TrainState(state.step + 1, params, opt_state), metrics


def compute_gradients(
    cfg: config.Config,
    model: types.Model,
    objective: types.Objective,
    sharding: ShardingStrategy,
    params: types.Params,
    trainable_params: types.Params,
    step: types.Array,
    batch: types.Batch,
    hparams: types.TracedHparams,
) -> tuple[types.Params, types.LossSums, tuple[Sums, Sums]]:
    """Gradients with respect to the trainable parameters, the loss sums, and the loss: sums and weights of its terms.

    One device's part of the work: it holds these examples and parameters. The results are those of the global batch.
    """
    freeze_rule, num_masks = make_freeze_rule(cfg, objective), objective.masks_per_example
    num_parts, has_warmup = cfg.train.grad_accum_steps, cfg.train.batch_warmup_fraction > 0
    key_B = make_example_keys(hparams.seed, step, batch.index_B)

    def compute_losses(
        trainable_params: types.Params, batch: types.Batch, key_B: jax.Array, mask_index: Any
    ) -> types.LossSums:
        full_params = sharding.gather_params(trainable.merge_params(params, trainable_params, freeze_rule))
        return objective.loss(full_params, model, batch, key_B, hparams, train=True, mask_index=mask_index)

    # The weights are counts of predictions. The compiler drops all of these calls but the sampling of masks.
    weights = [compute_losses(trainable_params, batch, key_B, mask_index).weight_B for mask_index in range(num_masks)]
    weight_B = jax.tree.map(lambda *terms: sum(terms), *weights)
    if has_warmup:
        is_used_B = batch_warmup.flag_used(cfg.train, step, len(batch.index_B))
        weight_B = jax.tree.map(lambda x_B: jnp.where(is_used_B, x_B, 0), weight_B)
    scale_B = None
    if cfg.optim.loss_reduction == optim.LossReduction.SEQUENCE:
        scale_B = jax.tree.map(lambda x_B: jnp.where(x_B > 0, 1 / jnp.maximum(x_B, 1e-9), 0), weight_B)
        weight_B = jax.tree.map(lambda x_B: (x_B > 0).astype(jnp.float32), weight_B)
    weight = sharding.all_reduce(jax.tree.map(jnp.sum, weight_B))

    @functools.partial(jax.grad, has_aux=True)
    def gradient_fn(
        trainable_params: types.Params, batch: types.Batch, key_B: jax.Array, scale_B: Sums | None, mask_index: Any
    ) -> tuple[jax.Array, tuple[types.LossSums, Sums]]:
        per_example = compute_losses(trainable_params, batch, key_B, mask_index)
        sums = jax.tree.map(jnp.sum, per_example)
        loss = sums.loss_B
        if scale_B is not None:
            loss = jax.tree.map(lambda loss_B, scale_B: (loss_B * scale_B).sum(), per_example.loss_B, scale_B)
        return compute_weighted_loss(objective, hparams, loss, weight), (sums, loss)

    def compute_microbatch(microbatches: Any, number: Any) -> tuple[types.Params, tuple[types.LossSums, Sums]]:
        examples = jax.tree.map(lambda x: x[number // num_masks], microbatches)
        return gradient_fn(trainable_params, *examples, number % num_masks)

    examples = batch, key_B, scale_B
    if num_parts * num_masks == 1:
        grads, sums = gradient_fn(trainable_params, *examples, 0)
    elif has_warmup:
        microbatches = batch_warmup.split_batch(cfg.train, step, examples)
        zeros = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda: compute_microbatch(microbatches, 0))
        )
        grads, sums = jax.lax.fori_loop(
            0,
            num_masks * batch_warmup.count_microbatches(cfg.train, step),
            lambda number, total: jax.tree.map(jnp.add, total, compute_microbatch(microbatches, number)),
            zeros,
        )
    else:
        microbatches = jax.tree.map(lambda x: x.reshape(num_parts, -1, *x.shape[1:]), examples)

        def add_microbatch(grads: types.Params, number: jax.Array) -> tuple[types.Params, Any]:
            new_grads, sums = compute_microbatch(microbatches, number)
            return jax.tree.map(jnp.add, grads, new_grads), sums

        zeros = jax.tree.map(jnp.zeros_like, trainable_params)
        grads, sums = jax.lax.scan(add_microbatch, zeros, jnp.arange(num_parts * num_masks))
        sums = jax.tree.map(lambda x: x.sum(0), sums)
    sums, loss = sharding.all_reduce(sums)
    return sharding.reduce_gradients(grads), sums, (loss, weight)


def compute_weighted_loss(objective: types.Objective, hparams: types.TracedHparams, loss: Sums, weight: Sums) -> Any:
    """The terms of a loss, summed over examples, each divided by its weight and times the objective's loss weight."""
    loss_weights = objective.loss_weights(hparams)
    return sum(loss_weights.get(term, 1) * (loss[term] / jnp.maximum(weight[term], 1)) for term in weight)


def eval_step(
    model: types.Model,
    objective: types.Objective,
    params: types.Params,
    batch: types.Batch,
    hparams: types.TracedHparams,
) -> types.LossSums:
    """The losses of each example under its fixed masks, which its index and the seed alone decide."""
    return objective.loss(params, model, batch, make_eval_keys(hparams, batch.index_B), hparams, train=False)
