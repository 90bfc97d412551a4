"""The residual layer that all encoders share: a sublayer between norms and a residual connection."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from mlm.base import config
from mlm.models import fused_norm, layers


class LayerScale(nn.Module):
    """A learned factor of each entry of a sublayer's output (Touvron et al. 2021, arXiv 2103.17239, equation 4)."""

    initial: float

    @nn.compact
    def __call__(self, x_BxLxD):
        """Returns an array of the shape of x_BxLxD."""
        scale_D = self.param("scale", nn.initializers.constant(self.initial), x_BxLxD.shape[-1:])
        return x_BxLxD * scale_D.astype(x_BxLxD.dtype)


class ResidualLayer(nn.Module):
    """A layer whose sublayers stand between norms and residual connections."""

    model: config.Model

    def add(self, name: str, sublayer: Callable, x_BxLxD, key_B, *, skip_norm=False):
        """x_BxLxD plus the output of a sublayer, after dropout; model.norm_placement says where the norms are.

        name: begins the norms' names; skip_norm: whether the sublayer reads x_BxLxD itself; may be traced.
        """
        model, prefix = self.model, f"{name}_" if name else ""
        sublayer_norm = layers.norm(model, f"{prefix}norm")
        is_fused = fused_norm.can_use_fused(model, x_BxLxD)
        params = sublayer_norm.variables["params"] if is_fused else None
        y_BxLxD = x_BxLxD
        if model.norm_placement != "post":
            y_BxLxD = fused_norm.normalize(model, params, x_BxLxD) if is_fused else sublayer_norm(x_BxLxD)
            y_BxLxD = y_BxLxD if skip_norm is False else jnp.where(skip_norm, x_BxLxD, y_BxLxD)
        y_BxLxD = sublayer(y_BxLxD)
        if model.norm_placement == "sandwich":
            y_BxLxD = layers.norm(model, f"{prefix}post_norm")(y_BxLxD)
        if model.layer_scale:
            y_BxLxD = LayerScale(model.layer_scale, name=f"{prefix}layer_scale")(y_BxLxD)
        if is_fused and model.norm_placement == "post":
            return fused_norm.normalize(model, params, x_BxLxD, y_BxLxD, key_B)
        x_BxLxD = x_BxLxD + layers.dropout(y_BxLxD, key_B, model.dropout)
        return sublayer_norm(x_BxLxD) if model.norm_placement == "post" else x_BxLxD

    def skips_norm(self, number):
        """Whether the first sublayer of layer `number` reads its input without a norm; False if no layer does."""
        return False if self.model.first_norm else number == 1
