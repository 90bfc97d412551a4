"""What the tests of attention's kernels share: inputs, a module that attends, and what holds of every kernel."""

import types as standard

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config
from mlm.models import stack


def make_inputs(L, H, D, dtype=jnp.float32):
    """q, k, v of two examples of three documents each, and their segments: the second example ends in padding."""
    rng = np.random.default_rng(L)
    qkv = [jnp.asarray(rng.normal(size=(2, L, H, D)), dtype) for _ in range(3)]
    ids_BxL = np.sort(rng.integers(1, 4, (2, L)), 1)
    ids_BxL[1, L - L // 4 :] = 0
    return qkv, jnp.asarray(ids_BxL)


def make_module(model: config.Model):
    """A module with this model for `attention.attend`, outside of flax."""
    return standard.SimpleNamespace(model=model, sow=lambda *_: None, is_mutable_collection=lambda _: False)


def check_backward_pass(attend, qkv, ids_BxL, forward: str, backward: str) -> None:
    """The backward pass runs its kernel, not the forward one: the sums of exponentials, q, k, v and output are kept."""
    (B, L, H, D) = qkv[0].shape
    lean = jax.checkpoint(lambda *qkv: attend(qkv, ids_BxL), policy=stack.save_products)
    pullback = jax.jit(lambda *qkv: jax.vjp(lean, *qkv)[1])(*qkv)
    kept = [leaf.size for leaf in jax.tree.leaves(pullback) if leaf.dtype == jnp.float32]
    assert sorted(kept) == [B * H * L, *[B * H * L * D] * 4]
    text = jax.jit(pullback).lower(qkv[0]).compile().as_text()
    assert backward in text and forward not in text
