"""The Transformer's decoder (Vaswani et al. 2017, figure 1), over whole rows and a token at a time.

Letters in array names: S tokens of the source, R those for which a cache has room, K layers, H heads of d entries.
"""
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import layers
from mlm.models.attention import Attention, CrossAttention


def through(model: config.Model, parts: Mapping[str, Callable], norm: Callable, x_BxLxD, key_B):
    """A layer's parts one after the other, each added to what it reads, behind a norm (pre) or with one behind it.

    norm: (name) -> the layer norm of a part, a function.
    """
    for site, (name, part) in enumerate(parts.items(), len(parts)):
        normed = norm(f"{name}_norm")
        out_BxLxD = part(normed(x_BxLxD) if model.norm == "pre" else x_BxLxD)
        x_BxLxD += layers.dropout(out_BxLxD, layers.fold(key_B, site), model.dropout)
        x_BxLxD = x_BxLxD if model.norm == "pre" else normed(x_BxLxD)
    return x_BxLxD


class Layer(nn.Module):
    """Attention to what stands before a token in its row, then to the source, then the MLP."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, shared, key_B):
        visible_Bx1xLxL, source_BxSxD, visible_Bx1xLxS = shared
        attention, cross = Attention(self.model, name="attention"), CrossAttention(self.model, name="cross")
        parts = {"attention": lambda x: attention(x, visible_Bx1xLxL, layers.fold(key_B, 0)),
                 "cross": lambda x: cross(x, source_BxSxD, visible_Bx1xLxS, layers.fold(key_B, 1)),
                 "mlp": layers.MLP(self.model, name="mlp")}
        return through(self.model, parts, lambda name: layers.norm(self.model, name), x_BxLxD, key_B)


class Decoder(nn.Module):
    """h_BxLxD of a row's tokens; visible_BxLxS: of the source's, which each sees."""

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, segments_BxL, source_BxSxD, visible_BxLxS, key_B):
        before_LxL = jnp.tri(segments_BxL.shape[1], dtype=bool)
        visible_BxLxL = (segments_BxL[:, :, None] == segments_BxL[:, None, :]) & before_LxL
        shared = visible_BxLxL[:, None], source_BxSxD, visible_BxLxS[:, None]
        h_BxLxD = layers.Stack(self.model, Layer, name="stack")(x_BxLxD, shared, key_B)
        return layers.norm(self.model, "norm")(h_BxLxD) if self.model.norm == "pre" else h_BxLxD


def start(model: config.Model, params, source_BxSxD, visible_BxS, room: int) -> dict:
    """The cache of rows that hold nothing yet, beside a source of which the tokens that are visible_BxS are seen.

    params: of a Decoder. Every leaf has the rows on its axis 1.
    """
    of_K = params["stack"]["layers"]["layer"]
    cross = CrossAttention(model)
    source_k, source_v = jax.vmap(lambda of: cross.apply({"params": of}, source_BxSxD, method="keys"))(of_K["cross"])
    shape = (model.layers, len(source_BxSxD), room, model.heads, model.width // model.heads)
    empty = jnp.zeros(shape, model.dtype)
    return {"k_KxBxRxHxd": empty, "v_KxBxRxHxd": empty, "source_k_KxBxSxHxd": source_k.astype(model.dtype),
            "source_v_KxBxSxHxd": source_v.astype(model.dtype), "visible_1xBxS": visible_BxS[None]}


def after(model: config.Model, params, cache: dict, place_B, x_BxD) -> tuple[jax.Array, dict]:
    """h_BxD of a further token of each row, the place_B-th there, and the cache with it."""
    rows, room = jnp.arange(len(place_B)), cache["k_KxBxRxHxd"].shape[2]
    before_Bx1x1xR = (jnp.arange(room) <= place_B[:, None])[:, None, None]
    visible_Bx1x1xS = cache["visible_1xBxS"][0][:, None, None]

    def layer(x_Bx1xD, each):
        of, k_BxRxHxd, v_BxRxHxd, source_k, source_v = each
        kept = {}

        def attention(x_Bx1xD):
            own = Attention(model).bind({"params": of["attention"]})
            q, k, v = own.heads(x_Bx1xD, place_B[:, None])
            kept["k"] = k_BxRxHxd.at[rows, place_B].set(k[:, 0].astype(model.dtype))
            kept["v"] = v_BxRxHxd.at[rows, place_B].set(v[:, 0].astype(model.dtype))
            return own.take(q, kept["k"], kept["v"], before_Bx1x1xR, None)

        parts = {"attention": attention,
                 "cross": lambda x: CrossAttention(model).bind({"params": of["cross"]}).take(
                     x, source_k, source_v, visible_Bx1x1xS, None),
                 "mlp": layers.MLP(model).bind({"params": of["mlp"]})}
        x_Bx1xD = through(model, parts, lambda name: layers.norm(model, name).bind({"params": of[name]}), x_Bx1xD, None)
        return x_Bx1xD, (kept["k"], kept["v"])

    each = (params["stack"]["layers"]["layer"], *(cache[name] for name in (
        "k_KxBxRxHxd", "v_KxBxRxHxd", "source_k_KxBxSxHxd", "source_v_KxBxSxHxd")))
    h_Bx1xD, (k, v) = jax.lax.scan(layer, x_BxD[:, None], each, unroll=model.unroll or model.layers)
    if model.norm == "pre":
        h_Bx1xD = layers.norm(model, "norm").bind({"params": params["norm"]})(h_Bx1xD)
    return h_Bx1xD[:, 0], cache | {"k_KxBxRxHxd": k, "v_KxBxRxHxd": v}
