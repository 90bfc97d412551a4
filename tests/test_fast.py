"""Every hand-written path has the values and gradients of the plain formula: float32 to 1e-5, bfloat16 as stated."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import batch, small_config

from mlm.models import FAMILY_CELLS, MODELS, platform_kernels
from mlm.objectives import token_prediction
from mlm.objectives.cross_entropy import cross_entropy

pytestmark = pytest.mark.slow

VOCAB = 50


ALL = ",".join(platform_kernels.FASTER_KERNELS["cpu"])


def compute_both_paths(cfg, *dtypes):
    """For each dtype the pair, fast and plain, of ((loss, right), gradient) of a model with dropout, and of its jaxpr.

    One program makes them all, of rows with several segments, an odd length and padding. No parameter is zero.
    """
    model_of = lambda *, fast, dtype: MODELS[cfg.model.family].build(
        dataclasses.replace(cfg.model, kernels=ALL if fast else "reference", dtype=dtype), VOCAB
    )
    rng, text = np.random.default_rng(0), batch(3, length=13).text
    share_BxL = rng.uniform(size=text.ids_BxL.shape) * (rng.uniform(size=text.ids_BxL.shape) < 0.5)
    key_B = jax.random.wrap_key_data(rng.integers(2**32, size=(3, 2), dtype=np.uint32))
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + 0.25 * rng.normal(size=x.shape).astype(np.float32),
        jax.eval_shape(model_of(fast=False, dtype="float32").init, jax.random.key(0)),
    )

    def gradient_of(model):
        def loss(params, key_B):
            (h_BxLxD,) = model.encode(params, text, key_B=key_B)
            nats_BxL, right_BxL = token_prediction.compute_token_loss_fast(
                params, model, h_BxLxD, np.roll(text.ids_BxL, 1, 0)
            )
            return (nats_BxL * share_BxL).sum() / share_BxL.sum(), right_BxL

        return jax.jit(jax.value_and_grad(loss, has_aux=True))

    each = [[gradient_of(model_of(fast=fast, dtype=dtype)) for fast in (True, False)] for dtype in dtypes]
    together = jax.jit(lambda *given: [[gradient(*given) for gradient in pair] for pair in each])
    # Machine code that is not optimised computes the same formulas, and is made in half the time.
    compiled = together.lower(params, key_B).compile(compiler_options={"xla_backend_optimization_level": 0})
    return [
        (pair, [str(gradient.trace(params, key_B).jaxpr) for gradient in gradients])
        for pair, gradients in zip(compiled(params, key_B), each, strict=True)
    ]


def near(fast_tree, plain_tree, tolerance):
    """Each leaf within tolerance of the other's largest entry."""
    by_path = jax.tree_util.tree_leaves_with_path(fast_tree)
    for (path, one), other in zip(by_path, jax.tree.leaves(plain_tree), strict=True):
        scale = float(jnp.abs(other).max()) + 1e-6
        np.testing.assert_allclose(one / scale, other / scale, atol=tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(("family", "cell"), FAMILY_CELLS)
def test_a_member_is_the_same_by_either_path(family, cell):
    """Two layers, by a loop whose body is compiled once; the gated cell's tokens three an iteration, and one over."""
    cfg = small_config(
        family, cell, model__num_layers=2, model__scan_unroll=1, model__rnn_unroll=3 if cell == "gru" else 1
    )
    found = compute_both_paths(cfg, "float32", "bfloat16")
    for tolerance, (sides, jaxprs) in zip((1e-5, 0.06), found, strict=True):
        ((loss, right_BxL), gradient), ((plain_loss, plain_right_BxL), plain_gradient) = sides
        assert loss == pytest.approx(float(plain_loss), rel=min(tolerance, 0.01))
        if tolerance == 1e-5:
            np.testing.assert_array_equal(right_BxL, plain_right_BxL)
        near(gradient, plain_gradient, tolerance)
        assert ["custom_vjp" in jaxpr or "layout_constraint" in jaxpr for jaxpr in jaxprs] == [True, False]


def test_recurrence_in_one_direction():
    cfg = small_config("rnn", "gru", model__directionality="causal", model__num_layers=1, model__rnn_unroll=3)
    ((((_, gradient), (_, plain_gradient)), _),) = compute_both_paths(cfg, "float32")
    near(gradient, plain_gradient, 1e-5)


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

    both = (jax.value_and_grad(by_path, (0, 1, 2), has_aux=True), jax.value_and_grad(plainly, (0, 1, 2)))
    ((loss, right_N), gradient), (plain_loss, plain_gradient) = jax.jit(
        lambda *parameters: [each(*parameters) for each in both]
    )(h_NxD, table_VxD, bias_V)
    assert loss == pytest.approx(float(plain_loss), rel=1e-5)
    near(gradient, plain_gradient, 1e-5)
    np.testing.assert_array_equal(right_N, logits_NxV[np.arange(12), target_N] >= logits_NxV.max(1))
    assert right_N[:6].all() and not right_N.all()


def test_in_bfloat16_a_certain_target_costs_nothing_and_never_less():
    """Its logit is added up as those of all entries are: in float32, of the same rounded operands."""
    rng = np.random.default_rng(0)
    h_NxD, table_VxD = (jnp.asarray(rng.normal(size=(rows, 64)), jnp.bfloat16) for rows in (32, VOCAB))
    target_N = jnp.argmax(h_NxD.astype(jnp.float32) @ table_VxD.astype(jnp.float32).T, axis=1)
    nats_N, _ = jax.jit(cross_entropy)(8 * h_NxD, table_VxD, jnp.zeros(VOCAB), target_N)
    assert nats_N.min() > -1e-4 and nats_N.min() < 1e-2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "cell"), FAMILY_CELLS)
def test_any_choice_of_paths_has_gradients_of_the_parameters_types(family, cell, dtype):
    """Where one path alone is left out, and where one alone is taken."""
    cfg, every = small_config(family, cell, model__num_layers=1, model__dtype=dtype), platform_kernels.KERNELS
    for kernels in (*every, *(",".join(path for path in every if path != plain) for plain in every)):
        model = MODELS[family].build(dataclasses.replace(cfg.model, kernels=kernels), VOCAB)
        params = jax.eval_shape(model.init, jax.random.key(0))
        loss = lambda params, model=model: model.encode(params, batch(2, length=5).text)[0].astype(jnp.float32).sum()
        assert jax.eval_shape(jax.grad(loss), params) == params
