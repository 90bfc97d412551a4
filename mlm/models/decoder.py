"""The Transformer's decoder (Vaswani et al. 2017, figure 1), for whole sequences and for one token at a time.

Letters in array names: S tokens of the source, R slots of the cache, H heads of d entries.
"""

from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import layers
from mlm.models.attention import Attention, CrossAttention

SUBLAYERS = ("attention", "cross", "mlp")  # of a layer, in order


def apply_sublayers(model: config.Model, sublayers: Mapping[str, Callable], get_norm: Callable, x_BxLxD, key_B):
    """Applies the sublayers of a layer in order, with residual connections and layer norms.

    Args:
        model: the config.
        sublayers: (x_BxLxD) -> out_BxLxD, by the names of SUBLAYERS.
        get_norm: (name) -> the layer norm of that name, a function.
        x_BxLxD: the input.
        key_B: random keys of the dropout, or None.
    """
    for site, name in enumerate(SUBLAYERS, 2):
        norm = get_norm(f"{name}_norm")
        out_BxLxD = sublayers[name](norm(x_BxLxD) if model.norm_placement == "pre" else x_BxLxD)
        x_BxLxD += layers.dropout(out_BxLxD, layers.fold_in(key_B, site), model.dropout)
        x_BxLxD = x_BxLxD if model.norm_placement == "pre" else norm(x_BxLxD)
    return x_BxLxD


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, and an MLP."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, shared, key_B):
        """Returns x_BxLxD; shared: (visible_Bx1xLxL of the target, source_BxSxD, visible_Bx1xLxS of the source)."""
        visible_Bx1xLxL, source_BxSxD, visible_Bx1xLxS = shared
        attention, cross = Attention(self.model, name="attention"), CrossAttention(self.model, name="cross")
        sublayers = {
            "attention": lambda x: attention(x, visible_Bx1xLxL, layers.fold_in(key_B, 0)),
            "cross": lambda x: cross(x, source_BxSxD, visible_Bx1xLxS, layers.fold_in(key_B, 1)),
            "mlp": layers.MLP(self.model, name="mlp"),
        }
        return apply_sublayers(self.model, sublayers, lambda name: layers.norm(self.model, name), x_BxLxD, key_B)


class TransformerDecoder(nn.Module):
    """The states h_BxLxD of tokens; visible_BxLxS: the tokens of the source that each one sees."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, segments_BxL, source_BxSxD, visible_BxLxS, key_B):
        """Returns h_BxLxD; a token sees its own segment up to itself. Post-norm layers get no final norm."""
        causal_LxL = jnp.tri(segments_BxL.shape[1], dtype=bool)
        visible_BxLxL = (segments_BxL[:, :, None] == segments_BxL[:, None, :]) & causal_LxL
        shared = visible_BxLxL[:, None], source_BxSxD, visible_BxLxS[:, None]
        h_BxLxD = layers.Stack(self.model, DecoderLayer, name="stack")(x_BxLxD, shared, key_B)
        return layers.norm(self.model, "norm")(h_BxLxD) if self.model.norm_placement == "pre" else h_BxLxD


def init_cache(model: config.Model, params, source_BxSxD, visible_BxS, max_len: int) -> dict:
    """The cache of empty sequences of at most max_len tokens, which see the tokens visible_BxS of the source.

    params are a TransformerDecoder's. Every leaf has the batch on axis 1; each layer has leaves of its own, so that a
    loop updates them in place.
    """
    empty = jnp.zeros((1, len(source_BxSxD), max_len, model.num_heads, model.width // model.num_heads), model.dtype)
    source = [
        CrossAttention(model).bind({"params": layer_params["cross"]}).project_source(source_BxSxD)
        for layer_params in _split_layers(model, params)
    ]
    return {
        "self": [(empty, empty)] * model.num_layers,
        "visible": visible_BxS[None],
        "source": [tuple(x_BxSxHxd.astype(model.dtype)[None] for x_BxSxHxd in pair) for pair in source],
    }


def decode_step(model: config.Model, params, cache: dict, position_B, x_BxD) -> tuple[jax.Array, dict]:
    """(h_BxD of the next token of each sequence, at position_B, and the updated cache)."""
    batch_B, max_len = jnp.arange(len(position_B)), cache["self"][0][0].shape[2]
    visible_Bx1x1xR = (jnp.arange(max_len) <= position_B[:, None])[:, None, None]
    visible_Bx1x1xS = cache["visible"][0][:, None, None]
    new_cache = []

    def build_sublayers(layer_params, layer_cache, source):
        self_attention, cross_attention = (
            module(model).bind({"params": layer_params[name]})
            for name, module in (("attention", Attention), ("cross", CrossAttention))
        )

        def attend(x_Bx1xD):
            q_Bx1xHxd, *new = self_attention.project_heads(x_Bx1xD, position_B[:, None])
            new_cache.append(
                tuple(
                    old.at[0, batch_B, position_B].set(x[:, 0].astype(old.dtype))
                    for old, x in zip(layer_cache, new, strict=True)
                )
            )
            keys, values = (x[0] for x in new_cache[-1])
            return self_attention.attend(q_Bx1xHxd, keys, values, visible_Bx1x1xR, None)

        return {
            "attention": attend,
            "mlp": layers.MLP(model).bind({"params": layer_params["mlp"]}),
            "cross": lambda x_Bx1xD: cross_attention.attend(x_Bx1xD, source[0][0], source[1][0], visible_Bx1x1xS, None),
        }

    x_Bx1xD = x_BxD[:, None]
    for layer_params, *cached in zip(_split_layers(model, params), cache["self"], cache["source"], strict=True):
        get_norm = lambda name, of=layer_params: layers.norm(model, name).bind({"params": of[name]})
        x_Bx1xD = apply_sublayers(model, build_sublayers(layer_params, *cached), get_norm, x_Bx1xD, None)
    if model.norm_placement == "pre":
        x_Bx1xD = layers.norm(model, "norm").bind({"params": params["norm"]})(x_Bx1xD)
    return x_Bx1xD[:, 0], cache | {"self": new_cache}


def _split_layers(model, params):
    """The parameters of each layer."""
    return [
        jax.tree.map(lambda leaf, k=k: leaf[k], params["stack"]["layers"]["layer"]) for k in range(model.num_layers)
    ]
