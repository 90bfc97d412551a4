"""The kernel of residual sum, dropout and norm, with a GPU's tiles and a TPU's, run step by step on a CPU."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

from mlm.base import config
from mlm.models import fused_norm, layers, platform_kernels, stack

B, L, D = 2, 32, 384  # more entries than rows of a tile, and no power of two
MODEL = config.Model(
    dropout=0.25, norm_eps=1e-5, dtype="float32", kernels="reference", bias="all", norm="layernorm", layer_scale=0.0
)


@pytest.fixture(params=["gpu", "tpu"])
def platform(request, monkeypatch):
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: request.param)
    monkeypatch.setattr(fused_norm, "ROWS", {"gpu": 16, "tpu": 16})
    monkeypatch.setattr(fused_norm, "TILE_ENTRIES", {"gpu": 4096, "tpu": 4096})
    if request.param != jax.default_backend():
        monkeypatch.setattr(pallas, "pallas_call", functools.partial(pallas.pallas_call, interpret=True))
    return request.param


class Tripled(stack.ResidualLayer):
    """A layer whose sublayer triples."""

    @layers.nn.compact
    def __call__(self, x_BxLxD, key_B):
        return self.add("", lambda x_BxLxD: 3 * x_BxLxD, x_BxLxD, key_B)


def compute_gradients(model, x_BxLxD, key_B):
    """The output of a layer and its gradients."""
    add = lambda params, x_BxLxD: Tripled(model).apply({"params": params}, x_BxLxD, key_B)
    rng = np.random.default_rng(0)
    names = ("scale", "bias") if model.norm == "layernorm" else ("scale",)
    norms = ("norm", "post_norm") if model.norm_placement == "sandwich" else ("norm",)
    params = {norm: {name: jnp.asarray(rng.normal(size=D), jnp.float32) for name in names} for norm in norms}
    out, pullback = jax.vjp(jax.jit(add), params, x_BxLxD)
    return jax.tree.map(np.asarray, (out, pullback(jnp.asarray(rng.normal(size=out.shape), out.dtype))))


CASES = {
    "post": {},
    "post, no dropout": {"dropout": 0.0},
    "post, RMS norm": {"norm": "rmsnorm"},
    "pre": {"norm_placement": "pre"},
    "sandwich, RMS norm": {"norm_placement": "sandwich", "norm": "rmsnorm"},
}


@pytest.mark.exhaustive(but=("gpu-post", "tpu-pre", "gpu-sandwich, RMS norm"))
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_plain_formula(name, platform):
    """Nothing would be near if other entries were dropped."""
    x_BxLxD = jnp.asarray(np.random.default_rng(1).normal(1, 2, (B, L, D)), jnp.float32)
    key_B = jax.random.split(jax.random.key(7), B)
    plain = dataclasses.replace(MODEL, **({"norm_placement": "post"} | CASES[name]))
    fused = dataclasses.replace(plain, kernels="fused_norm")
    assert fused_norm.can_use_fused(fused, x_BxLxD) and not fused_norm.can_use_fused(plain, x_BxLxD)
    expected, result = (compute_gradients(model, x_BxLxD, key_B) for model in (plain, fused))
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(result), strict=True):
        np.testing.assert_allclose(other, one, atol=2e-5 * np.abs(one).max())


def test_the_entries_that_are_dropped_are_those_of_the_plain_formula(platform):
    """Bit for bit: the gradient of what may be dropped is 0 there; in bfloat16, as on devices."""
    model = dataclasses.replace(MODEL, kernels="fused_norm")
    x_BxLxD, y_BxLxD = jax.random.normal(jax.random.key(0), (2, B, L, D), jnp.bfloat16)
    params, key_B = {"scale": jnp.ones(D), "bias": jnp.zeros(D)}, jax.random.split(jax.random.key(3), B)
    normalize = lambda y_BxLxD: fused_norm.normalize(model, params, x_BxLxD, y_BxLxD, key_B)
    out_BxLxD, pullback = jax.vjp(normalize, y_BxLxD)
    (d_y_BxLxD,) = pullback(x_BxLxD)
    keep_BxLxD = jax.vmap(lambda key: layers.sample_keep_mask(key, 0.25, (L, D)))(key_B)
    np.testing.assert_array_equal(d_y_BxLxD != 0, keep_BxLxD)
    assert out_BxLxD.dtype == d_y_BxLxD.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("platform_name", "shape", "expected"),
    [
        ("gpu", (2, 512, 768), True),
        ("gpu", (2, 2, 768), False),
        ("gpu", (2, 512, 100), False),
        ("cpu", (2, 512, 768), False),
    ],
)
def test_which_shapes_and_devices_it_takes(platform_name, shape, expected, monkeypatch):
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: platform_name)
    assert fused_norm.can_use_fused(dataclasses.replace(MODEL, kernels="fused_norm"), jnp.zeros(shape)) == expected


def test_runs_that_train_together_each_have_their_own(platform):
    """A vmapped population: parameters, states and keys of two runs."""
    model = dataclasses.replace(MODEL, kernels="fused_norm")
    params = {"scale": jnp.ones((2, D)), "bias": jnp.zeros((2, D))}
    x_RxBxLxD, y_RxBxLxD = jax.random.normal(jax.random.key(0), (2, 2, B, L, D))
    key_RxB = jax.random.split(jax.random.key(3), (2, B))
    gradients = jax.grad(lambda *args: (fused_norm.normalize(model, *args) ** 3).sum(), argnums=(0, 1, 2))
    together = jax.vmap(gradients)(params, x_RxBxLxD, y_RxBxLxD, key_RxB)
    second = jax.tree.map(lambda x: x[1], (params, x_RxBxLxD, y_RxBxLxD, key_RxB))
    for one, other in zip(jax.tree.leaves(gradients(*second)), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(other[1], one, rtol=1e-5, atol=1e-5)


def test_the_backward_pass_does_not_run_the_forward_kernel(platform):
    model, params = dataclasses.replace(MODEL, kernels="fused_norm"), {"scale": jnp.ones(D), "bias": jnp.zeros(D)}
    x_BxLxD, y_BxLxD = jax.random.normal(jax.random.key(0), (2, B, L, D))
    key_B = jax.random.split(jax.random.key(3), B)
    triple = lambda x, y: fused_norm.normalize(model, params, x, 3 * y, key_B) ** 2
    lean = jax.checkpoint(triple, policy=stack.save_products)
    pullback = jax.jit(lambda *inputs: jax.vjp(lean, *inputs)[1])(x_BxLxD, y_BxLxD)
    text = jax.jit(pullback).lower(x_BxLxD).compile().as_text()
    assert "fused_norm_compute_gradients" in text and "fused_norm_compute_output" not in text
