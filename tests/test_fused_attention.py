"""The fused kernel that drops weights, with a GPU's tiles and a TPU's, run step by step where the device is not here:
values, gradients, which weights it drops, which blocks it reads, and when it is used."""

import functools

import attention_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

from mlm.base import config
from mlm.models import attention, attention_kernels, fused_attention, layers, platform_kernels, positions

B, H, L, D = 2, 2, 256, 32


@pytest.fixture(params=["gpu", "tpu"])
def platform(request, monkeypatch):
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: request.param)
    monkeypatch.setattr(fused_attention, "BLOCK_SIZES", {"gpu": (64, 64), "tpu": (128, 128)})
    if request.param != jax.default_backend():
        monkeypatch.setattr(pallas, "pallas_call", functools.partial(pallas.pallas_call, interpret=True))
    with jax.default_matmul_precision("highest"):  # of the plain formula, on a device
        yield request.param


def make_inputs():
    return attention_cases.make_inputs(L, H, D)


def select_pairs(ids_BxL, directionality="bidirectional", window=0, number=2):
    """Which pairs see each other in layer `number`, as a mask and as segments; one layer in three is global.

    The first example of a mixed model sees the left side only.
    """
    model = config.Model(local_window=window, directionality=directionality)
    left_B = jnp.arange(B) == 0 if directionality == "mixed" else None
    visible = positions.compute_visible(model, ids_BxL, left_B)[:, None]
    segments = positions.Segments(ids_BxL, directionality == "causal", left_B=left_B)
    context = positions.make_context(model, visible, segments=segments)
    select = positions.select_visible, positions.select_segments
    return [function(model, context, jnp.int32(number)) for function in select]


def attend(qkv, ids_BxL, *, is_fused=True, rate=0.25, **pairs):
    visible, segments = select_pairs(ids_BxL, **pairs)
    key_B = jax.random.split(jax.random.key(7), B) if rate else None
    if is_fused:
        return fused_attention.attend(*qkv, segments, key_B, rate)
    model = config.Model(attention_dropout=rate, dtype="float32", kernels="reference")
    return attention.attend(attention_cases.make_module(model), *qkv, visible, key_B)


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
def test_values_and_gradients_are_those_of_the_plain_formula(name, platform):
    """Nothing would be near if other weights were dropped."""
    inputs, case = make_inputs(), CASES[name]
    plain, fused = (compute_gradients(*inputs, is_fused=is_fused, **case) for is_fused in (False, True))
    for expected, result in zip(plain, fused, strict=True):
        np.testing.assert_allclose(result, expected, atol=2e-5 * np.abs(expected).max())


def test_the_weights_that_are_dropped_are_those_of_the_plain_formula(platform):
    L = D = 128
    zero, one = jnp.zeros((B, L, H, D)), jnp.broadcast_to(jnp.eye(L)[:, None], (B, L, H, D))
    key_B = jax.random.split(jax.random.key(3), B)
    segments = positions.Segments(jnp.ones((B, L), jnp.int32))
    weights_BxLxHxL = fused_attention.attend(zero, zero, one, segments, key_B, 0.1)  # of keys that are alike
    expected = jax.vmap(lambda key: layers.sample_keep_mask(key, 0.1, (L, H, L)))(key_B)
    np.testing.assert_array_equal(weights_BxLxHxL != 0, expected)


@pytest.mark.parametrize("name", [name for name in CASES if "rate" not in CASES[name]])
def test_a_program_reads_the_blocks_of_which_a_pair_is_visible(name):
    _, ids_BxL = make_inputs()
    visible_Bx1xLxL, segments = select_pairs(ids_BxL, **CASES[name])
    interval_Bx2xL = positions.find_intervals(segments)
    first, last = interval_Bx2xL[:, :1, :, None], interval_Bx2xL[:, 1:, :, None]
    np.testing.assert_array_equal((first <= jnp.arange(L)) & (jnp.arange(L) <= last), visible_Bx1xLxL)
    kernel = fused_attention.Kernel(L, H, D, 0.0, False, outer=64, inner=32)
    sides = [
        (fused_attention.find_key_blocks, visible_Bx1xLxL),
        (fused_attention.find_query_blocks, visible_Bx1xLxL.swapaxes(2, 3)),
    ]
    for find, blocks in sides:
        is_read_BxNxM = np.asarray(blocks).reshape(B, L // 64, 64, L // 32, 32).any((2, 4))
        block_Bx2xN = np.asarray(find(kernel, interval_Bx2xL))
        np.testing.assert_array_equal(block_Bx2xN[:, 0], is_read_BxNxM.argmax(-1))
        np.testing.assert_array_equal(block_Bx2xN[:, 1] - block_Bx2xN[:, 0], is_read_BxNxM.sum(-1))


def test_the_backward_pass_does_not_run_the_forward_kernel(platform):
    attention_cases.check_backward_pass(attend, *make_inputs(), "compute_output", "compute_key_gradients")


@pytest.mark.parametrize(("d", "expected"), [(64, "fused"), (80, "splash")])
def test_a_tpu_takes_splash_attention_where_it_takes_no_other(d, expected, monkeypatch):
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: "tpu")
    monkeypatch.setattr(fused_attention, "attend", lambda *_: "fused")
    monkeypatch.setattr(attention_kernels, "attend_by_splash", lambda *_: "splash")
    model = config.Model(attention_dropout=0.1, kernels="splash_attention,fused_attention")
    module = attention_cases.make_module(model)
    x_BxLxHxd, segments = jnp.zeros((B, 128, H, d)), positions.Segments(jnp.ones((B, 128), jnp.int32))
    visible_Bx1xLxL = jnp.ones((B, 1, 128, 128), bool)
    assert attention.attend(module, *[x_BxLxHxd] * 3, visible_Bx1xLxL, None, None, segments) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"length": 130}, False),
        ({"d": 20}, False),
        ({"kernels": "gelu"}, False),
        ({"device": "cpu"}, False),
        ({"dtype": "float32"}, {"gpu": False, "tpu": True}),
    ],
    ids=str,
)
def test_shapes_that_the_kernel_takes(changes, expected, platform, monkeypatch):
    case = {"length": 128, "d": 32, "kernels": "fused_attention", "dtype": "bfloat16"} | changes
    length, d, device = case.pop("length"), case.pop("d"), case.pop("device", platform)
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: device)
    expected = expected[platform] if isinstance(expected, dict) else expected
    assert fused_attention.can_use_fused(config.Model(**case), length, d) is expected
