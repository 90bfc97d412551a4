"""A language model around an encoder: embeddings before it, an output layer tied to them behind it."""
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config, types
from mlm.models import cpu_kernels, incremental
from mlm.models.layers import dense, dropout, fold, initializer, norm

WAYS = {"both": ("both",), "left": ("left",), "apart": ("left", "right"), "row": ("row",)}  # by config.model.context


def sinusoids(length: int, width: int):
    """Fixed positions: sines and cosines of geometric wavelengths (Vaswani et al. 2017, section 3.5)."""
    angle = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(0, width, 2) / width)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(length, -1)[:, :width]


class LanguageModel(nn.Module):
    """Embeddings, an encoder, and an output layer tied to them: BERT's (Devlin et al. 2019), or the product alone.

    With model.context = "apart" two encoders, of which each sees one side through all its layers, share embeddings and
    output layer (ELMo, Peters et al. 2018, section 3.1): the one of the right reads the row turned round.
    """

    model: config.Model
    vocab_size: int
    encoder: Any            # a module class of (x_BxLxD, segments_BxL, left_B, key_B) -> h_BxLxD, which sees as
                            # model.context says: "both", "left" or "row"
    positions: str          # none | learned | sinusoidal

    def setup(self):
        model = self.model
        embed = lambda number: nn.Embed(number, model.width, embedding_init=initializer(model),  # noqa: E731
                                        dtype=cpu_kernels.stream(model))
        self.token = embed(self.vocab_size)
        if self.positions == "learned":
            self.position = embed(model.max_positions)
        if model.type_vocab_size:
            self.type = embed(model.type_vocab_size)
        if model.embed_norm:
            self.embed_norm = norm(model, "embed_norm")
        if model.context == "apart":
            one = dataclasses.replace(model, context="left")
            self.left, self.right = (self.encoder(one, name=side) for side in bodies(model))
        else:
            self.body = self.encoder(model, name="body")
        if model.lm_head == "bert":
            self.transform = dense(model, model.width, "transform")
            self.transform_norm = norm(model, "transform_norm")
            self.bias = self.param("bias", nn.initializers.zeros, (self.vocab_size,))

    def embed(self, text: types.Tokens, key_B=None):
        """x_BxLxD, what the encoder is given."""
        x_BxLxD = self.token(text.ids_BxL)
        if self.positions == "learned":
            x_BxLxD += self.position(text.positions_BxL)
        elif self.positions == "sinusoidal":
            # Embeddings are scaled up to the positions' size (Vaswani et al. 2017, section 3.4).
            sinusoids_PxD = sinusoids(self.model.max_positions, self.model.width).astype(x_BxLxD.dtype)
            x_BxLxD = x_BxLxD * self.model.width**0.5 + sinusoids_PxD[text.positions_BxL]
        if self.model.type_vocab_size:
            x_BxLxD += self.type(text.types_BxL)
        if self.model.embed_norm:
            x_BxLxD = self.embed_norm(x_BxLxD)
        return dropout(x_BxLxD, fold(key_B, 0), self.model.dropout)

    def hidden(self, text: types.Tokens, key_B, shift_BxLxD=None, left_B=None):
        """A tuple of h_BxLxD, one for each of WAYS[model.context]."""
        x_BxLxD = self.embed(text, key_B)
        if shift_BxLxD is not None:
            x_BxLxD += shift_BxLxD.astype(x_BxLxD.dtype)
        self.sow("intermediates", "embeddings", x_BxLxD)
        if self.model.context != "apart":
            return (self.body(x_BxLxD, text.segments_BxL, left_B, key_B),)
        right_BxLxD = self.right(x_BxLxD[:, ::-1], text.segments_BxL[:, ::-1], None, fold(key_B, self.model.num_layers +
                                                                                          1))
        return self.left(x_BxLxD, text.segments_BxL, None, key_B), right_BxLxD[:, ::-1]

    def head(self, h):
        bias_V = jnp.zeros(self.vocab_size)
        if self.model.lm_head == "bert":
            h, bias_V = self.transform_norm(nn.gelu(self.transform(h), approximate=False)), self.bias
        h = h.astype(self.model.dtype)
        return h, self.token.embedding.astype(h.dtype), bias_V

    def logits(self, h):
        h, table_VxD, bias_V = self.head(h)
        return jnp.einsum("...d,vd->...v", h, table_VxD, preferred_element_type=jnp.float32) + bias_V

    def __call__(self, text: types.Tokens):
        return self.logits(self.hidden(text, None)[0])


def bodies(model: config.Model) -> tuple[str, ...]:
    """The names of the encoders' parameters, one for each way."""
    return WAYS["apart"] if model.context == "apart" else ("body",)


def build(model: config.Model, vocab_size: int, encoder, decoder: incremental.Decoder | None = None,
          positions: str = "none", *, attends: bool = False) -> types.Model:
    """The encoder with embeddings and output layer, as the pure functions of types.Model.

    decoder: how the encoder reads one token after the other; None: it does not. attends: whether its layers have an
    "attention" that keeps its weights.
    """
    module = LanguageModel(model, vocab_size, encoder, positions)

    def init(key):
        ids_1x2 = jnp.zeros((1, 2), jnp.int32)
        return module.init(key, types.Tokens(ids_1x2, ids_1x2, ids_1x2, ids_1x2))["params"]

    def method(name):
        return lambda params, *arguments: module.apply({"params": params}, *arguments, method=name)

    states, logits = method("hidden"), method("logits")

    def hidden(params, text, source=None, *, key_B=None, shift_BxLxD=None, left_B=None):
        assert source is None, "these encoders read one text"
        assert left_B is None or model.context == "row", "only rows of a model that sees by row say how they are seen"
        return states(params, text, key_B, shift_BxLxD, left_B)

    def kept(params, text, key_B):
        """The last states by way, what was kept, and of each encoder the stack's."""
        last, found = module.apply({"params": params}, text, key_B, method="hidden", mutable=["intermediates"])
        found = found["intermediates"]
        return last, found, [found[name]["stack"]["layers"] for name in bodies(model)]

    def layers(params, text, source=None, *, key_B=None):
        assert source is None, "these encoders read one text"
        last, found, stacks = kept(params, text, key_B)
        first_BxLxD, = found["embeddings"]
        each = []
        for way, last_BxLxD, stack in zip(WAYS[model.context], last, stacks, strict=True):
            after_KxBxLxD, = stack["after"]
            after_KxBxLxD = after_KxBxLxD[:, :, ::-1] if way == "right" else after_KxBxLxD
            each.append(jnp.concatenate([first_BxLxD[None], after_KxBxLxD[:-1], last_BxLxD[None]]))
        return jnp.concatenate(each, -1)

    def attention(params, text):
        _, _, stacks = kept(params, text, None)
        each = []
        for way, stack in zip(WAYS[model.context], stacks, strict=True):
            weights_KxBxHxLxL, = stack["layer"]["attention"]["weights"]
            each.append(weights_KxBxHxLxL[..., ::-1, ::-1] if way == "right" else weights_KxBxHxLxL)
        return jnp.concatenate(each, 2)

    def start(params, text, source, room):
        assert source is None, "these encoders read one text"
        length_B = (text.segments_BxL > 0).sum(-1)
        x_BxLxD = module.apply({"params": params}, text, method="embed")
        return {"place": length_B[None],
                "before": decoder.read(model, params[bodies(model)[0]], x_BxLxD, length_B, room)}

    def following(params, cache, ids_B):
        place_B, one_Bx1 = cache["place"][0], jnp.ones_like(ids_B)[:, None]
        text = types.Tokens(ids_B[:, None], one_Bx1, place_B[:, None], 0 * one_Bx1)
        x_BxD = module.apply({"params": params}, text, method="embed")[:, 0]
        h_BxD, before = decoder.step(model, params[bodies(model)[0]], x_BxD, place_B, cache["before"])
        return logits(params, h_BxD), {"place": cache["place"] + 1, "before": before}

    left = decoder is not None and model.context != "both"
    return types.Model(directions=WAYS[model.context], width=model.width, init=init, encode=hidden, logits=logits,
                       head=method("head") if cpu_kernels.takes(model, "cross_entropy") else None, encode_layers=layers,
                       attention=attention if attends else None, init_cache=start if left else None,
                       decode_step=following if left else None)


def count(params) -> dict[str, int]:
    """Parameters: all of them, and those outside the embedding tables and the output bias ("non_embedding")."""
    sizes = {path[0].key: 0 for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        sizes[path[0].key] += leaf.size
    total = sum(sizes.values())
    tables = sum(sizes.get(name, 0) for name in ("token", "position", "type", "bias"))
    return {"parameters": total, "non_embedding": total - tables}
