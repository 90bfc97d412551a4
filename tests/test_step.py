"""One update: the same numbers however the batch is cut into parts, devices, and ways of running on them."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import PLAIN, VOCAB, batch, small_config

from mlm.models import MODELS
from mlm.objectives import OBJECTIVES, masking
from mlm.train.step import parallel, program, update

DROPOUT = {"model__dropout": 0.2, "model__attention_dropout": 0.2}


def uneven(rows, seed=0):
    """Rows whose numbers of maskable tokens differ widely, the first half holding far fewer than the second."""
    full = batch(rows, seed=seed, pad=0)
    keep = np.where(np.arange(rows) < rows // 2, 4, 15)[:, None]
    cut = lambda x: np.where(np.arange(16) < keep, x, 0)  # noqa: E731
    return full._replace(ids_BxL=cut(full.ids_BxL), segments_BxL=cut(full.segments_BxL))


def losses(steps=20, mode="jit", devices=1, objective="mlm", **changes):
    """The losses of some updates, and the state after them."""
    defaults = {"mask__rate": 0.3, "train__batch_size": 8, "train__steps": steps, "objective": objective}
    cfg = small_config(**defaults | changes)
    model = MODELS["transformer"](cfg.model, VOCAB)
    goal = OBJECTIVES[objective](cfg.mask, masking.slots(cfg.mask.max_rate, 16), np.arange(VOCAB))
    knobs = program.training_knobs(cfg)
    run = parallel.MODES[mode](functools.partial(update.train_step, cfg, model, goal), jax.devices()[:devices])
    eval_step = run.per_row(update.eval_step, model, goal)
    state = run.put_state(jax.device_get(jax.jit(functools.partial(update.init_state, cfg, model, goal))(knobs)))
    seen = []
    for number in range(steps):
        state, metrics = run.train_step(state, run.put_batch(uneven(8, number % 2)), knobs)
        seen.append(float(run.get_metrics(metrics)["loss"]))
    rows = eval_step(state, run.put_batch(uneven(8)), program.frozen_knobs(cfg))
    return np.array(seen), run.get_state(state), rows


@pytest.fixture(scope="module")
def one_device():
    return losses(**DROPOUT)


@pytest.mark.parametrize(("mode", "devices"), [("jit", 2), ("jit", 4), ("pmap", 4)])
def test_devices_and_modes_agree_with_one_device(one_device, mode, devices):
    alone, _, rows_alone = one_device
    many, _, rows_many = losses(mode=mode, devices=devices, **DROPOUT)
    np.testing.assert_allclose(many, alone, rtol=1e-5)
    np.testing.assert_allclose(rows_many.loss_B["mlm"], rows_alone.loss_B["mlm"], rtol=1e-4)


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_accumulation_equals_the_whole_batch(objective):
    whole, state, _ = losses(5, objective=objective, optim__clip=0.0, **PLAIN)
    parts, state_parts, _ = losses(5, objective=objective, train__accumulate=4, optim__clip=0.0, **PLAIN)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(state.opt_state), jax.tree.leaves(state_parts.opt_state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # the gradients' moments, not clipped


def test_loss_is_the_mean_over_masked_tokens_and_not_a_mean_of_means():
    cfg = small_config(mask__rate=0.3, **PLAIN)
    model = MODELS["transformer"](cfg.model, VOCAB)
    goal = OBJECTIVES["mlm"](cfg.mask, 5, np.arange(VOCAB))
    knobs, rows = program.training_knobs(cfg), uneven(8)
    state = jax.jit(functools.partial(update.init_state, cfg, model, goal))(knobs)
    per_row = jax.jit(lambda params: goal.loss(params, model, rows, update.row_keys(knobs.seed, 0, rows.index_B), knobs,
                                               train=True))(state.params)
    nats, weight = np.asarray(per_row.loss_B["mlm"]), np.asarray(per_row.weight_B["mlm"])
    first, _, _ = losses(1, mode="jit", devices=2, **PLAIN)
    np.testing.assert_allclose(first[0], nats.sum() / weight.sum(), rtol=1e-5)
    halves = np.mean([nats[:4].sum() / weight[:4].sum(), nats[4:].sum() / weight[4:].sum()])
    assert abs(halves - first[0]) > 1e-4


def test_next_sentence_loss_reads_the_label_and_only_it():
    cfg = small_config(objective="nsp", **PLAIN)
    model = MODELS["transformer"](cfg.model, VOCAB)
    goal = OBJECTIVES["nsp"](cfg.mask, 5, np.arange(VOCAB))
    knobs, rows = program.training_knobs(cfg), batch(4)
    state = jax.jit(functools.partial(update.init_state, cfg, model, goal))(knobs)

    @jax.jit
    def terms(label):
        labelled = rows._replace(label_B=jnp.full(4, label, jnp.int32))
        key_B = update.row_keys(knobs.seed, 0, rows.index_B)
        return goal.loss(state.params, model, labelled, key_B, knobs, train=False)

    zero, one = terms(0), terms(1)
    np.testing.assert_allclose(np.exp(-zero.loss_B["nsp"]) + np.exp(-one.loss_B["nsp"]), np.ones(4), rtol=1e-5)
    np.testing.assert_array_equal(zero.loss_B["mlm"], one.loss_B["mlm"])
