"""The Transformer (Vaswani et al. 2017) as BERT and GPT use it, layer norm before or after each sub-layer."""

import flax.linen as nn
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.models import incremental, layers, lm
from mlm.models.attention import Attention


class TransformerLayer(nn.Module):
    """A Transformer layer: attention and an MLP, each with a norm and a residual connection."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, visible_Bx1xLxL, key_B):
        """Returns x_BxLxD; key_B None: no dropout. model.norm_placement: whether norms precede the sub-layers."""
        model = self.model
        attention, mlp = Attention(model, name="attention"), layers.MLP(model, name="mlp")
        attention_norm, mlp_norm = layers.norm(model, "attention_norm"), layers.norm(model, "mlp_norm")
        drop = lambda x, site: layers.dropout(x, layers.fold_in(key_B, site), model.dropout)
        if model.norm_placement == "pre":
            x_BxLxD += drop(attention(attention_norm(x_BxLxD), visible_Bx1xLxL, layers.fold_in(key_B, 0)), 1)
            return x_BxLxD + drop(mlp(mlp_norm(x_BxLxD)), 2)
        x_BxLxD = attention_norm(x_BxLxD + drop(attention(x_BxLxD, visible_Bx1xLxL, layers.fold_in(key_B, 0)), 1))
        return mlp_norm(x_BxLxD + drop(mlp(x_BxLxD), 2))


class TransformerEncoder(nn.Module):
    """The states of tokens from a stack of Transformer layers."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, segments_BxL, left_B, key_B):
        """Returns h_BxLxD; left_B: the examples of a "mixed" model that see the left side only."""
        visible_Bx1xLxL = (segments_BxL[:, :, None] == segments_BxL[:, None, :])[:, None]
        causal_LxL = jnp.tri(segments_BxL.shape[1], dtype=bool)
        if self.model.directionality == "causal":
            visible_Bx1xLxL &= causal_LxL
        elif left_B is not None:
            visible_Bx1xLxL &= causal_LxL | ~left_B[:, None, None, None]
        h_BxLxD = layers.Stack(self.model, TransformerLayer, name="stack")(x_BxLxD, visible_Bx1xLxL, key_B)
        return layers.norm(self.model, "norm")(h_BxLxD) if self.model.norm_placement == "pre" else h_BxLxD


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config that a Transformer cannot use."""
    model = cfg.model
    errors.require_at_least(1, "config.model.num_heads", model.num_heads)
    errors.require(
        model.width % model.num_heads == 0,
        "config.model.num_heads",
        model.num_heads,
        f"a divisor of config.model.width = {model.width}",
    )
    if model.positions == "rotary":
        errors.require(
            model.width // model.num_heads % 2 == 0,
            "config.model.num_heads",
            model.num_heads,
            "heads of an even width, since config.model.positions is rotary",
        )
    errors.require(
        cfg.pack.seq_len <= model.max_positions,
        "config.pack.seq_len",
        cfg.pack.seq_len,
        f"at most config.model.max_positions = {model.max_positions}",
    )


def build(model: config.Model, vocab_size: int) -> types.Model:
    """The pure functions of the model over a vocabulary of this size."""
    return lm.build(
        model, vocab_size, TransformerEncoder, incremental.ATTENTION_DECODER, model.positions, has_attention=True
    )


SPEC = types.ModelSpec(
    build,
    check,
    conditional_fields=(
        "mlp_dim",
        "num_heads",
        "norm_placement",
        "activation",
        "positions",
        "max_positions",
        "attention_dropout",
    ),
)
