"""Attention's hand-written passes against the plain formula: values, gradients, dropped weights, long rows."""

import attention_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlm.base import config
from mlm.models import attention, attention_kernels

B, H, D = 2, 3, 8


def draw_inputs(L, S, dtype):
    """q, k, v, which tokens are seen (of several segments; one row's end sees nothing of the keys), and row keys."""
    rng = np.random.default_rng(L)
    q, k, v = (jnp.asarray(rng.normal(size=(B, length, H, D)), dtype) for length in (L, S, S))
    of_queries, of_keys = (np.sort(rng.integers(1, 4, (B, length)), 1) for length in (L, S))
    of_queries[0, -3:] = 9
    visible_Bx1xLxS = jnp.asarray(of_queries[:, :, None] == of_keys[:, None, :])[:, None]
    return (q, k, v), visible_Bx1xLxS, jax.random.split(jax.random.key(1), B)


def gradients(made, given, visible, key_B):
    """The result in float32, and the gradient of its product with numbers that are all different."""
    weight = np.random.default_rng(0).normal(size=given[0].shape).astype(np.float32)

    def total(*given):
        out = made(*given, visible, key_B).astype(jnp.float32)
        return (out.reshape(weight.shape) * weight).sum(), out.reshape(weight.shape)

    (_, out), found = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))(*given)
    return [np.asarray(x, np.float32) for x in (out, *found)]


def plain(rate, dtype):
    module = attention_cases.make_module(config.Model(attention_dropout=rate, dtype=dtype, kernels="reference"))
    return lambda *given: attention.attend(module, *given)


@pytest.mark.exhaustive(
    but=(
        "13-13-False-float32-1e-05",
        "7-12-True-float32-1e-05",
        "7-12-False-bfloat16-0.03",
        "512-512-True-bfloat16-0.03",
    )
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.03)])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize(("L", "S"), [(13, 13), (7, 12), (512, 512)])
def test_both_passes_are_those_of_the_plain_formula(L, S, dropped, dtype, tolerance):
    given, visible, key_B = draw_inputs(L, S, dtype)
    key_B, rate = (key_B, 0.25) if dropped else (None, 0.25)
    sides = [
        gradients(made, given, visible, key_B)
        for made in (plain(rate, dtype), lambda *given: attention_kernels.attend_by_blocks(*given, rate=rate))
    ]
    for one, other in zip(*sides, strict=True):
        np.testing.assert_allclose(other / np.abs(one).max(), one / np.abs(one).max(), atol=tolerance)


def test_memory_of_long_rows_grows_as_they_do():
    def held(L):
        given = [jax.ShapeDtypeStruct((1, L, 1, D), jnp.float32)] * 3
        seen = jax.ShapeDtypeStruct((1, 1, 1, L), bool)
        total = lambda *given: attention_kernels.attend_by_blocks(*given, None, rate=0.0).sum()
        compiled = jax.jit(jax.grad(total, (0, 1, 2))).lower(*given, seen).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert held(2048) < 2.5 * held(1024)
