"""Scaled dot-product attention with a hand-written backward pass: a faster `attention.attend`, with equal values.

The operands of each product have one type and the memory layout that XLA's fast matrix kernels on CPU need; its result
is float32. Long examples are computed in blocks of queries, whose weights the backward pass recomputes, so that memory
is linear in the length of an example (except for the mask, which all heads and layers share).

Letters in array names: B examples, H heads of d entries, L queries, S keys.
"""

import functools

import jax
import jax.numpy as jnp

from mlm.models import layers, platform_kernels

MAX_QUERIES_UNBLOCKED = 256  # up to here the forward pass stores all weights for the backward pass
QUERIES_PER_BLOCK = 128  # in longer examples


def attend(q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B, rate: float):
    """out_BxLxHxd, float32: attention over the visible keys.

    visible_Bx1xLxS: L may be 1 if all queries see the same; key_B None drops nothing; rate: dropout of the weights.
    """
    rate = 0.0 if key_B is None else rate
    q, k, v = (x.swapaxes(1, 2) for x in (q_BxLxHxd, k_BxSxHxd, v_BxSxHxd))
    B, H, L, d = q.shape
    if L <= MAX_QUERIES_UNBLOCKED or L % QUERIES_PER_BLOCK:
        out_BxHxLxd = attend_block(rate, q, k, v, visible_Bx1xLxS, key_B, 0)
        return jnp.swapaxes(out_BxHxLxd, 1, 2)  # pyright: ignore[reportArgumentType]

    def split_blocks(x):
        return jnp.moveaxis(x.reshape(*x.shape[:2], L // QUERIES_PER_BLOCK, QUERIES_PER_BLOCK, x.shape[3]), 2, 0)

    @jax.checkpoint
    def attend_one(operands):
        offset, q, visible = operands
        return attend_block(rate, q, k, v, visible_Bx1xLxS if visible is None else visible, key_B, offset)

    visible = split_blocks(visible_Bx1xLxS) if visible_Bx1xLxS.shape[2] == L else None
    out = jax.lax.map(attend_one, (jnp.arange(0, L, QUERIES_PER_BLOCK), split_blocks(q), visible))
    return jnp.moveaxis(out, 0, 2).reshape(B, H, L, d).swapaxes(1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_block(rate: float, q_BxHxLxd, k_BxHxSxd, v_BxHxSxd, visible_Bx1xLxS, key_B, offset):
    """out_BxHxLxd of the queries from index `offset` of the example on."""
    return forward(rate, q_BxHxLxd, k_BxHxSxd, v_BxHxSxd, visible_Bx1xLxS, key_B, offset)[0]


def forward(rate, q, k, v, visible, key_B, offset):
    """(out_BxHxLxd, what `backward` needs)."""
    scores_BxHxLxS = jnp.where(visible, multiply_heads("nqd,nkd->nqk", q, k) * q.shape[-1] ** -0.5, -1e9)
    exp_BxHxLxS = jnp.exp(scores_BxHxLxS - scores_BxHxLxS.max(-1, keepdims=True))
    inverse_sum_BxHxLx1 = 1 / exp_BxHxLxS.sum(-1, keepdims=True)
    exp_BxHxLxS = exp_BxHxLxS.astype(v.dtype)
    kept_BxHxLxS = drop_weights(exp_BxHxLxS, rate, key_B, offset)
    out_BxHxLxd = multiply_heads("nqk,nkd->nqd", kept_BxHxLxS, v) * inverse_sum_BxHxLx1
    return out_BxHxLxd, (q, k, v, visible, key_B, offset, exp_BxHxLxS, inverse_sum_BxHxLx1, out_BxHxLxd)


def backward(rate, residuals, d_out_BxHxLxd):
    """The gradients; the weighted mean of the weights' gradients is d_out * out (Dao et al. 2022, appendix B.2)."""
    q, k, v, visible, key_B, offset, exp_BxHxLxS, inverse_sum_BxHxLx1, out_BxHxLxd = residuals
    mean_BxHxLx1 = (d_out_BxHxLxd * out_BxHxLxd).sum(-1, keepdims=True)
    d_sum = (d_out_BxHxLxd * inverse_sum_BxHxLx1).astype(v.dtype)
    d_v = contract_queries(drop_weights(exp_BxHxLxS, rate, key_B, offset), d_sum)
    d_exp = drop_weights(multiply_heads("nqd,nkd->nqk", d_sum, v), rate, key_B, offset)
    d_scores = jnp.where(visible, exp_BxHxLxS * (d_exp - mean_BxHxLx1 * inverse_sum_BxHxLx1), 0).astype(q.dtype)
    d_q, d_k = multiply_heads("nqk,nkd->nqd", d_scores, k), contract_queries(d_scores, q)
    scale = q.shape[-1] ** -0.5
    return (d_q * scale).astype(q.dtype), (d_k * scale).astype(k.dtype), d_v.astype(v.dtype), None, None, None


attend_block.defvjp(forward, backward)


def multiply_heads(formula: str, left_BxHxMxK, right):
    """An einsum per head, with one batch axis: with two, XLA on CPU converts bfloat16 to float32 first."""
    flat = (x.reshape(-1, *x.shape[2:]) for x in (left_BxHxMxK, right))
    out = jnp.einsum(formula, *flat, preferred_element_type=jnp.float32)
    return out.reshape(*left_BxHxMxK.shape[:2], *out.shape[1:])


def contract_queries(x_BxHxLxS, y_BxHxLxd):
    """x.T @ y of each head, computed as (y.T @ x).T, since y and the result are small."""
    out_BxHxdxS = multiply_heads("ndq,nqk->ndk", platform_kernels.transpose(y_BxHxLxd), x_BxHxLxS)
    # Without the barrier XLA fuses the transpose into a slower product.
    return platform_kernels.transpose(jax.lax.optimization_barrier(out_BxHxdxS))


def drop_weights(x_BxHxLxS, rate: float, key_B, offset):
    """Dropout of attention weights, whose entries are numbered by query, head and key."""
    if rate == 0:
        return x_BxHxLxS
    H, L, S = x_BxHxLxS.shape[1:]
    keep_BxLxHxS = jax.vmap(lambda key: layers.sample_keep_mask(key, rate, (L, H, S), offset))(key_B)
    return jnp.where(keep_BxLxHxS.swapaxes(1, 2), x_BxHxLxS / (1 - rate), 0).astype(x_BxHxLxS.dtype)
