"""One update: the same numbers however the batch is cut into parts, devices, and ways of running on them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import LABELLED, PLAIN, batch, make_dataset_info, params_of, replace_text, small_config, state_of

from mlm.objectives import OBJECTIVES
from mlm.training.step import program, sharding, update
from mlm.training.validation import split_scores

pytestmark = pytest.mark.slow

UNCLIPPED = {"model__dropout": 0.2, "model__attention_dropout": 0.2, "optim__clip_norm": 0.0}
LAYER = {"model__num_layers": 1}
OWN = {
    "mlm": {"family": "feedforward", "cell": "bag"},  # a Transformer on devices: tests/test_sharded.py
    "causal": {"model__directionality": "causal"},  # what an objective asks for where it is not small_config's
    "denoising": {"family": "encoder_decoder", "model__num_heads": 2},
}


def uneven(rows, seed=0):
    """Rows whose numbers of maskable tokens differ widely, the first half holding far fewer than the second."""
    full = batch(rows, seed=seed, pad=0, labels=True)
    keep = np.where(np.arange(rows) < rows // 2, 4, 15)[:, None]
    cut = lambda x: np.where(np.arange(16) < keep, x, 0)
    return replace_text(full, ids_BxL=cut(full.text.ids_BxL), segments_BxL=cut(full.text.segments_BxL))


def losses(steps=8, mode="data_parallel", devices=1, objective="mlm", **changes):
    """The losses of some updates, the state after them, and a call for what rows lose in evaluation."""
    defaults = {
        "mask__rate": 0.3,
        "train__batch_size": 8,
        "train__steps": steps,
        "objective": objective,
        "parallel__mode": mode,
        "pack__mode": "segment_pair",
    }
    cfg = small_config(**defaults | LAYER | OWN.get(objective, {}) | changes)
    made = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:devices])
    knobs = program.make_train_hparams(cfg)
    state = made.partitioner.put_state(state_of(made.init_state.eval_shape(knobs)))
    seen = []
    for number in range(steps):
        state, metrics = made.partitioner.train_step(state, made.partitioner.put_batch(uneven(8, number % 2)), knobs)
        seen.append(float(made.partitioner.get_metrics(metrics)["loss"]))
    judged = lambda: split_scores.name_sums(
        made.partitioner.jit_per_example(update.eval_step, made.model, made.objective)(
            state, made.partitioner.put_batch(uneven(8)), program.make_eval_hparams(cfg)
        )
    )
    return np.array(seen), made.partitioner.get_state(state), judged


@pytest.fixture(scope="module")
def one_device():
    seen, judged = losses(**UNCLIPPED)[::2]
    return seen, judged()


@pytest.mark.exhaustive(but=("data_parallel-4",))
@pytest.mark.parametrize(("mode", "devices"), [("data_parallel", 4), ("pmap", 2)])
def test_devices_and_modes_agree_with_one_device(one_device, mode, devices):
    alone, rows_alone = one_device
    many, _, rows_many = losses(mode=mode, devices=devices, **UNCLIPPED)
    np.testing.assert_allclose(many, alone, rtol=1e-5)
    np.testing.assert_allclose(rows_many()["mlm_nats"], rows_alone["mlm_nats"], rtol=1e-4)


class TwoAlike(sharding.Replicated):
    def all_reduce(self, tree):
        return jax.tree.map(lambda x: 2 * x, tree)


@pytest.mark.exhaustive
def test_a_step_is_handed_its_sum_over_devices():
    """Told that it is one of two alike, a device makes the update of both: twice the sums, over twice the weight."""
    cfg = small_config(mask__rate=0.3, train__batch_size=8, pack__mode="segment_pair", **PLAIN, **LAYER)
    made, knobs = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:1]), program.make_train_hparams(cfg)
    state = state_of(made.init_state.eval_shape(knobs))
    seen = []
    for sharding_strategy in (sharding.Replicated(1), TwoAlike(2)):
        after, metrics = jax.jit(functools.partial(made.train_step, sharding_strategy))(state, uneven(8), knobs)
        seen.append((after.params, float(metrics["loss"]), split_scores.name_sums(metrics["sums"])["mlm_weight"]))
    (one, loss_one, weight_one), (two, loss_two, weight_two) = seen
    assert loss_one == pytest.approx(loss_two, rel=1e-6) and weight_two == 2 * weight_one
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, two)
    assert sharding.Replicated(1).all_reduce(weight_one) is weight_one


@pytest.mark.exhaustive(but=("mlm",))
@pytest.mark.parametrize("objective", sorted({*OBJECTIVES} - {*LABELLED}))
def test_parts_on_devices_of_their_own_equal_the_whole_batch(objective):
    changes = {"objective": objective} | UNCLIPPED
    whole, state, _ = losses(**changes)
    parts, state_parts, _ = losses(mode="pmap", devices=2, train__grad_accum_steps=4, **changes)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(state.opt_state), jax.tree.leaves(state_parts.opt_state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # the gradients' moments, not clipped


@pytest.mark.exhaustive
def test_next_sentence_loss_reads_the_label_and_only_it():
    cfg = small_config(objective="nsp", **PLAIN, **LAYER)
    made = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:1])
    knobs = program.make_eval_hparams(cfg)
    rows = batch(4, labels=True)
    params = params_of(made.init_state.eval_shape(knobs).params)

    @jax.jit
    def terms(label):
        labelled = rows._replace(labels={"next_B": jnp.full(4, label, jnp.int32)})
        return update.eval_step(made.model, made.objective, params, labelled, knobs)

    zero, one = terms(0), terms(1)
    np.testing.assert_allclose(np.exp(-zero.loss_B["nsp"]) + np.exp(-one.loss_B["nsp"]), np.ones(4), rtol=1e-5)
    np.testing.assert_array_equal(zero.loss_B["mlm"], one.loss_B["mlm"])
