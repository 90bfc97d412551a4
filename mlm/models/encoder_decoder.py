"""Encoder-decoders: states of a row's tokens, which see what stands before them and a source beside the row.

Rows may hold several pairs side by side: a token sees of the source what has its own segment's number. Source, row and
output layer share one table of embeddings (Vaswani et al. 2017, section 3.4); the logits are products with it and a
bias, without a layer between. model.num_layers is the number of layers on each side; the recurrent decoder has one.
"""
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.models import cpu_kernels, decoder, layers, rnn, rnn_decoder, transformer
from mlm.models.lm import sinusoids

ENCODERS = {"transformer": transformer.Encoder, "gru": rnn.Encoder}
DECODERS = {"transformer": decoder, "gru": rnn_decoder}


def same(segments_BxL, others_BxS):
    """same_BxLxS: whether two tokens stand in segments of one number."""
    return segments_BxL[:, :, None] == others_BxS[:, None, :]


class EncoderDecoder(nn.Module):
    """Embeddings, an encoder of the source, a decoder of the row, and the output layer."""

    model: config.Model
    vocab_size: int

    def setup(self):
        model = self.model
        embed = lambda number: nn.Embed(number, model.width, dtype=cpu_kernels.stream(model),  # noqa: E731
                                        embedding_init=nn.initializers.truncated_normal(
                                            model.init_std or model.width**-0.5))
        self.positions = "none" if model.cell == "gru" else model.positions
        self.token = embed(self.vocab_size)
        if self.positions == "learned":
            self.position = embed(model.max_positions)
        self.encoder = ENCODERS[model.cell](dataclasses.replace(model, context="both"))
        self.decoder = DECODERS[model.cell].Decoder(model)
        self.bias = self.param("bias", nn.initializers.zeros, (self.vocab_size,))

    def embed(self, ids, positions, key_B):
        """Scaled to entries of about the size of sinusoids (section 3.4), but where learnt positions are added."""
        x = self.token(ids)
        if self.positions == "learned":
            x += self.position(positions)
        else:
            x *= self.model.width**0.5
        if self.positions == "sinusoidal":
            x += sinusoids(self.model.max_positions, self.model.width).astype(x.dtype)[positions]
        return layers.dropout(x, key_B, self.model.dropout)

    def read(self, source: types.Tokens, key_B):
        """source_BxSxD, the states of the source's tokens."""
        x_BxSxD = self.embed(source.ids_BxL, source.positions_BxL, layers.fold(key_B, 0))
        return self.encoder(x_BxSxD, source.segments_BxL, None, layers.fold(key_B, 1))

    def hidden(self, text: types.Tokens, source: types.Tokens, key_B, shift_BxLxD=None):
        x_BxLxD = self.embed(text.ids_BxL, text.positions_BxL, layers.fold(key_B, 2))
        if shift_BxLxD is not None:
            x_BxLxD += shift_BxLxD.astype(x_BxLxD.dtype)
        return self.decoder(x_BxLxD, text.segments_BxL, self.read(source, key_B),
                            same(text.segments_BxL, source.segments_BxL), layers.fold(key_B, 3))

    def head(self, h):
        h = h.astype(self.model.dtype)
        return h, self.token.embedding.astype(h.dtype), self.bias

    def logits(self, h):
        h, table_VxD, bias_V = self.head(h)
        return jnp.einsum("...d,vd->...v", h, table_VxD, preferred_element_type=jnp.float32) + bias_V

    def __call__(self, text: types.Tokens, source: types.Tokens):
        return self.logits(self.hidden(text, source, None))


def build(model: config.Model, vocab_size: int) -> types.Model:
    module, steps = EncoderDecoder(model, vocab_size), DECODERS[model.cell]

    def init(key):
        text = types.Tokens(*[jnp.zeros((1, 2), jnp.int32)] * 4)
        return module.init(key, text, text)["params"]

    def method(name):
        return lambda params, *arguments: module.apply({"params": params}, *arguments, method=name)

    states = method("hidden")

    def hidden(params, text, source=None, *, key_B=None, shift_BxLxD=None, left_B=None):
        assert source is not None, "an encoder-decoder reads a source beside each row"
        assert left_B is None, "a decoder's rows are all read from the left"
        return (states(params, text, source, key_B, shift_BxLxD),)

    def start(params, text, source, room):
        """A row holds one segment here, which sees all of its source."""
        source_BxSxD = module.apply({"params": params}, source, None, method="read")
        cache = {"length_1xB": jnp.zeros((1, len(text.ids_BxL)), jnp.int32),
                 **steps.start(model, params["decoder"], source_BxSxD, source.segments_BxL > 0, room)}

        def read(cache, column):
            ids_B, there_B = column
            kept = jax.tree.map(lambda new, old: jnp.where(there_B.reshape(1, -1, *[1] * (new.ndim - 2)), new, old),
                                further(params, cache, ids_B)[1], cache)
            return kept, None

        return jax.lax.scan(read, cache, (text.ids_BxL.T, text.segments_BxL.T > 0))[0]

    def further(params, cache, ids_B):
        place_B, rest = cache["length_1xB"][0], {name: x for name, x in cache.items() if name != "length_1xB"}
        x_BxD = module.apply({"params": params}, ids_B, place_B, None, method="embed")
        h_BxD, rest = steps.after(model, params["decoder"], rest, place_B, x_BxD)
        return method("logits")(params, h_BxD), rest | {"length_1xB": place_B[None] + 1}

    return types.Model(directions=("left",), width=model.width, init=init, encode=hidden, logits=method("logits"),
                       head=method("head") if cpu_kernels.takes(model, "cross_entropy") else None, init_cache=start,
                       decode_step=further)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for what no encoder-decoder can be."""
    errors.require(cfg.model.context == "left", "config.model.context", cfg.model.context,
                  "left, since config.model.family is encoder_decoder")
    (rnn if cfg.model.cell == "gru" else transformer).check(cfg)


FAMILY = types.ModelSpec(
    build, check, ("transformer", "gru"), source=True,
    of_cells={**dict.fromkeys(transformer.FAMILY.reads, ("transformer",)), "rnn_dim": ("gru",), "rnn_unroll": ("gru",),
              "chrono_init": ("gru",)})
