"""The kernel of a recurrent layer for TPUs, run step by step on a CPU."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from small import small_config

from mlm.models import fused_recurrence, platform_kernels, recurrence, rnn

B, L = 16, 7  # two blocks of examples


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: "tpu")
    monkeypatch.setattr(fused_recurrence, "ROWS", 8)
    if jax.default_backend() != "tpu":
        monkeypatch.setattr(pallas, "pallas_call", functools.partial(pallas.pallas_call, interpret=True))


def make_layer(cell, **changes):
    """(run, its parameters, states, segments) of a layer; run: (model, params, states) -> states; no parameter is 0."""
    model = small_config("rnn", cell, model__kernels="reference", **changes).model
    rng = np.random.default_rng(0)
    x_BxLxD = jnp.asarray(rng.normal(size=(B, L, model.width)), jnp.float32)
    segments_BxL = jnp.asarray(np.sort(rng.integers(0, 3, (B, L))))
    run = lambda model, params, x_BxLxD: rnn.RecurrentLayer(model).apply(params, x_BxLxD, 1, (segments_BxL, None), None)
    init = lambda: rnn.RecurrentLayer(model).init(jax.random.key(0), x_BxLxD[:1], 1, (segments_BxL[:1], None), None)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), jnp.float32), jax.eval_shape(init))
    return run, model, params, x_BxLxD, segments_BxL


def fuse(model):
    fused = dataclasses.replace(model, kernels="fused_recurrence")
    assert fused_recurrence.can_use_fused(fused, B) and not fused_recurrence.can_use_fused(model, B)
    return fused


@pytest.mark.parametrize(
    "changes", [{}, {"model__directionality": "causal", "model__bias": "norms"}], ids=["", "causal"]
)
@pytest.mark.parametrize("cell", recurrence.CELLS)
def test_values_and_gradients_are_those_of_the_plain_formula(cell, changes):
    run, model, params, x_BxLxD, _ = make_layer(cell, **changes)
    d_BxLxD = jnp.asarray(np.random.default_rng(1).normal(size=x_BxLxD.shape), jnp.float32)

    def compute_both(model):
        out_BxLxD, pullback = jax.vjp(functools.partial(run, model), params, x_BxLxD)
        return out_BxLxD, pullback(d_BxLxD)

    expected, found = (jax.jit(functools.partial(compute_both, one))() for one in (model, fuse(model)))
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True):
        assert np.abs(one).max() > 0
        np.testing.assert_allclose(other, one, atol=1e-5 * np.abs(one).max(), err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_no_state_and_no_gradient_passes_from_one_segment_to_another(cell):
    """Not even where a state is no number."""
    run, model, params, x_BxLxD, segments_BxL = make_layer(cell)
    is_first_BxLx1 = (segments_BxL == 0)[:, :, None]
    run = jax.jit(functools.partial(run, fuse(model)))
    out_BxLxD, other_BxLxD = run(params, x_BxLxD), run(params, jnp.where(is_first_BxLx1, jnp.nan, x_BxLxD))
    np.testing.assert_array_equal(*(jnp.where(is_first_BxLx1, 0, x) for x in (out_BxLxD, other_BxLxD)))
    assert jnp.isnan(jnp.where(is_first_BxLx1, other_BxLxD, jnp.nan)).all()
    gradient = jax.grad(lambda x_BxLxD: jnp.where(is_first_BxLx1, 0, run(params, x_BxLxD)).sum())(x_BxLxD)
    assert not jnp.where(is_first_BxLx1, gradient, 0).any() and jnp.where(is_first_BxLx1, 0, gradient).any()


def test_a_bfloat16_layer_rounds_as_its_plain_formula_does():
    run, model, params, x_BxLxD, _ = make_layer("lstm", model__dtype="bfloat16")
    out, other = (run(one, params, x_BxLxD.astype(jnp.bfloat16)) for one in (model, fuse(model)))
    assert other.dtype == out.dtype == jnp.bfloat16
    np.testing.assert_allclose(other.astype(jnp.float32), out.astype(jnp.float32), atol=0.03)


def test_what_the_kernel_cannot_run_is_left_to_the_compiler(monkeypatch):
    model = fuse(make_layer("gru")[1])
    assert not fused_recurrence.can_use_fused(model, B + 1)
    assert not fused_recurrence.can_use_fused(dataclasses.replace(model, rnn_dim=2048), B)
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: "gpu")
    assert not fused_recurrence.can_use_fused(model, B)
