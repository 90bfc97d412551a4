"""Attention by cuDNN: which shapes it takes; on a GPU (JAX_PLATFORMS=cuda) its values, gradients and leaks."""

import attention_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlm.base import config
from mlm.models import attention, attention_kernels, platform_kernels, stack

needs_gpu = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU and JAX_PLATFORMS=cuda")
H, D = 3, 64


def make_inputs(L, dtype=jnp.bfloat16):
    """q, k, v of two examples, each of three documents, and which tokens see each other."""
    rng = np.random.default_rng(L)
    q, k, v = (jnp.asarray(rng.normal(size=(2, L, H, D)), dtype) for _ in range(3))
    segments_BxL = np.sort(rng.integers(1, 4, (2, L)), 1)
    return (q, k, v), jnp.asarray(segments_BxL[:, :, None] == segments_BxL[:, None, :])[:, None], segments_BxL


def attend(kernels, dtype):
    module = attention_cases.make_module(config.Model(attention_dropout=0.0, dtype=dtype, kernels=kernels))
    return lambda qkv, visible: (
        attention.attend(module, *qkv, visible, None).astype(jnp.float32).reshape(*qkv[0].shape[:2], H * D)
    )


def compute_gradients(function, qkv, visible):
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(2, qkv[0].shape[1], H * D)), jnp.float32)
    out, pullback = jax.vjp(jax.jit(lambda qkv: function(qkv, visible)), qkv)
    return [np.asarray(x, np.float32) for x in (out, *pullback(weight)[0])]


@needs_gpu
@pytest.mark.parametrize("L", [64, 128, 130, 512, 1024])
def test_values_and_gradients_are_those_of_the_plain_formula(L):
    qkv, visible, _ = make_inputs(L)
    exact = compute_gradients(attend("reference", "float32"), [x.astype(jnp.float32) for x in qkv], visible)
    plain = compute_gradients(attend("reference", "bfloat16"), qkv, visible)
    fused = compute_gradients(attend("cudnn_attention", "bfloat16"), qkv, visible)
    for true, one, other in zip(exact, plain, fused, strict=True):
        error, plain_error = (np.linalg.norm(x - true) / np.linalg.norm(true) for x in (other, one))
        assert error < max(2 * plain_error, 1e-3)
        assert error > 0, "cuDNN was not used"


@needs_gpu
def test_no_document_reads_another():
    qkv, visible, segments_BxL = make_inputs(128)
    first_BxL = jnp.asarray(segments_BxL == 1)

    def sum_first(qkv):
        out = attend("cudnn_attention", "bfloat16")(qkv, visible)
        return (out * first_BxL[..., None]).sum()

    for gradient in jax.jit(jax.grad(sum_first))(qkv):
        gradient = np.asarray(gradient, np.float32)
        assert np.abs(gradient[segments_BxL != 1]).max() == 0
    assert np.abs(gradient[segments_BxL == 1]).min() > 0  # of the values


def test_recomputation_saves_what_cudnn_gives():
    """JAX's primitive has the name that the policy looks for; else the backward pass would attend once more."""
    from jax._src.cudnn import fused_attention_stablehlo

    assert stack.save_products(fused_attention_stablehlo._dot_product_attention_fwd_p_wrapper)
    assert not stack.save_products(jax.lax.exp_p)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"rate": 0.1}, False),
        ({"dtype": "float32"}, False),
        ({"kernels": "gelu"}, False),
        ({"L": 2}, False),
        ({"L": 129}, False),
        ({"d": 256}, False),
        ({"d": 20}, False),
        ({"queries": 1}, False),
        ({"platform": "cpu"}, False),
    ],
)
def test_shapes_that_cudnn_takes(monkeypatch, changes, expected):
    case = {"rate": 0.0, "dtype": "bfloat16", "kernels": "cudnn_attention", "L": 128, "d": 64, "queries": 128}
    case |= {"platform": "gpu"} | changes
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: case["platform"])  # of a plan's devices, too
    x = jax.ShapeDtypeStruct((2, case["L"], 4, case["d"]), jnp.bfloat16)
    visible = jax.ShapeDtypeStruct((2, 1, min(case["queries"], case["L"]), case["L"]), bool)
    model = config.Model(dtype=case["dtype"], kernels=case["kernels"])
    assert attention_kernels.can_use_cudnn(model, x, x, visible, case["rate"]) is expected
