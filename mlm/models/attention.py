"""Self-attention and cross-attention."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import attention_kernels, fused_attention, layers, platform_kernels, positions


def attend(
    module: nn.Module,
    q_BxLxHxd,
    k_BxSxHxd,
    v_BxSxHxd,
    visible_Bx1xLxS,
    key_B,
    bias_BxHxLxS: jax.Array | Callable | None = None,
    segments: positions.Segments | None = None,
):
    """out_BxLxHxd: attention over the keys that visible_Bx1xLxS allows; its weights are sown in "intermediates".

    key_B None drops nothing; bias_BxHxLxS, or what it makes of q_BxLxHxd and k_BxSxHxd, is added to the scores;
    segments is what visible_Bx1xLxS says, for a kernel that reads no mask, or None where it cannot be said so.
    """
    model, d = module.model, q_BxLxHxd.shape[-1]
    q, k, v = (x.astype(model.dtype) for x in (q_BxLxHxd, k_BxSxHxd, v_BxSxHxd))
    rate = 0.0 if key_B is None else model.attention_dropout
    # The kernels give no weights and take no bias. cuDNN's, without dropout, needs no hash. On a TPU ours comes before
    # splash attention, whose inputs and output the compiler copies into another layout.
    if bias_BxHxLxS is None and not module.is_mutable_collection("intermediates"):
        if attention_kernels.can_use_cudnn(model, q, k, visible_Bx1xLxS, rate):
            return attention_kernels.attend_by_cudnn(q, k, v, visible_Bx1xLxS)
        if segments is not None and fused_attention.can_use_fused(model, q.shape[1], d):
            return fused_attention.attend(q, k, v, segments, key_B, rate)
        if segments is not None and attention_kernels.can_use_splash(model, q, segments, rate):
            return attention_kernels.attend_by_splash(q, k, v, segments)
        if platform_kernels.uses_kernel(model, "attention"):
            return attention_kernels.attend_by_blocks(q, k, v, visible_Bx1xLxS, key_B, rate)
    scores_BxHxLxS = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / d**0.5
    bias_BxHxLxS = bias_BxHxLxS(q, k) if callable(bias_BxHxLxS) else bias_BxHxLxS
    scores_BxHxLxS = scores_BxHxLxS if bias_BxHxLxS is None else scores_BxHxLxS + bias_BxHxLxS
    weights_BxHxLxS = jax.nn.softmax(jnp.where(visible_Bx1xLxS, scores_BxHxLxS, -1e9)).astype(v.dtype)
    module.sow("intermediates", "weights", weights_BxHxLxS)
    weights_BxHxLxS = layers.dropout(weights_BxHxLxS.swapaxes(1, 2), key_B, rate).swapaxes(1, 2)
    return jnp.einsum("bhqk,bkhd->bqhd", weights_BxHxLxS, v)


class AttentionBlock(nn.Module):
    """What self-attention and cross-attention share: norms of queries and keys, gates, and the output layer."""

    model: config.Model

    def setup(self):
        """Declares the layers, of which model.qk_norm and model.attention_gate add some."""
        make_norm = layers.norm if self.model.qk_norm else lambda model: lambda x_BxLxHxd: x_BxLxHxd
        # Over each head (Henry et al. 2020; Dehghani et al. 2023, arXiv 2302.05442).
        self.q_norm, self.k_norm = make_norm(self.model), make_norm(self.model)
        if self.model.attention_gate:
            self.gate = layers.dense(self.model, self.model.num_heads)
        self.out = layers.residual_dense(self.model)

    def split_heads(self, x_BxLxE, num_parts: int):
        """x_BxLxPxHxd: the heads of each of P parts of the last axis."""
        return x_BxLxE.reshape(*x_BxLxE.shape[:2], num_parts, self.model.num_heads, -1)

    def project_out(self, x_BxLxD, out_BxLxHxd):
        """out_BxLxD of the heads, each gated by the block's input x_BxLxD (Qiu et al. 2025, arXiv 2505.06708)."""
        if self.model.attention_gate:
            out_BxLxHxd = out_BxLxHxd * jax.nn.sigmoid(self.gate(x_BxLxD))[..., None]
        return self.out(out_BxLxHxd.reshape(x_BxLxD.shape))


class Attention(AttentionBlock):
    """Multi-head self-attention."""

    def setup(self):
        """Declares one dense layer for q, k and v together, and what all attention has."""
        super().setup()
        self.qkv = layers.dense(self.model, 3 * self.model.width)

    def __call__(self, x_BxLxD, number, context: positions.AttentionContext, key_B, attend=attend):
        """Returns out_BxLxD of layer `number`, from 1; attend: as `attend`, perhaps with keys and values of a cache."""
        q, k, v = self.project(x_BxLxD)
        if self.has_variable("projections", "layer"):
            wanted, kept = (self.get_variable("projections", name) for name in ("layer", "q_k_v"))
            kept = jax.tree.map(functools.partial(jnp.where, number == wanted), (q, k, v), kept)
            self.put_variable("projections", "q_k_v", kept)
        if self.model.positions == "rotary":
            theta = positions.select_rope_theta(self.model, number)
            scaling = positions.select_scaling(self.model, number, q.shape[-1] // 2)
            q, k = (positions.rotate(x_BxLxHxd, context.position_BxL, theta, scaling) for x_BxLxHxd in (q, k))
        bias = context.bias_BxHxLxS
        if context.relative_RxD is not None:
            # A score has three terms: all are divided by sqrt(3 d).
            relative_q, relative_k = (x[0] for x in self.project(context.relative_RxD[None])[:2])
            q, relative_q = q / 3**0.5, relative_q / 3**0.5
            bias = functools.partial(positions.compute_disentangled_bias, context.row_BxLxS, relative_q, relative_k)
        visible_Bx1xLxS = positions.select_visible(self.model, context, number)
        segments = positions.select_segments(self.model, context, number)
        return self.project_out(x_BxLxD, attend(self, q, k, v, visible_Bx1xLxS, key_B, bias, segments))

    def project(self, x_BxLxD):
        """q, k and v, each BxLxHxd."""
        if platform_kernels.find_platform() == "tpu" and not self.is_initializing():  # its compiler copies split parts
            parts_BxLxD = layers.apply_parts(self.qkv, 3, x_BxLxD)
            q, k, v = (self.split_heads(part_BxLxD, 1).squeeze(2) for part_BxLxD in parts_BxLxD)
        else:
            qkv_BxLx3xHxd = self.split_heads(self.qkv(x_BxLxD), 3)
            slices = (jax.lax.slice_in_dim(qkv_BxLx3xHxd, n, n + 1, axis=2) for n in range(3))
            # The gradient of slices, unlike that of a split, shares its pass over memory on a GPU with the bias's.
            parts = slices if platform_kernels.find_platform() == "gpu" else jnp.split(qkv_BxLx3xHxd, 3, 2)
            q, k, v = (part.squeeze(2) for part in parts)
        return self.q_norm(q), self.k_norm(k), v


class CrossAttention(AttentionBlock):
    """Attention to a source (Vaswani et al. 2017, section 3.2.3); a token that sees none gets the output's bias."""

    def setup(self):
        """Declares the layers of the queries, of the source's keys and values together, and what all attention has."""
        super().setup()
        self.query = layers.dense(self.model, self.model.width)
        self.source = layers.dense(self.model, 2 * self.model.width)

    def project_source(self, source_BxSxD):
        """k and v of the source, each BxSxHxd."""
        kv_BxSx2xHxd = self.split_heads(self.source(source_BxSxD), 2)
        return self.k_norm(kv_BxSx2xHxd[:, :, 0]), kv_BxSx2xHxd[:, :, 1]

    def __call__(self, x_BxLxD, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B):
        """Returns out_BxLxD; S keys and values come from `project_source`."""
        q_BxLxHxd = self.q_norm(self.split_heads(self.query(x_BxLxD), 1)[:, :, 0])
        out_BxLxHxd = attend(self, q_BxLxHxd, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, key_B)
        is_seeing_BxLx1x1 = visible_Bx1xLxS.any(-1).swapaxes(1, 2)[..., None]
        return self.project_out(x_BxLxD, jnp.where(is_seeing_BxLx1x1, out_BxLxHxd, 0))
