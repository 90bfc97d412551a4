"""Scaled dot-product attention by cuDNN: one fused kernel that stores no weights, forward and backward.

Like FlashAttention (Dao et al. 2022, arXiv 2205.14135) it needs memory linear in the length of an example, but for the
mask, which all heads and layers share. It has no dropout whose mask depends on an example's key, so that training with
config.model.attention_dropout > 0 uses the plain formula.

Letters in array names: B examples, H heads of d entries, L queries, S keys.
"""

import jax

from mlm.base import config
from mlm.models import platform_kernels

HEAD_SIZES = range(8, 129, 8)  # that cuDNN's backward pass takes
MIN_LENGTH = 64  # tokens; shorter examples, such as those that create parameters, gain nothing


def can_attend(model: config.Model, q_BxLxHxd, k_BxSxHxd, visible_Bx1xLxS, rate: float) -> bool:
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


def attend(q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS):
    """out_BxLxHxd: attention over the visible keys; q, k, v and the result are bfloat16."""
    return jax.nn.dot_product_attention(q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, mask=visible_Bx1xLxS, implementation="cudnn")
