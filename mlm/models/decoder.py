"""The Transformer's decoder (Vaswani et al. 2017, figure 1), over whole rows and a token at a time.

Letters in array names: S tokens of the source, R those for which a cache has room, H heads of d entries.
"""
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import layers
from mlm.models.attention import Attention, CrossAttention

PARTS = ("attention", "cross", "mlp")  # of a layer, in their order


def through(model: config.Model, parts: Mapping[str, Callable], norm: Callable, x_BxLxD, key_B):
    """A layer's parts one after the other, each added to what it reads, behind a norm (pre) or with one behind it.

    norm: (name) -> the layer norm of a part, a function.
    """
    for site, name in enumerate(PARTS, 2):
        normed = norm(f"{name}_norm")
        out_BxLxD = parts[name](normed(x_BxLxD) if model.norm_placement == "pre" else x_BxLxD)
        x_BxLxD += layers.dropout(out_BxLxD, layers.fold(key_B, site), model.dropout)
        x_BxLxD = x_BxLxD if model.norm_placement == "pre" else normed(x_BxLxD)
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
        return layers.norm(self.model, "norm")(h_BxLxD) if self.model.norm_placement == "pre" else h_BxLxD


def start(model: config.Model, params, source_BxSxD, visible_BxS, room: int) -> dict:
    """The cache of rows that hold nothing yet, beside a source of which the tokens that are visible_BxS are seen.

    params: of a Decoder. Every leaf has the rows on its axis 1; each layer has its own, so that a loop writes into it
    where it lies.
    """
    empty = jnp.zeros((1, len(source_BxSxD), room, model.num_heads, model.width // model.num_heads), model.dtype)
    source = [CrossAttention(model).bind({"params": of["cross"]}).keys(source_BxSxD) for of in _each(model, params)]
    return {"own": [(empty, empty)] * model.num_layers, "visible": visible_BxS[None],
            "source": [tuple(x_BxSxHxd.astype(model.dtype)[None] for x_BxSxHxd in pair) for pair in source]}


def after(model: config.Model, params, cache: dict, place_B, x_BxD) -> tuple[jax.Array, dict]:
    """h_BxD of a further token of each row, the place_B-th there, and the cache with it."""
    rows, room = jnp.arange(len(place_B)), cache["own"][0][0].shape[2]
    before_Bx1x1xR = (jnp.arange(room) <= place_B[:, None])[:, None, None]
    visible_Bx1x1xS = cache["visible"][0][:, None, None]
    own = []

    def parts(of, kept, source):
        attention, cross = (kind(model).bind({"params": of[name]}) for name, kind in (
            ("attention", Attention), ("cross", CrossAttention)))

        def left(x_Bx1xD):
            q_Bx1xHxd, *new = attention.heads(x_Bx1xD, place_B[:, None])
            own.append(tuple(old.at[0, rows, place_B].set(x[:, 0].astype(old.dtype))
                             for old, x in zip(kept, new, strict=True)))
            return attention.take(q_Bx1xHxd, *(x[0] for x in own[-1]), before_Bx1x1xR, None)

        return {"attention": left, "mlp": layers.MLP(model).bind({"params": of["mlp"]}),
                "cross": lambda x_Bx1xD: cross.take(x_Bx1xD, *(x[0] for x in source), visible_Bx1x1xS, None)}

    x_Bx1xD = x_BxD[:, None]
    for of, *kept in zip(_each(model, params), cache["own"], cache["source"], strict=True):
        norm = lambda name, of=of: layers.norm(model, name).bind({"params": of[name]})  # noqa: E731
        x_Bx1xD = through(model, parts(of, *kept), norm, x_Bx1xD, None)
    if model.norm_placement == "pre":
        x_Bx1xD = layers.norm(model, "norm").bind({"params": params["norm"]})(x_Bx1xD)
    return x_Bx1xD[:, 0], cache | {"own": own}


def _each(model, params):
    """The parameters of each layer."""
    return [jax.tree.map(lambda leaf, k=k: leaf[k],
                         params["stack"]["layers"]["layer"]) for k in range(model.num_layers)]
