"""Scaled dot-product attention with a hand-written backward pass: values and gradients of `attention.attend`, sooner.

The operands of each product have one type and lie in memory as XLA's fast matrix kernels on CPU ask for, and its result
is float32. Long rows are taken in blocks of queries, of which the backward pass makes each one's weights again, so that
memory grows as a row does, not as its square (but for the mask that all heads and layers share).

Letters in array names: B rows, H heads of d entries, L queries, S keys.
"""
import functools

import jax
import jax.numpy as jnp

from mlm.models import cpu_kernels, layers

WHOLE = 256   # queries of a row up to which all weights are kept for the backward pass
BLOCK = 128   # queries of a block beyond


def attention(q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B, rate: float):
    """out_BxLxHxd, float32: what each token takes of those that are visible to it, its weights dropped at `rate`.

    visible: L may be 1, where each query sees the same. key_B None drops none.
    """
    rate = 0.0 if key_B is None else rate
    q, k, v = (x.swapaxes(1, 2) for x in (q_BxLxHxd, k_BxSxHxd, v_BxSxHxd))
    B, H, L, d = q.shape
    if L <= WHOLE or L % BLOCK:
        return attend(rate, q, k, v, visible_Bx1xLxS, key_B, 0).swapaxes(1, 2)

    def blocks(x):
        return jnp.moveaxis(x.reshape(*x.shape[:2], L // BLOCK, BLOCK, x.shape[3]), 2, 0)

    @jax.checkpoint
    def block(given):
        first, q, visible = given
        return attend(rate, q, k, v, visible_Bx1xLxS if visible is None else visible, key_B, first)

    visible = blocks(visible_Bx1xLxS) if visible_Bx1xLxS.shape[2] == L else None
    out = jax.lax.map(block, (jnp.arange(0, L, BLOCK), blocks(q), visible))
    return jnp.moveaxis(out, 0, 2).reshape(B, H, L, d).swapaxes(1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(rate: float, q_BxHxLxd, k_BxHxSxd, v_BxHxSxd, visible_Bx1xLxS, key_B, first):
    """out_BxHxLxd of queries of which the first is the row's `first`."""
    return forward(rate, q_BxHxLxd, k_BxHxSxd, v_BxHxSxd, visible_Bx1xLxS, key_B, first)[0]


def forward(rate, q, k, v, visible, key_B, first):
    scores_BxHxLxS = jnp.where(visible, product("nqd,nkd->nqk", q, k) * q.shape[-1]**-0.5, -1e9)
    exp_BxHxLxS = jnp.exp(scores_BxHxLxS - scores_BxHxLxS.max(-1, keepdims=True))
    share_BxHxLx1 = 1 / exp_BxHxLxS.sum(-1, keepdims=True)
    exp_BxHxLxS = exp_BxHxLxS.astype(v.dtype)
    out_BxHxLxd = product("nqk,nkd->nqd", dropped(exp_BxHxLxS, rate, key_B, first), v) * share_BxHxLx1
    return out_BxHxLxd, (q, k, v, visible, key_B, first, exp_BxHxLxS, share_BxHxLx1, out_BxHxLxd)


def backward(rate, kept, d_out_BxHxLxd):
    """A weight's gradient less their mean by the weights, which is that of the output by itself (Dao et al. 2022)."""
    q, k, v, visible, key_B, first, exp_BxHxLxS, share_BxHxLx1, out_BxHxLxd = kept
    mean_BxHxLx1 = (d_out_BxHxLxd * out_BxHxLxd).sum(-1, keepdims=True)
    d_sum = (d_out_BxHxLxd * share_BxHxLx1).astype(v.dtype)
    d_v = over_queries(dropped(exp_BxHxLxS, rate, key_B, first), d_sum)
    d_exp = dropped(product("nqd,nkd->nqk", d_sum, v), rate, key_B, first)
    d_scores = jnp.where(visible, exp_BxHxLxS * (d_exp - mean_BxHxLx1 * share_BxHxLx1), 0).astype(q.dtype)
    d_q, d_k = product("nqk,nkd->nqd", d_scores, k), over_queries(d_scores, q)
    scale = q.shape[-1]**-0.5
    return (d_q * scale).astype(q.dtype), (d_k * scale).astype(k.dtype), d_v.astype(v.dtype), None, None, None


attend.defvjp(forward, backward)


def product(formula: str, one_BxHxMxK, other):
    """Each head's product, of one batch dimension: with two, XLA on CPU takes bfloat16 for float32."""
    flat = (x.reshape(-1, *x.shape[2:]) for x in (one_BxHxMxK, other))
    out = jnp.einsum(formula, *flat, preferred_element_type=jnp.float32)
    return out.reshape(*one_BxHxMxK.shape[:2], *out.shape[1:])


def over_queries(x_BxHxLxS, y_BxHxLxd):
    """x.T @ y of each head, by way of y.T and the result's transpose, which are the small ones."""
    out_BxHxdxS = product("ndq,nqk->ndk", cpu_kernels.transposed(y_BxHxLxd), x_BxHxLxS)
    return cpu_kernels.transposed(
        jax.lax.optimization_barrier(out_BxHxdxS)
    )  # else XLA asks for a product that turns it


def dropped(x_BxHxLxS, rate: float, key_B, first):
    """`layers.dropout` of weights, numbered by query, head and key."""
    if rate == 0:
        return x_BxHxLxS
    H, L, S = x_BxHxLxS.shape[1:]
    kept_BxLxHxS = jax.vmap(lambda key: layers.kept(key, rate, (L, H, S), first))(key_B)
    return jnp.where(kept_BxLxHxS.swapaxes(1, 2), x_BxHxLxS / (1 - rate), 0).astype(x_BxHxLxS.dtype)
