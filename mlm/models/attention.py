"""Attention to a row itself and to another, and positions by rotation."""
import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import layers


def rotate(x_BxLxHxd):
    """Turns pairs of entries by angles that grow along the row (RoPE, Su et al. 2021, section 3.2.2).

    Products of two turned vectors depend on how far apart they stand, not on where.
    """
    half = x_BxLxHxd.shape[-1] // 2
    angle_Lx1xh = jnp.arange(x_BxLxHxd.shape[1])[:, None, None] / 10_000 ** (jnp.arange(half) / half)
    sin, cos = jnp.sin(angle_Lx1xh).astype(x_BxLxHxd.dtype), jnp.cos(angle_Lx1xh).astype(x_BxLxHxd.dtype)
    one, other = x_BxLxHxd[..., :half], x_BxLxHxd[..., half:]
    return jnp.concatenate([one * cos - other * sin, one * sin + other * cos], -1)


def attend(module: nn.Module, q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B):
    """What each token takes of those that visible_Bx1xLxS allows: out_BxLxD, its heads side by side.

    The weights are kept in the module's collection "intermediates", for those who make it mutable.
    """
    model, (B, L, H, d) = module.model, q_BxLxHxd.shape
    q, k, v = (x.astype(model.dtype) for x in (q_BxLxHxd, k_BxSxHxd, v_BxSxHxd))
    scores_BxHxLxS = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / d**0.5
    weights_BxHxLxS = jax.nn.softmax(jnp.where(visible_Bx1xLxS, scores_BxHxLxS, -1e9)).astype(v.dtype)
    module.sow("intermediates", "weights", weights_BxHxLxS)
    weights_BxHxLxS = layers.dropout(weights_BxHxLxS, key_B, model.attention_dropout)
    return jnp.einsum("bhqk,bkhd->bqhd", weights_BxHxLxS, v).reshape(B, L, H * d)


class Attention(nn.Module):
    """Multi-head self-attention; a token attends to the tokens that visible_Bx1xLxL allows."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, visible_Bx1xLxL, key_B):
        B, L, D = x_BxLxD.shape
        heads = self.model.heads
        qkv_BxLx3xHxd = layers.dense(self.model, 3 * D, "qkv")(x_BxLxD).reshape(B, L, 3, heads, D // heads)
        q, k, v = (qkv_BxLx3xHxd[:, :, i] for i in range(3))
        if self.model.positions == "rotary":
            q, k = rotate(q), rotate(k)
        return layers.dense(self.model, D, "out")(attend(self, q, k, v, visible_Bx1xLxL, key_B))


class CrossAttention(nn.Module):
    """A decoder's attention to its source (Vaswani et al. 2017, section 3.2.3), which turns no vector by its place.

    A token to which visible_Bx1xLxS allows none of the source takes nothing.
    """

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, source_BxSxD, visible_Bx1xLxS, key_B):
        (B, L, D), heads = x_BxLxD.shape, self.model.heads
        q_BxLxHxd = layers.dense(self.model, D, "query")(x_BxLxD).reshape(B, L, heads, D // heads)
        kv_BxSx2xHxd = layers.dense(self.model, 2 * D, "source")(source_BxSxD).reshape(B, -1, 2, heads, D // heads)
        out_BxLxD = attend(self, q_BxLxHxd, kv_BxSx2xHxd[:, :, 0], kv_BxSx2xHxd[:, :, 1], visible_Bx1xLxS, key_B)
        any_BxLx1 = visible_Bx1xLxS.any(-1).swapaxes(1, 2)
        return layers.dense(self.model, D, "out")(jnp.where(any_BxLx1, out_BxLxD, 0))
