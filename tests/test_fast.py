"""Every hand-written path has the values and gradients of the plain formula: float32 to 1e-5, bfloat16 as stated."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import MEMBERS, batch, build, small_config

from mlm.models import MODELS, fast
from mlm.objectives import OBJECTIVES, masking
from mlm.objectives.cross_entropy import cross_entropy
from mlm.train.step import update
from mlm.train.step.program import training_knobs

VOCAB = 50


@pytest.fixture(autouse=True)
def every_path(monkeypatch):
    """All paths are held to the plain formulas, also on a device kind for which not all are chosen."""
    monkeypatch.setitem(fast.PATHS, jax.default_backend(), ("matmul", "recurrence", "cross_entropy"))


def loss_and_gradients(cfg, params):
    model = MODELS[cfg.model.family](cfg.model, VOCAB)
    objective = OBJECTIVES[cfg.objective](cfg.mask, masking.slots(cfg.mask.max_rate, 16), np.arange(VOCAB))
    knobs, rows = training_knobs(cfg), batch(4)
    key_B = update.row_keys(0, 0, rows.index_B)

    def total(params):
        losses = objective.loss({"model": params, "objective": {}}, model, rows, key_B, knobs, train=True)
        return losses.loss_B["mlm"].sum() / losses.weight_B["mlm"].sum(), losses.sums_B["correct"]

    return jax.jit(jax.value_and_grad(total, has_aux=True))(params)


def near(fast_tree, plain_tree, tolerance):
    """Each leaf within tolerance of the other's largest entry."""
    by_path = jax.tree_util.tree_leaves_with_path(fast_tree)
    for (path, one), other in zip(by_path, jax.tree.leaves(plain_tree), strict=True):
        scale = float(jnp.abs(other).max()) + 1e-6
        np.testing.assert_allclose(one / scale, other / scale, atol=tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(("family", "cell"), MEMBERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.06)])
def test_a_member_is_the_same_by_either_path(family, cell, dtype, tolerance):
    cfg = small_config(family, cell, model__dtype=dtype, mask__rate=0.4, model__layers=1)
    params = build(dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, dtype="float32")))[1]
    plain = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, fast=False))
    (loss, right), gradient = loss_and_gradients(cfg, params)
    (plain_loss, plain_right), plain_gradient = loss_and_gradients(plain, params)
    assert loss == pytest.approx(float(plain_loss), rel=min(tolerance, 0.01))
    if dtype == "float32":
        np.testing.assert_array_equal(right, plain_right)
    near(gradient, plain_gradient, tolerance)
    paths = [str(jax.make_jaxpr(lambda p, cfg=one: loss_and_gradients(cfg, p))(params)) for one in (cfg, plain)]
    assert ["custom_vjp" in path or "layout_constraint" in path for path in paths] == [True, False]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_recurrence_in_one_direction_or_two(bidirectional):
    cfg = small_config("rnn", "gru", model__bidirectional=bidirectional, model__layers=1, model__time_unroll=3)
    params = build(cfg)[1]
    plain = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, fast=False))
    near(loss_and_gradients(cfg, params)[1], loss_and_gradients(plain, params)[1], 1e-5)


def test_cross_entropy_where_logits_are_large_and_tied():
    rng = np.random.default_rng(0)
    h_NxD, table_VxD = rng.normal(size=(12, 8)).astype(np.float32), 40 * rng.normal(size=(VOCAB, 8)).astype(np.float32)
    table_VxD[7] = table_VxD[9]
    bias_V = rng.normal(size=VOCAB).astype(np.float32)
    bias_V[7] = bias_V[9]
    logits_NxV = h_NxD @ table_VxD.T + bias_V
    target_N = np.where(np.arange(12) < 6, logits_NxV.argmax(1), rng.integers(0, VOCAB, 12))
    share_N = rng.uniform(size=12).astype(np.float32)

    def by_path(*parameters):
        nats_N, right_N = cross_entropy(*parameters, target_N)
        return (nats_N * share_N).sum(), right_N

    def plainly(h_NxD, table_VxD, bias_V):
        logits_NxV = h_NxD @ table_VxD.T + bias_V
        return -(jnp.take_along_axis(jax.nn.log_softmax(logits_NxV), target_N[:, None], 1)[:, 0] * share_N).sum()

    (loss, right_N), gradient = jax.value_and_grad(by_path, (0, 1, 2), has_aux=True)(h_NxD, table_VxD, bias_V)
    plain_loss, plain_gradient = jax.value_and_grad(plainly, (0, 1, 2))(h_NxD, table_VxD, bias_V)
    assert loss == pytest.approx(float(plain_loss), rel=1e-5)
    near(gradient, plain_gradient, 1e-5)
    np.testing.assert_array_equal(right_N, logits_NxV[np.arange(12), target_N] >= logits_NxV.max(1))
    assert right_N[:6].all() and not right_N.all()


def test_in_bfloat16_a_certain_target_costs_nothing_and_never_less():
    """Its logit is added up as those of all entries are: in float32, of the same rounded operands."""
    rng = np.random.default_rng(0)
    h_NxD, table_VxD = (jnp.asarray(rng.normal(size=(rows, 64)), jnp.bfloat16) for rows in (32, VOCAB))
    target_N = jnp.argmax(h_NxD.astype(jnp.float32) @ table_VxD.astype(jnp.float32).T, axis=1)
    nats_N, _ = cross_entropy(8 * h_NxD, table_VxD, jnp.zeros(VOCAB), target_N)
    assert nats_N.min() > -1e-4 and nats_N.min() < 1e-2


def test_the_switch_and_the_device_decide():
    model = small_config().model
    assert fast.takes(model, "matmul") and not fast.takes(dataclasses.replace(model, fast=False), "matmul")
    assert not fast.takes(model, "no such path")
