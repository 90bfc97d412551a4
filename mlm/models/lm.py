"""A language model around an encoder: embeddings before it, BERT's output layer behind it."""
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config, types
from mlm.models import fast
from mlm.models.layers import dense, dropout, fold, initializer, norm


def sinusoids(length: int, width: int):
    """Fixed positions: sines and cosines of geometric wavelengths (Vaswani et al. 2017, section 3.5)."""
    angle = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(0, width, 2) / width)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(length, -1)[:, :width]


class LanguageModel(nn.Module):
    """Embeddings, an encoder, and BERT's output layer tied to the token embeddings (Devlin et al. 2019)."""

    model: config.Model
    vocab_size: int
    encoder: Any            # a module class of (x_BxLxD, segments_BxL, key_B) -> h_BxLxD, which sees as model.sees says
    positions: str          # none | learned | sinusoidal

    def setup(self):
        model = self.model
        embed = lambda number: nn.Embed(number, model.width, embedding_init=initializer(model),  # noqa: E731
                                        dtype=fast.stream(model))
        self.token = embed(self.vocab_size)
        if self.positions == "learned":
            self.position = embed(model.max_positions)
        if model.segment_types:
            self.type = embed(model.segment_types)
        self.embed_norm = norm(model, "embed_norm")
        self.body = self.encoder(model, name="body")
        self.transform = dense(model, model.width, "transform")
        self.transform_norm = norm(model, "transform_norm")
        self.bias = self.param("bias", nn.initializers.zeros, (self.vocab_size,))

    def hidden(self, text: types.Text, key_B, shift_BxLxD=None):
        x_BxLxD = self.token(text.ids_BxL)
        if self.positions == "learned":
            x_BxLxD += self.position(text.positions_BxL)
        elif self.positions == "sinusoidal":
            # Embeddings are scaled up to the positions' size (Vaswani et al. 2017, section 3.4).
            sinusoids_PxD = sinusoids(self.model.max_positions, self.model.width).astype(x_BxLxD.dtype)
            x_BxLxD = x_BxLxD * self.model.width**0.5 + sinusoids_PxD[text.positions_BxL]
        if self.model.segment_types:
            x_BxLxD += self.type(text.types_BxL)
        x_BxLxD = dropout(self.embed_norm(x_BxLxD), fold(key_B, 0), self.model.dropout)
        if shift_BxLxD is not None:
            x_BxLxD += shift_BxLxD.astype(x_BxLxD.dtype)
        self.sow("intermediates", "embeddings", x_BxLxD)
        return self.body(x_BxLxD, text.segments_BxL, key_B)

    def head(self, h):
        h = self.transform_norm(nn.gelu(self.transform(h), approximate=False)).astype(self.model.dtype)
        return h, self.token.embedding.astype(h.dtype), self.bias

    def logits(self, h):
        h, table_VxD, bias_V = self.head(h)
        return jnp.einsum("...d,vd->...v", h, table_VxD, preferred_element_type=jnp.float32) + bias_V

    def __call__(self, text: types.Text):
        return self.logits(self.hidden(text, None))


def build(model: config.Model, vocab_size: int, encoder, positions: str = "none", *, attends: bool = False
          ) -> types.Model:
    """The encoder with embeddings and output layer, as the pure functions of types.Model.

    attends: whether its layers have an "attention" that keeps its weights.
    """
    module = LanguageModel(model, vocab_size, encoder, positions)

    def init(key):
        ids_1x2 = jnp.zeros((1, 2), jnp.int32)
        return module.init(key, types.Text(ids_1x2, ids_1x2, ids_1x2, ids_1x2))["params"]

    def method(name):
        return lambda params, *arguments: module.apply({"params": params}, *arguments, method=name)

    states = method("hidden")

    def hidden(params, text, source=None, *, key_B=None, shift_BxLxD=None):
        assert source is None, "these encoders read one text"
        return (states(params, text, key_B, shift_BxLxD),)

    def layers(params, text, source=None, *, key_B=None):
        assert source is None, "these encoders read one text"
        last_BxLxD, kept = module.apply({"params": params}, text, key_B, method="hidden", mutable=["intermediates"])
        kept = kept["intermediates"]
        first_BxLxD, = kept["embeddings"]
        after_KxBxLxD, = kept["body"]["stack"]["layers"]["after"]
        return jnp.concatenate([first_BxLxD[None], after_KxBxLxD[:-1], last_BxLxD[None]])

    def attention(params, text):
        _, kept = module.apply({"params": params}, text, None, method="hidden", mutable=["intermediates"])
        weights_KxBxHxLxL, = kept["intermediates"]["body"]["stack"]["layers"]["layer"]["attention"]["weights"]
        return weights_KxBxHxLxL

    return types.Model(ways=(model.sees,), width=model.width, init=init, hidden=hidden, logits=method("logits"),
                       head=method("head") if fast.takes(model, "cross_entropy") else None, layers=layers,
                       attention=attention if attends else None)


def count(params) -> dict[str, int]:
    """Parameters: all of them, and those outside the embedding tables and the output bias ("non_embedding")."""
    sizes = {path[0].key: 0 for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        sizes[path[0].key] += leaf.size
    total = sum(sizes.values())
    tables = sum(sizes.get(name, 0) for name in ("token", "position", "type", "bias"))
    return {"parameters": total, "non_embedding": total - tables}
