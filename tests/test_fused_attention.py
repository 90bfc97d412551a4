"""The fused kernel that drops weights, run step by step on this CPU with a GPU's tiles and a TPU's: values, gradients,
leaks, which weights it drops, and when it is used."""

import functools
import types as standard

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

from mlm.base import config
from mlm.models import attention, fused_attention, layers, platform_kernels, positions

B, H, L, D = 2, 2, 256, 32


@pytest.fixture(params=["gpu", "tpu"], autouse=True)
def platform(request, monkeypatch):
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: request.param)
    monkeypatch.setattr(fused_attention, "BLOCK_SIZES", {"gpu": (64, 64), "tpu": (128, 128)})
    monkeypatch.setattr(pallas, "pallas_call", functools.partial(pallas.pallas_call, interpret=True))
    return request.param


def make_inputs(dtype=jnp.float32):
    """q, k, v of two examples of three documents each, and their segments: the second example ends in padding."""
    rng = np.random.default_rng(0)
    qkv = [jnp.asarray(rng.normal(size=(B, L, H, D)), dtype) for _ in range(3)]
    ids_BxL = np.sort(rng.integers(1, 4, (B, L)), 1)
    ids_BxL[1, L - L // 4 :] = 0
    return qkv, jnp.asarray(ids_BxL)


def attend(qkv, ids_BxL, *, is_fused=True, directionality="bidirectional", window=0, number=2, rate=0.25):
    """Attention of layer `number`, where one layer in three is global; in a mixed model the second example sees all."""
    model = config.Model(
        attention_dropout=rate, dtype="float32", kernels="reference", local_window=window, directionality=directionality
    )
    left_B = jnp.arange(B) == 0 if directionality == "mixed" else None
    visible = positions.compute_visible(model, ids_BxL, left_B)[:, None]
    segments = positions.Segments(ids_BxL, directionality == "causal", left_B=left_B)
    context = positions.make_context(model, visible, segments=segments)
    visible, segments = (
        f(model, context, jnp.int32(number)) for f in (positions.select_visible, positions.select_segments)
    )
    key_B = jax.random.split(jax.random.key(7), B) if rate else None
    if is_fused:
        return fused_attention.attend(*qkv, segments, key_B, rate)
    module = standard.SimpleNamespace(model=model, sow=lambda *_: None, is_mutable_collection=lambda _: False)
    return attention.attend(module, *qkv, visible, key_B)


def compute_gradients(qkv, ids_BxL, **case):
    weight = jnp.asarray(np.random.default_rng(1).normal(size=qkv[0].shape), jnp.float32)
    out, pullback = jax.vjp(jax.jit(lambda *qkv: attend(qkv, ids_BxL, **case)), *qkv)
    return [np.asarray(x) for x in (out, *pullback(weight))]


CASES = {
    "documents": {},
    "causal": {"directionality": "causal"},
    "some examples from the left": {"directionality": "mixed"},
    "a local layer": {"window": 32},
    "a causal local layer": {"window": 32, "directionality": "causal"},
    "a global layer between local ones": {"window": 32, "number": 1},
    "no weight dropped": {"rate": 0.0},
}


@pytest.mark.exhaustive(but=("gpu-some examples from the left", "tpu-a local layer"))
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_plain_formula(name):
    """Nothing would be near if other weights were dropped."""
    inputs, case = make_inputs(), CASES[name]
    plain, fused = (compute_gradients(*inputs, is_fused=is_fused, **case) for is_fused in (False, True))
    for expected, result in zip(plain, fused, strict=True):
        np.testing.assert_allclose(result, expected, atol=2e-5 * np.abs(expected).max())
