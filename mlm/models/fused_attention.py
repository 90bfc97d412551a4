"""Scaled dot-product attention by fused kernels, which store no weights: cuDNN's, and JAX's for TPUs (splash).

Like FlashAttention (Dao et al. 2022, arXiv 2205.14135) they need memory linear in the length of an example; cuDNN reads
a mask beside that, which all heads and layers share. Splash attention reads none: each token has the number of its
segment, and windows and causal order follow from positions. Neither has dropout by an example's key, so that training
with config.model.attention_dropout > 0 uses the plain formula.

Letters in array names: B examples, H heads of d entries, L queries, S keys.
"""

import functools
from typing import Any

import jax
from jax import ad_checkpoint
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from mlm.base import config
from mlm.models import platform_kernels, positions, stack

HEAD_SIZES = range(8, 129, 8)  # that cuDNN's backward pass takes
MIN_LENGTH = 64  # tokens; shorter examples, such as those that create parameters, gain nothing
LANES = 128  # of a TPU: the kernel's blocks are multiples of so many tokens
BLOCK_SIZES = (1024, 512, 256, LANES)  # tokens of a block; the largest that divides a length
MAX_FUSED_BLOCKS = 2  # blocks of keys with which one backward kernel, which keeps a gradient of q for each, is used


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


def can_use_splash(model: config.Model, q_BxLxHxd, rate: float) -> bool:
    """Whether splash attention computes attention of this shape and dropout rate on the devices that are traced for."""
    return (
        rate == 0
        and platform_kernels.uses_kernel(model, "splash_attention")
        and platform_kernels.find_platform() == "tpu"  # a run that began on a TPU may go on elsewhere
        and q_BxLxHxd.shape[1] % LANES == 0  # not so where two tokens create the parameters
    )


def attend_by_splash(q_BxLxHxd, k_BxLxHxd, v_BxLxHxd, segments: positions.Segments):
    """out_BxLxHxd: attention over the keys that the segments allow."""
    q_BxLxHxd = (q_BxLxHxd * q_BxLxHxd.shape[-1] ** -0.5).astype(k_BxLxHxd.dtype)
    q_BxHxLxd, k_BxHxLxd, v_BxHxLxd = (
        ad_checkpoint.checkpoint_name(x.swapaxes(1, 2), stack.FUSED_KERNEL) for x in (q_BxLxHxd, k_BxLxHxd, v_BxLxHxd)
    )
    operands = q_BxHxLxd, k_BxHxLxd, v_BxHxLxd, segments.ids_BxL
    everywhere, local = (functools.partial(_attend, segments.is_causal, window) for window in (0, segments.window))
    if isinstance(segments.is_local, bool):
        out_BxHxLxd = (local if segments.is_local else everywhere)(*operands)
    else:
        out_BxHxLxd = jax.lax.cond(segments.is_local, local, everywhere, *operands)
    return out_BxHxLxd.swapaxes(1, 2)


def _attend(is_causal: bool, window: int, q_BxHxLxd, k_BxHxLxd, v_BxHxLxd, ids_BxL) -> Any:
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
        splash.MultiHeadMask([mask] * H), block_sizes=block_sizes, residual_checkpoint_name=stack.FUSED_KERNEL
    )
    return jax.vmap(kernel)(q_BxHxLxd, k_BxHxLxd, v_BxHxLxd, splash.SegmentIds(ids_BxL, ids_BxL))
