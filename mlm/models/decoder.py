"""The Transformer's decoder (Vaswani et al. 2017, figure 1), for whole sequences and for one token at a time.

Letters in array names: S tokens of the source, R slots of the cache, H heads of d entries.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import attention, incremental, layers, positions, stack


class DecoderLayer(stack.ResidualLayer):
    """Causal self-attention, attention to the source, and an MLP."""

    @nn.compact
    def __call__(self, x_BxLxD, number, shared, key_B, attend=attention.attend, source=None):
        """Returns x_BxLxD; shared: (context, source_BxSxD, visible_Bx1xLxS); source: its keys and values, if known."""
        context, source_BxSxD, visible_Bx1xLxS = shared
        self_attention = attention.Attention(self.model, name="attention")
        cross = attention.CrossAttention(self.model, name="cross")
        keys = [layers.fold_in(key_B, site) for site in range(5)]

        def attend_to_source(x_BxLxD):
            k_BxSxHxd, v_BxSxHxd = source or cross.project_source(source_BxSxD)
            return cross(x_BxLxD, k_BxSxHxd, v_BxSxHxd, visible_Bx1xLxS, keys[1])

        attend_to_self = lambda x_BxLxD: self_attention(x_BxLxD, number, context, keys[0], attend)
        x_BxLxD = self.add("attention", attend_to_self, x_BxLxD, keys[2])
        x_BxLxD = self.add("cross", attend_to_source, x_BxLxD, keys[3])
        return self.add("mlp", layers.MLP(self.model, name="mlp"), x_BxLxD, keys[4])


def prepare(module: nn.Module, x_BxLxD, segments_BxL, source_BxSxD, visible_BxLxS):
    """(x_BxLxD, what the layers share): a token sees its own segment up to itself, and visible_BxLxS of the source."""
    return x_BxLxD, (positions.declare_context(module, segments_BxL), source_BxSxD, visible_BxLxS[:, None])


TransformerDecoder = functools.partial(stack.NormalizedStack, layer=DecoderLayer, prepare=prepare)


def init_cache(model: config.Model, params, source_BxSxD, visible_BxS, max_len: int) -> dict:
    """The cache of empty sequences of at most max_len tokens (types.InitCacheFn); params: a TransformerDecoder's."""
    empty = jnp.zeros((1, len(source_BxSxD), max_len, model.num_heads, model.width // model.num_heads), model.dtype)
    stacked, cross = params["stack"]["layers"]["layer"]["cross"], attention.CrossAttention(model)
    source = []
    for layer in range(model.num_layers):
        index = layer % layers.count_unique_layers(model)
        bound = cross.bind({"params": jax.tree.map(lambda leaf, index=index: leaf[index], stacked)})
        source.append(tuple(x_BxSxHxd.astype(model.dtype)[None] for x_BxSxHxd in bound.project_source(source_BxSxD)))
    return {"self": [(empty, empty)] * model.num_layers, "visible": visible_BxS[None], "source": source}


def decode_step(model: config.Model, params, cache: dict, position_B, x_BxD) -> tuple[jax.Array, dict]:
    """(h_BxD of the next token of each sequence, at position_B, and the updated cache)."""
    batch_B, max_len = jnp.arange(len(position_B)), cache["self"][0][0].shape[2]
    visible_Bx1x1xR = (jnp.arange(max_len) <= position_B[:, None])[:, None, None]
    context = positions.make_context(model, visible_Bx1x1xR, positions.read_table(model, params), position_B[:, None])
    shared = context, None, cache["visible"][0][:, None, None]
    new_cache = []

    def attend(module, q_Bx1xHxd, k_Bx1xHxd, v_Bx1xHxd, *masks):
        pairs = zip(cache["self"][len(new_cache)], (k_Bx1xHxd, v_Bx1xHxd), strict=True)
        new_cache.append(tuple(old.at[0, batch_B, position_B].set(x[:, 0].astype(old.dtype)) for old, x in pairs))
        return attention.attend(module, q_Bx1xHxd, *(x[0] for x in new_cache[-1]), *masks)

    get_arguments = lambda number, _: (shared, None, attend, tuple(x[0] for x in cache["source"][number - 1]))
    h_Bx1xD = incremental.apply_layers(DecoderLayer, model, params, x_BxD[:, None], get_arguments)
    return h_Bx1xD[:, 0], cache | {"self": new_cache}
