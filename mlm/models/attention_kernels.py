"""Kernels of scaled dot-product attention: faster than `attention.attend`, with equal values.

Ours is for CPU and has dropout. The operands of each product have one type and the memory layout that XLA's fast matrix
kernels need; its result is float32. Long examples are computed in blocks of queries, whose weights the backward pass
recomputes, so that memory is linear in the length of an example, but for the mask, which all heads and layers share.

The fused ones, cuDNN's and JAX's for TPUs (splash), store no weights, as FlashAttention (Dao et al. 2022, arXiv
2205.14135), and drop none by an example's key. cuDNN reads a mask; splash attention reads the number of each token's
segment, and windows and causal order follow from positions.

Letters in array names: B examples, H heads of d entries, L queries, S keys.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from mlm.base import config
from mlm.models import layers, platform_kernels, positions

MAX_QUERIES_UNBLOCKED = 256  # up to here the forward pass stores all weights for the backward pass
QUERIES_PER_BLOCK = 128  # in longer examples
HEAD_SIZES = range(8, 129, 8)  # that cuDNN's backward pass takes
MIN_LENGTH = 64  # tokens; shorter examples, such as those that create parameters, gain nothing
LANES = 128  # of a TPU: the kernel's blocks are multiples of so many tokens
BLOCK_SIZES = (1024, 512, 256, LANES)  # tokens of a block; the largest that divides a length
MAX_FUSED_BLOCKS = 2  # blocks of keys with which one backward kernel, which keeps a gradient of q for each, is used


def attend_by_blocks(q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B, rate: float):
    """out_BxLxHxd, float32: attention over the visible keys.

    visible_Bx1xLxS: L may be 1 if all queries see the same; key_B None drops nothing; rate: dropout of the weights.
    """
    rate = 0.0 if key_B is None else rate
    q, k, v = (x.swapaxes(1, 2) for x in (q_BxLxHxd, k_BxSxHxd, v_BxSxHxd))
    B, H, L, d = q.shape
    if L <= MAX_QUERIES_UNBLOCKED or L % QUERIES_PER_BLOCK:
        out_BxHxLxd = attend_block(rate, q, k, v, visible_Bx1xLxS, key_B, 0)
        return jnp.swapaxes(out_BxHxLxd, 1, 2)  # pyright: ignore[reportArgumentType]
    split = L // QUERIES_PER_BLOCK, QUERIES_PER_BLOCK
    split_blocks = lambda x: jnp.moveaxis(x.reshape(*x.shape[:2], *split, x.shape[3]), 2, 0)

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
    return attend_block_fwd(rate, q_BxHxLxd, k_BxHxSxd, v_BxHxSxd, visible_Bx1xLxS, key_B, offset)[0]


def attend_block_fwd(rate, q, k, v, visible, key_B, offset):
    """(out_BxHxLxd, what `attend_block_bwd` needs)."""
    scores_BxHxLxS = jnp.where(visible, multiply_heads("nqd,nkd->nqk", q, k) * q.shape[-1] ** -0.5, -1e9)
    exp_BxHxLxS = jnp.exp(scores_BxHxLxS - scores_BxHxLxS.max(-1, keepdims=True))
    inverse_sum_BxHxLx1 = 1 / exp_BxHxLxS.sum(-1, keepdims=True)
    exp_BxHxLxS = exp_BxHxLxS.astype(v.dtype)
    kept_BxHxLxS = drop_weights(exp_BxHxLxS, rate, key_B, offset)
    out_BxHxLxd = multiply_heads("nqk,nkd->nqd", kept_BxHxLxS, v) * inverse_sum_BxHxLx1
    return out_BxHxLxd, (q, k, v, visible, key_B, offset, exp_BxHxLxS, inverse_sum_BxHxLx1, out_BxHxLxd)


def attend_block_bwd(rate, residuals, d_out_BxHxLxd):
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


attend_block.defvjp(attend_block_fwd, attend_block_bwd)


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


def can_use_cudnn(model: config.Model, q_BxLxHxd, k_BxSxHxd, visible_Bx1xLxS, rate: float) -> bool:
    """Whether cuDNN computes attention of these shapes and this dropout rate."""
    (_, L, _, d), S = q_BxLxHxd.shape, k_BxSxHxd.shape[1]
    return (
        platform_kernels.uses_kernel(model, "cudnn_attention")
        and platform_kernels.find_platform() == "gpu"  # a run that began on a GPU may go on elsewhere
        and rate == 0
        and model.dtype == "bfloat16"
        and d in HEAD_SIZES
        and min(L, S) >= MIN_LENGTH
        and L % 2 == S % 2 == 0
        and visible_Bx1xLxS.shape[2:] == (L, S)
    )


def attend_by_cudnn(q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS):
    """out_BxLxHxd: attention over the visible keys; what it reads is saved, which costs what its product would."""
    qkv = map(platform_kernels.mark_saved, (q_BxLxHxd, k_BxSxHxd, v_BxSxHxd))
    return jax.nn.dot_product_attention(*qkv, mask=visible_Bx1xLxS, implementation="cudnn")


def can_use_splash(model: config.Model, q_BxLxHxd, segments: positions.Segments, rate: float) -> bool:
    """Whether splash attention computes attention of this shape and dropout rate on the devices that are traced for."""
    return (
        rate == 0
        and segments.left_B is None
        and platform_kernels.uses_kernel(model, "splash_attention")
        and platform_kernels.find_platform() == "tpu"  # a run that began on a TPU may go on elsewhere
        and q_BxLxHxd.shape[1] % LANES == 0  # not so where two tokens create the parameters
    )


def attend_by_splash(q_BxLxHxd, k_BxLxHxd, v_BxLxHxd, segments: positions.Segments):
    """out_BxLxHxd: attention over the keys that the segments allow."""
    q_BxLxHxd = (q_BxLxHxd * q_BxLxHxd.shape[-1] ** -0.5).astype(k_BxLxHxd.dtype)
    q_BxHxLxd, k_BxHxLxd, v_BxHxLxd = (
        platform_kernels.mark_saved(x.swapaxes(1, 2)) for x in (q_BxLxHxd, k_BxLxHxd, v_BxLxHxd)
    )
    operands = q_BxHxLxd, k_BxHxLxd, v_BxHxLxd, segments.ids_BxL
    everywhere, local = (functools.partial(_run_splash, segments.is_causal, window) for window in (0, segments.window))
    if isinstance(segments.is_local, bool):
        out_BxHxLxd = (local if segments.is_local else everywhere)(*operands)
    else:
        out_BxHxLxd = jax.lax.cond(segments.is_local, local, everywhere, *operands)
    return out_BxHxLxd.swapaxes(1, 2)


def _run_splash(is_causal: bool, window: int, q_BxHxLxd, k_BxHxLxd, v_BxHxLxd, ids_BxL) -> Any:
    """out_BxHxLxd in a layer with this window; 0: none."""
    _, H, L, _ = q_BxHxLxd.shape
    size = next(size for size in BLOCK_SIZES if L % size == 0)
    is_fused = L // size <= MAX_FUSED_BLOCKS
    names = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", *(() if is_fused else ("block_q_dq", "block_kv_dq")))
    # A head's 64 entries would fill half of a register's lanes, and of the memory that is laid out for them.
    layouts = dict.fromkeys(("q_layout", "k_layout", "v_layout"), splash.QKVLayout.SEQ_MINOR)
    block_sizes = splash.BlockSizes(**dict.fromkeys(names, size), use_fused_bwd_kernel=is_fused, **layouts)
    mask = splash.FullMask((L, L))
    if is_causal or window:
        half = window // 2 if window else None
        mask = splash.LocalMask((L, L), (half, 0 if is_causal else half), offset=0)
    kernel = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([mask] * H),
        block_sizes=block_sizes,
        residual_checkpoint_name=platform_kernels.FUSED_KERNEL,
    )
    return jax.vmap(kernel)(q_BxHxLxd, k_BxHxLxd, v_BxHxLxd, splash.SegmentIds(ids_BxL, ids_BxL))
