"""The pure train step and evaluation step."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from mlm.base import batch_warmup, config, types
from mlm.training.step import optim, trainable
from mlm.training.step.sharding import Replicated

Terms = dict[str, jax.Array]  # by term of the loss


def make_example_keys(seed: types.Array, step: types.Array, index_B: types.Array) -> jax.Array:
    """One key per example, the same whichever device holds the example."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, index_B)


def make_eval_keys(hparams: types.TracedHparams, index_B: types.Array) -> jax.Array:
    """The key of each example of a split. It fixes the example's masks, whatever the model and its training length."""
    return make_example_keys(hparams.seed, 0, index_B)


def init_state(
    cfg: types.StaticConfig, model: types.Model, objective: types.Objective, hparams: types.TracedHparams
) -> types.TrainState:
    """The train state at step 0."""
    # Steps draw from the seed's key with their number folded in; 2^31 is no step's number.
    key_model, key_objective = jax.random.split(jax.random.fold_in(jax.random.key(hparams.seed), 2**31))
    params = {"model": model.init(key_model), "objective": objective.init(key_objective, model)}
    if objective.link_params:
        params = objective.link_params(params)
    trainable_params = trainable.select_trainable(params, trainable.make_freeze_rule(cfg, objective))
    opt_state = optim.build_optimizer(cfg, hparams, objective.link_updates).init(trainable_params)
    return types.TrainState(jnp.int32(0), params, opt_state)


def train_step(
    cfg: types.StaticConfig,
    model: types.Model,
    objective: types.Objective,
    sharding: Replicated,
    state: types.TrainState,
    batch: types.Batch,
    hparams: types.TracedHparams,
) -> tuple[types.TrainState, dict[str, Any]]:
    """Makes one update; the metrics are those of the global batch. `sharding` says which part each device holds."""
    hparams = objective.schedule_hparams(hparams, state.step / cfg.train.steps)
    freeze_rule = trainable.make_freeze_rule(cfg, objective)
    trainable_params = trainable.select_trainable(state.params, freeze_rule)
    gradient_fn = sharding.map_devices(functools.partial(compute_gradients, cfg, model, objective, sharding))
    gradient_point = optim.get_gradient_point(state.opt_state, trainable_params)
    grads, sums, loss_terms = gradient_fn(state.params, gradient_point, state.step, batch, hparams)

    optimizer = optim.build_optimizer(cfg, hparams, objective.link_updates)
    updates, opt_state = optimizer.update(grads, state.opt_state, trainable_params)
    params = trainable.merge_params(state.params, optax.apply_updates(trainable_params, updates), freeze_rule)
    metrics = {
        "loss": compute_weighted_loss(objective, hparams, *loss_terms),
        "gradient_norm": optax.tree.norm(grads),
        "parameter_norm": optax.tree.norm(trainable.drop_teacher(params)),
        "learning_rate": hparams.learning_rate * optim.build_schedule(cfg.optim, cfg.train.steps)(state.step),
        "sums": sums,
    }
    return types.TrainState(state.step + 1, params, opt_state), metrics


def compute_gradients(
    cfg: types.StaticConfig,
    model: types.Model,
    objective: types.Objective,
    sharding: Replicated,
    params: types.Params,
    trainable_params: types.Params,
    step: types.Array,
    batch: types.Batch,
    hparams: types.TracedHparams,
) -> tuple[types.Params, types.BatchSums, tuple[Terms, Terms]]:
    """Gradients with respect to the trainable parameters, the sums, and numerators and denominators of the loss.

    One device's part of the work: it holds these examples and parameters. The results are those of the global batch.
    """
    freeze_rule, num_masks = trainable.make_freeze_rule(cfg, objective), objective.masks_per_example
    key_B = make_example_keys(hparams.seed, step, batch.index_B)

    def gather_params(trainable_params: types.Params) -> types.Params:
        return sharding.gather_params(trainable.merge_params(params, trainable_params, freeze_rule))

    if objective.coupling is not None:
        compute = functools.partial(compute_coupled_gradients, cfg, model, objective, objective.coupling, sharding)
        return compute(gather_params, trainable_params, step, batch, key_B, hparams)

    def compute_losses(
        trainable_params: types.Params, batch: types.Batch, key_B: jax.Array, mask_index: Any
    ) -> types.LossSums:
        full_params = gather_params(trainable_params)
        return objective.loss(full_params, model, batch, key_B, hparams, train=True, mask_index=mask_index)

    # The compiler drops all of these calls but the sampling of masks, which decides the numbers of predictions.
    counts = [compute_losses(trainable_params, batch, key_B, mask_index).weight_B for mask_index in range(num_masks)]
    count_B = jax.tree.map(lambda *terms: sum(terms), *counts)
    weight_B, scale_B = weigh_examples(cfg, step, count_B)
    denominators = sharding.all_reduce(jax.tree.map(jnp.sum, weight_B))

    def loss_fn(
        trainable_params: types.Params, examples: tuple[types.Batch, jax.Array, Terms | None], mask_index: Any
    ) -> tuple[jax.Array, tuple[types.BatchSums, Terms]]:
        batch, key_B, scale_B = examples
        losses = compute_losses(trainable_params, batch, key_B, mask_index)
        sums = types.BatchSums(*jax.tree.map(jnp.sum, tuple(losses)))
        numerators = sums.loss
        if scale_B is not None:
            numerators = jax.tree.map(lambda loss_B, scale_B: (loss_B * scale_B).sum(), losses.loss_B, scale_B)
        return compute_weighted_loss(objective, hparams, numerators, denominators), (sums, numerators)

    gradient_fn, examples = jax.grad(loss_fn, has_aux=True), (batch, key_B, scale_B)
    grads, totals = accumulate_gradients(cfg.train, gradient_fn, trainable_params, examples, step, num_masks)
    sums, numerators = sharding.all_reduce(totals)
    return sharding.reduce_gradients(grads), sums, (numerators, denominators)


def compute_coupled_gradients(
    cfg: types.StaticConfig,
    model: types.Model,
    objective: types.Objective,
    coupling: types.Coupling,
    sharding: Replicated,
    gather_params: Callable[[types.Params], types.Params],
    trainable_params: types.Params,
    step: types.Array,
    batch: types.Batch,
    key_B: jax.Array,
    hparams: types.TracedHparams,
) -> tuple[types.Params, types.BatchSums, tuple[Terms, Terms]]:
    """As `compute_gradients`, where the loss compares the examples of all microbatches and devices with each other.

    By gradient caching (Gao et al. 2021, arXiv 2101.06983, section 3): all microbatches are embedded, the loss is
    differentiated by the embeddings, and each microbatch is embedded again, to pass its part of that on to the
    parameters. Memory is that of one microbatch, and the gradient that of the whole batch. gather_params: trainable
    parameters -> all of them, as an objective reads them.
    """
    num_parts = cfg.train.grad_accum_steps

    def embed(trainable_params: types.Params, batch: types.Batch, key_B: jax.Array) -> jax.Array:
        return coupling.embed(gather_params(trainable_params), model, batch, key_B)

    def loss_fn(embedding_BxTxD: jax.Array) -> tuple[jax.Array, tuple[types.BatchSums, Terms]]:
        losses = coupling.compare(embedding_BxTxD, batch, hparams, sharding.gather_examples)
        sums = types.BatchSums(*jax.tree.map(jnp.sum, tuple(losses)))
        denominators = sharding.all_reduce(sums.weight)
        return compute_weighted_loss(objective, hparams, sums.loss, denominators), (sums, denominators)

    def project(
        trainable_params: types.Params, examples: tuple[types.Batch, jax.Array, jax.Array], _: Any
    ) -> tuple[jax.Array, tuple[()]]:
        batch, key_B, slope_BxTxD = examples
        return jnp.vdot(embed(trainable_params, batch, key_B), slope_BxTxD), ()

    if num_parts == 1:
        embedding_BxTxD, pull_back = jax.vjp(lambda params: embed(params, batch, key_B), trainable_params)
        slope_BxTxD, (sums, denominators) = jax.grad(loss_fn, has_aux=True)(embedding_BxTxD)
        (grads,) = pull_back(slope_BxTxD)
    else:
        microbatches = jax.tree.map(lambda x: x.reshape(num_parts, -1, *x.shape[1:]), (batch, key_B))
        embedding_PxBxTxD = jax.lax.map(lambda part: embed(trainable_params, *part), microbatches)
        embedding_BxTxD = embedding_PxBxTxD.reshape(-1, *embedding_PxBxTxD.shape[2:])
        slope_BxTxD, (sums, denominators) = jax.grad(loss_fn, has_aux=True)(embedding_BxTxD)
        examples, gradient_fn = (batch, key_B, slope_BxTxD), jax.grad(project, has_aux=True)
        grads, _ = accumulate_gradients(cfg.train, gradient_fn, trainable_params, examples, step, num_masks=1)
    sums = sharding.all_reduce(sums)
    return sharding.reduce_gradients(grads), sums, (sums.loss, denominators)


def weigh_examples(cfg: types.StaticConfig, step: types.Array, count_B: Terms) -> tuple[Terms, Terms | None]:
    """(weight_B, scale_B) by term, from each example's number of predictions.

    weight_B is what an example adds to the denominator of a term: its predictions, or 1 where the loss is a mean over
    examples; 0 if warm-up leaves the example out. scale_B is the factor of its nats in the numerator; None: 1.
    """
    if cfg.train.batch_warmup_fraction > 0:
        is_used_B = batch_warmup.flag_used(cfg.train, step, len(next(iter(count_B.values()))))
        count_B = jax.tree.map(lambda x_B: jnp.where(is_used_B, x_B, 0), count_B)
    if cfg.optim.loss_reduction == "token":
        return count_B, None
    scale_B = jax.tree.map(lambda x_B: jnp.where(x_B > 0, 1 / jnp.maximum(x_B, 1e-9), 0), count_B)
    return jax.tree.map(lambda x_B: (x_B > 0).astype(jnp.float32), count_B), scale_B


def compute_weighted_loss(
    objective: types.Objective, hparams: types.TracedHparams, numerators: Terms, denominators: Terms
) -> Any:
    """The sum of a loss's terms, each a quotient times the objective's loss weight."""
    weights = objective.loss_weights(hparams)
    return sum(weights.get(term, 1) * (numerators[term] / jnp.maximum(denominators[term], 1)) for term in denominators)


def eval_step(
    model: types.Model,
    objective: types.Objective,
    params: types.Params,
    batch: types.Batch,
    hparams: types.TracedHparams,
) -> types.LossSums:
    """The losses of each example under its fixed masks, which its index and the seed alone decide."""
    return objective.loss(params, model, batch, make_eval_keys(hparams, batch.index_B), hparams, train=False)


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
    """What `gradient_fn` returns, summed over the microbatches that a step uses and over num_masks passes over each.

    examples: those of this device, arrays with a leading axis; batch-size warm-up uses some of the microbatches.
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
        num_passes = num_masks * batch_warmup.count_microbatches(train, step)

        def add(number: Any, total: Any) -> tuple[types.Params, Any]:
            return jax.tree.map(jnp.add, total, compute_pass(microbatches, number))

        return jax.lax.fori_loop(0, num_passes, add, zeros)

    microbatches = jax.tree.map(lambda x: x.reshape(num_parts, -1, *x.shape[1:]), examples)

    def add_pass(grads: types.Params, number: jax.Array) -> tuple[types.Params, Any]:
        new_grads, sums = compute_pass(microbatches, number)
        return jax.tree.map(jnp.add, grads, new_grads), sums

    zeros = jax.tree.map(jnp.zeros_like, trainable_params)
    grads, sums = jax.lax.scan(add_pass, zeros, jnp.arange(num_parts * num_masks))
    return grads, jax.tree.map(lambda x: x.sum(0), sums)
