"""Self-attention, cross-attention and rotary position embeddings."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import cudnn_attention, dot_product, layers, platform_kernels


def rotate(x_BxLxHxd, position_BxL=None):
    """Rotary position embeddings (RoPE, Su et al. 2021, section 3.2.2); positions count from 0 if None."""
    half = x_BxLxHxd.shape[-1] // 2
    position_BxL = jnp.arange(x_BxLxHxd.shape[1])[None] if position_BxL is None else position_BxL
    angle_BxLx1xh = position_BxL[..., None, None] / 10_000 ** (jnp.arange(half) / half)
    sin, cos = jnp.sin(angle_BxLx1xh).astype(x_BxLxHxd.dtype), jnp.cos(angle_BxLx1xh).astype(x_BxLxHxd.dtype)
    first, second = x_BxLxHxd[..., :half], x_BxLxHxd[..., half:]
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1)


def attend(module: nn.Module, q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B):
    """out_BxLxD: attention over the keys that visible_Bx1xLxS allows, with the heads concatenated.

    The weights are sown in the module's collection "intermediates".
    """
    model, (B, L, H, d) = module.model, q_BxLxHxd.shape
    q, k, v = (x.astype(model.dtype) for x in (q_BxLxHxd, k_BxSxHxd, v_BxSxHxd))
    rate = 0.0 if key_B is None else model.attention_dropout
    needs_weights = module.is_mutable_collection("intermediates")
    if cudnn_attention.can_attend(model, q, k, visible_Bx1xLxS, rate) and not needs_weights:
        return cudnn_attention.attend(q, k, v, visible_Bx1xLxS).reshape(B, L, H * d)
    if platform_kernels.uses_kernel(model, "attention") and not needs_weights:
        return dot_product.attend(q, k, v, visible_Bx1xLxS, key_B, rate).reshape(B, L, H * d)
    scores_BxHxLxS = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / d**0.5
    weights_BxHxLxS = jax.nn.softmax(jnp.where(visible_Bx1xLxS, scores_BxHxLxS, -1e9)).astype(v.dtype)
    module.sow("intermediates", "weights", weights_BxHxLxS)
    weights_BxHxLxS = layers.dropout(weights_BxHxLxS.swapaxes(1, 2), key_B, rate).swapaxes(1, 2)
    return jnp.einsum("bhqk,bkhd->bqhd", weights_BxHxLxS, v).reshape(B, L, H * d)


class Attention(nn.Module):
    """Multi-head self-attention over the tokens that visible_Bx1xLxL allows."""

    model: config.Model

    def setup(self):
        """Declares one dense layer for q, k and v together, and the output layer."""
        self.qkv = layers.dense(self.model, 3 * self.model.width, "qkv")
        self.out = layers.dense(self.model, self.model.width, "out")

    def project_heads(self, x_BxLxD, position_BxL=None):
        """q, k and v, each BxLxHxd; position: of each token in its example, from 0 if None."""
        model, (B, L, D) = self.model, x_BxLxD.shape
        qkv_BxLx3xHxd = self.qkv(x_BxLxD).reshape(B, L, 3, model.num_heads, D // model.num_heads)
        q, k, v = (part.squeeze(2) for part in jnp.split(qkv_BxLx3xHxd, 3, 2))
        return (rotate(q, position_BxL), rotate(k, position_BxL), v) if model.positions == "rotary" else (q, k, v)

    def attend(self, q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B):
        """Returns out_BxLxD after the output layer; S keys and values may come from a cache, so that S and L differ."""
        return self.out(attend(self, q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B))

    def __call__(self, x_BxLxD, visible_Bx1xLxL, key_B):
        """Returns out_BxLxD; key_B: random keys of the dropout of attention weights, None in evaluation."""
        return self.attend(*self.project_heads(x_BxLxD), visible_Bx1xLxL, key_B)


class CrossAttention(nn.Module):
    """A decoder's attention to its source (Vaswani et al. 2017, section 3.2.3), without rotary positions.

    A token that sees none of the source gets the output layer's bias.
    """

    model: config.Model

    def setup(self):
        """Declares the layers of the queries, of the source's keys and values together, and of the output."""
        self.query = layers.dense(self.model, self.model.width, "query")
        self.source = layers.dense(self.model, 2 * self.model.width, "source")
        self.out = layers.dense(self.model, self.model.width, "out")

    def project_source(self, source_BxSxD):
        """k and v of the source, each BxSxHxd."""
        B, S, D = source_BxSxD.shape
        kv_BxSx2xHxd = self.source(source_BxSxD).reshape(B, S, 2, self.model.num_heads, D // self.model.num_heads)
        return kv_BxSx2xHxd[:, :, 0], kv_BxSx2xHxd[:, :, 1]

    def attend(self, x_BxLxD, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B):
        """Returns out_BxLxD; S keys and values come from `project_source`."""
        B, L, D = x_BxLxD.shape
        q_BxLxHxd = self.query(x_BxLxD).reshape(B, L, self.model.num_heads, D // self.model.num_heads)
        out_BxLxD = attend(self, q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B)
        return self.out(jnp.where(visible_Bx1xLxS.any(-1).swapaxes(1, 2), out_BxLxD, 0))

    def __call__(self, x_BxLxD, source_BxSxD, visible_Bx1xLxS, key_B):
        """Returns out_BxLxD; S is the length of the source, whose k and v are computed here."""
        return self.attend(x_BxLxD, *self.project_source(source_BxSxD), visible_Bx1xLxS, key_B)
