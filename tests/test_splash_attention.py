"""Splash attention, a TPU's kernel, run step by step on this CPU: its values and gradients; when it is used."""

import functools

import attention_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from small import VOCAB, batch, small_config

from mlm.base import config
from mlm.models import MODELS, attention, attention_kernels, platform_kernels, positions

B, H, D = 2, 2, 64


@pytest.fixture(autouse=True)
def on_tpu(monkeypatch):
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: "tpu")
    interpreted = functools.partial(splash.make_splash_mha_single_device, interpret=True)
    monkeypatch.setattr(splash, "make_splash_mha_single_device", interpreted)


make_inputs = functools.partial(attention_cases.make_inputs, H=H, D=D)


def attend(kernels, qkv, ids_BxL, *, is_causal=False, window=0, is_local=True, attention_dropout=0.0, key_B=None):
    model = config.Model(
        attention_dropout=attention_dropout, dtype=qkv[0].dtype.name, kernels=kernels, local_window=window
    )
    visible = ids_BxL[:, None, :, None] == ids_BxL[:, None, None, :]
    visible &= jnp.tri(ids_BxL.shape[1], dtype=bool) if is_causal else True
    context = positions.make_context(model, visible, segments=positions.Segments(ids_BxL, is_causal))
    number = 2 if is_local else 1  # with a global layer in three
    visible, segments = (
        f(model, context, jnp.int32(number)) for f in (positions.select_visible, positions.select_segments)
    )
    return attention.attend(attention_cases.make_module(model), *qkv, visible, key_B, None, segments)


def compute_gradients(kernels, qkv, ids_BxL, **case):
    weight = np.random.default_rng(0).normal(size=qkv[0].shape)
    out, pullback = jax.vjp(jax.jit(lambda *qkv: attend(kernels, qkv, ids_BxL, **case)), *qkv)
    return [np.asarray(x, np.float32) for x in (out, *pullback(jnp.asarray(weight, out.dtype)))]


CASES = {
    "one document after the other": (128, {}),
    "causal": (256, {"is_causal": True}),
    "a local layer": (128, {"window": 32}),
    "a global layer between local ones": (128, {"window": 32, "is_local": False}),
    "a causal window": (128, {"window": 32, "is_causal": True}),
    "several blocks of keys": (384, {}),
}


@pytest.mark.exhaustive(but=("causal", "a local layer"))
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_plain_formula(name):
    L, case = CASES[name]
    inputs = make_inputs(L)
    plain, fused = (compute_gradients(kernels, *inputs, **case) for kernels in ("reference", "splash_attention"))
    for expected, result in zip(plain, fused, strict=True):
        np.testing.assert_allclose(result, expected, atol=2e-5 * np.abs(expected).max())
        assert (result != expected).any(), "the kernel was not used"


@pytest.mark.exhaustive
def test_bfloat16_is_as_near_to_the_exact_values_as_the_plain_formula():
    qkv, ids_BxL = make_inputs(128, dtype=jnp.bfloat16)
    exact = compute_gradients("reference", [x.astype(jnp.float32) for x in qkv], ids_BxL)
    plain, fused = (compute_gradients(kernels, qkv, ids_BxL) for kernels in ("reference", "splash_attention"))
    for true, one, other in zip(exact, plain, fused, strict=True):
        assert np.linalg.norm(other - true) < 1.5 * np.linalg.norm(one - true)


def test_the_backward_pass_runs_one_kernel_on_what_the_forward_pass_kept():
    attend_by_splash = functools.partial(attend, "splash_attention")
    attention_cases.check_backward_pass(attend_by_splash, *make_inputs(128), "splash_mha_fwd", "splash_mha_dkv")


@pytest.mark.parametrize("local_window", [0, 64])
def test_a_model_chooses_in_the_loop_over_layers_only_where_some_are_local(local_window, monkeypatch):
    choices, attend = [], attention_kernels.attend_by_splash
    record = lambda *operands: choices.append(operands[-1].is_local) or attend(*operands)
    monkeypatch.setattr(attention_kernels, "attend_by_splash", record)
    changes = {"model__num_layers": 2, "model__scan_unroll": 1, "model__local_window": local_window}
    cfg = small_config("transformer", **changes, model__kernels="splash_attention,recomputation")
    model, text = MODELS["transformer"].build(cfg.model, VOCAB), batch(2, length=128).text
    jax.eval_shape(lambda params: model.encode(params, text), jax.eval_shape(model.init, jax.random.key(0)))
    assert {isinstance(choice, bool) for choice in choices} == {local_window == 0}


@pytest.mark.exhaustive(but=("{'L': 130}", "{'kernels': 'gelu'}"))
@pytest.mark.parametrize(
    "changes",
    [
        {"L": 130},
        {"L": 2},
        {"kernels": "gelu"},
        {"attention_dropout": 0.1, "key_B": jax.random.split(jax.random.key(0), B)},
        {"platform": "cpu"},
    ],
    ids=str,
)
def test_other_cases_take_the_plain_formula(monkeypatch, changes):
    case = {"L": 128, "kernels": "splash_attention", "platform": "tpu"} | changes
    L, kernels, platform = (case.pop(name) for name in ("L", "kernels", "platform"))
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: platform)
    inputs = make_inputs(L)
    plain, result = (attend(kernels, *inputs, **case) for kernels in ("reference", kernels))
    np.testing.assert_array_equal(result, plain)
