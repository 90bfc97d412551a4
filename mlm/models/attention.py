"""Self-attention, and positions by rotation."""
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


class Attention(nn.Module):
    """Multi-head self-attention; a token attends to the tokens that visible_Bx1xLxL allows.

    The weights are kept in the collection "intermediates", for those who make it mutable.
    """

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, visible_Bx1xLxL, key_B):
        B, L, D = x_BxLxD.shape
        heads = self.model.heads
        qkv_BxLx3xHxd = layers.dense(self.model, 3 * D, "qkv")(x_BxLxD).reshape(B, L, 3, heads, D // heads)
        q, k, v = (qkv_BxLx3xHxd[:, :, i] for i in range(3))
        if self.model.positions == "rotary":
            q, k = rotate(q), rotate(k)
        q, k, v = (x.astype(self.model.dtype) for x in (q, k, v))
        scores_BxHxLxL = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / (D // heads) ** 0.5
        weights_BxHxLxL = jax.nn.softmax(jnp.where(visible_Bx1xLxL, scores_BxHxLxL, -1e9)).astype(v.dtype)
        self.sow("intermediates", "weights", weights_BxHxLxL)
        weights_BxHxLxL = layers.dropout(weights_BxHxLxL, key_B, self.model.attention_dropout)
        out_BxLxD = jnp.einsum("bhqk,bkhd->bqhd", weights_BxHxLxL, v).reshape(B, L, D)
        return layers.dense(self.model, D, "out")(out_BxLxD)
