"""What is masked and predicted over the steps of a run: schedules, views and copies, traced values of one step."""

import functools
import math

import jax
import numpy as np
import optax
import pytest
from small import PLAIN, VOCAB, batch, small_config, small_program, state_of

from mlm.base import config, fields
from mlm.objectives import masking
from mlm.training.compilation import cost
from mlm.training.step import program, sharding, update

STEPS, ROWS = 4, 8


@functools.cache
def compile_step(views, predict):
    """The train step of a small model with room for a rate of 0.8 / views, its first state, and its traces."""
    cfg = small_config(
        "feedforward",
        "bag",
        mask__rate=0.8 / views,
        mask__predict_rate=predict,
        mask__masks_per_example=views,
        train__steps=STEPS,
        train__batch_size=ROWS,
        optim__clip_norm=0.0,
        model__num_layers=1,
        **PLAIN,
    )
    made, traces = small_program(cfg), []

    def train_step(state, batch, knobs):
        traces.append(knobs)
        return made.train_step(sharding.Replicated(1), state, batch, knobs)

    state = state_of(made.init_state.eval_shape(program.make_train_hparams(cfg)))
    return cfg, made, jax.jit(train_step), state, traces


def sums(views=1, predict=0.0, **changes):
    """The sums of each of STEPS steps of a run whose knobs are those of the fields changed."""
    cfg, _, train_step, state, _ = compile_step(views, predict)
    cfg = fields.override(cfg, {name.replace("__", "."): value for name, value in changes.items()})
    found = []
    for number in range(STEPS):
        rows = batch(ROWS, pad=0)
        rows = rows._replace(split_index_B=rows.index_B, epoch_B=np.full(ROWS, number, np.int32))
        _, seen = train_step(state._replace(step=np.int32(number)), rows, program.make_train_hparams(cfg))
        found.append(jax.tree.map(float, seen["sums"]))
    return found


@pytest.mark.exhaustive(but=("cosine-rates2",))
@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.8] * STEPS),
        ("linear", [0.8, 0.65, 0.5, 0.35]),
        ("cosine", [0.5 + 0.3 * math.cos(math.pi * number / STEPS) for number in range(STEPS)]),
    ],
)
def test_the_rate_follows_its_schedule_and_one_compiled_step_serves_all(schedule, rates):
    final = 0.0 if schedule == "constant" else 0.2
    found = sums(mask__schedule=schedule, mask__rate=0.8, mask__final_rate=final)
    assert [one.weight["mlm"] for one in found] == [one.sums["corrupted"] for one in found]
    realised = [one.sums["corrupted"] / one.sums["eligible"] for one in found]
    # A row's count is at most one away from its 13 eligible tokens' share.
    np.testing.assert_allclose(realised, rates, atol=1 / 13)
    up = sums(mask__schedule="linear", mask__rate=0.2, mask__final_rate=0.6)
    assert up[0].weight["mlm"] < up[1].weight["mlm"] < up[3].weight["mlm"]
    assert len(compile_step(1, 0.0)[-1]) == 1


@pytest.mark.exhaustive(but=("2-0.3-0.6",))
@pytest.mark.parametrize(
    ("views", "rate", "predict"), [(1, 0.6, 0.2), (1, 0.6, 0.6), (2, 0.3, 0.6), (2, 0.4, 0.6), (2, 0.3, 0.0)]
)
def test_corruption_and_prediction_are_apart_and_a_slot_that_is_not_predicted_is_not_scored(views, rate, predict):
    rates = {"mask__rate": rate, "mask__predict_rate": predict}
    for one, of_all_slots in zip(sums(views, predict, **rates), sums(views, **rates), strict=True):
        assert one.weight == of_all_slots.weight
        assert one.loss["mlm"] == pytest.approx(of_all_slots.loss["mlm"], rel=1e-6)
        eligible = one.sums["eligible"]
        assert eligible == 13 * ROWS  # of the rows, once, however many views they have
        assert one.sums["corrupted"] / eligible == pytest.approx(rate, abs=1 / 13)
        share = masking.estimate_predict_rate(config.Mask(rate=rate, predict_rate=predict, masks_per_example=views))
        assert share == pytest.approx(predict or views * rate)
        assert one.weight["mlm"] / eligible == pytest.approx(share, abs=views / 13)
    assert len(compile_step(views, predict)[-1]) == len(compile_step(views, 0.0)[-1]) == 1
    flops = [cost.count_step_flops(compile_step(views, share)[0], VOCAB) for share in (predict, 0.0)]
    assert (flops[0] < flops[1]) == (0 < predict < 0.8)


@pytest.mark.exhaustive
def test_a_step_of_two_views_is_one_update_from_both():
    cfg, made, train_step, state, _ = compile_step(2, 0.0)
    knobs, rows = program.make_train_hparams(cfg), batch(ROWS, pad=0)
    key_B = update.make_example_keys(knobs.seed, state.step, rows.index_B)

    def loss(params):
        both = [
            made.objective.loss(params, made.model, rows, key_B, knobs, train=True, mask_index=view) for view in (0, 1)
        ]
        nats, weight = (
            sum(x.sum() for x in part)
            for part in zip(*((one.loss_B["mlm"], one.weight_B["mlm"]) for one in both), strict=True)
        )
        return nats / weight

    value, gradient = jax.jit(jax.value_and_grad(loss))(state.params)
    after, seen = train_step(state, rows._replace(split_index_B=rows.index_B, epoch_B=0 * rows.index_B), knobs)
    assert float(seen["loss"]) == pytest.approx(float(value), rel=1e-6)
    assert float(seen["gradient_norm"]) == pytest.approx(float(jax.jit(optax.tree.norm)(gradient)), rel=1e-5)
    assert int(after.step) == 1


@pytest.mark.parametrize("views", [1, 2])
def test_static_masks_return_with_their_epoch(views):
    """The state is the same at each of these steps, and there is no dropout: what is lost tells the masks."""
    lost = {
        copies: [one.loss["mlm"] for one in sums(views, mask__rate=0.3, mask__static_masks=copies)]
        for copies in (0, 1, 2, STEPS)
    }
    assert len(set(lost[1])) == 1
    assert lost[2][:2] == lost[2][2:] == lost[STEPS][:2] and lost[2][0] == lost[1][0]
    assert len(set(lost[2])) == 2 and len(set(lost[STEPS])) == len(set(lost[0])) == STEPS
    assert len(compile_step(views, 0.0)[-1]) == 1


def test_a_static_mask_is_the_row_s_wherever_and_whenever_it_comes_and_dropout_is_new():
    knobs = program.make_train_hparams(small_config(mask__rate=0.3, mask__static_masks=10))
    rows = batch(ROWS, pad=0)
    rows = rows._replace(split_index_B=rows.index_B, epoch_B=np.full(ROWS, 3, np.int32))
    later = jax.tree.map(lambda x: x[::-1], rows)._replace(index_B=rows.index_B, epoch_B=rows.epoch_B + 10)

    @jax.jit
    def draw_masks(number, rows, knobs):
        return masking.sample_masks(
            update.make_example_keys(knobs.seed, number, rows.index_B),
            rows.text.ids_BxL,
            knobs,
            num_slots=5,
            cdf_V=np.ones(1),
            static_key_B=masking.derive_static_keys(knobs, rows),
        )

    (one, one_rest_B), (other, other_rest_B) = draw_masks(0, rows, knobs), draw_masks(7, later, knobs)
    np.testing.assert_array_equal(one.ids_BxL, other.ids_BxL[::-1])
    keys = [jax.random.key_data(rest_B) for rest_B in (one_rest_B, other_rest_B)]
    assert not (keys[0] == keys[1]).any()
    dynamic, dynamic_rest_B = draw_masks(
        0, rows, knobs._replace(objective=knobs.objective | {"static_masks": np.int32(0)})
    )
    np.testing.assert_array_equal(jax.random.key_data(dynamic_rest_B), keys[0])
    assert (np.asarray(dynamic.ids_BxL) != np.asarray(one.ids_BxL)).any(1).mean() > 0.5
    seed, _ = draw_masks(0, rows, knobs._replace(seed=np.uint32(5)))
    moved, _ = draw_masks(0, rows._replace(split_index_B=np.roll(rows.index_B, 1)), knobs)
    for changed in (seed, moved):
        assert (np.asarray(changed.ids_BxL) != np.asarray(one.ids_BxL)).any(1).mean() > 0.5
