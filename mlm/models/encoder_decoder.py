"""Encoder-decoders: the state of a token depends on the tokens before it and on a source text.

An example may hold several pairs: a token sees the tokens of the source with its own segment number. Source, target
and output layer share one embedding table (Vaswani et al. 2017, section 3.4); the output layer is linear.
model.num_layers is the number of layers of the encoder and of the decoder; the recurrent decoder has one layer.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.models import decoder, layers, lm, platform_kernels, rnn, rnn_decoder, transformer

ENCODERS = {"transformer": transformer.TransformerEncoder, "gru": rnn.RecurrentEncoder}
DECODERS = {"transformer": decoder.TransformerDecoder, "gru": rnn_decoder.RecurrentDecoder}
DECODER_MODULES = {"transformer": decoder, "gru": rnn_decoder}


class EncoderDecoder(lm.LinearHead):
    """Embeddings, an encoder of the source, a decoder of the target, and the output layer."""

    model: config.Model
    vocab_size: int

    def setup(self):
        """Declares the parts; the GRU has no positions, and the encoder is always bidirectional."""
        model = self.model
        embed = lambda num_entries: nn.Embed(  # in float32, as lm.EncoderLM's
            num_entries,
            layers.embedding_dim(model),
            embedding_init=nn.initializers.truncated_normal(model.init_std or layers.embedding_dim(model) ** -0.5),
        )
        self.positions = "none" if model.cell == "gru" else model.positions
        self.token = embed(self.vocab_size)
        if self.positions == "learned":
            self.position = embed(model.max_positions)
        self.encoder = ENCODERS[model.cell](dataclasses.replace(model, directionality="bidirectional"))
        self.decoder = DECODERS[model.cell](model)
        if layers.embedding_dim(model) != model.width:
            self.embed_projection = layers.dense(model, model.width, bias_in=layers.OUTSIDE_BIAS)
            self.transform = layers.dense(model, layers.embedding_dim(model), bias_in=layers.OUTSIDE_BIAS)
        if model.bias != "none":
            self.bias = self.param("bias", nn.initializers.zeros, (self.vocab_size,))

    def embed(self, ids, positions, key_B):
        """Embeddings, scaled by the root of their width as in section 3.4, except with learned positions."""
        x = self.token(ids)
        if self.positions == "learned":
            x += self.position(positions)
        else:
            x *= x.shape[-1] ** 0.5
        if self.positions == "sinusoidal":
            x += lm.sinusoids(self.model.max_positions, x.shape[-1]).astype(x.dtype)[positions]
        x = x.astype(platform_kernels.activation_dtype(self.model))
        x = layers.dropout(x, key_B, self.model.dropout)
        return x if x.shape[-1] == self.model.width else self.embed_projection(x)

    def encode_source(self, source: types.Tokens, key_B):
        """source_BxSxD, the states of the source's tokens."""
        x_BxSxD = self.embed(source.ids_BxL, source.positions_BxL, layers.fold_in(key_B, 0))
        return self.encoder(x_BxSxD, source.segments_BxL, None, layers.fold_in(key_B, 1))

    def encode(self, text: types.Tokens, source: types.Tokens, key_B, shift_BxLxD=None):
        """Returns the target's h_BxLxD; shift_BxLxD is added to its embeddings, and key_B None means no dropout."""
        x_BxLxD = self.embed(text.ids_BxL, text.positions_BxL, layers.fold_in(key_B, 2))
        if shift_BxLxD is not None:
            x_BxLxD += shift_BxLxD.astype(x_BxLxD.dtype)
        source_BxSxD, segments_BxL = self.encode_source(source, key_B), text.segments_BxL
        visible_BxLxS = segments_BxL[:, :, None] == source.segments_BxL[:, None, :]
        return self.decoder(x_BxLxD, segments_BxL, source_BxSxD, visible_BxLxS, layers.fold_in(key_B, 3))

    def lm_head(self, h):
        """(h, table_VxD, bias_V): the logits are h @ table.T + bias."""
        if layers.embedding_dim(self.model) != self.model.width:
            h = self.transform(h)
        h = h.astype(self.model.dtype)
        bias_V = self.bias if self.model.bias != "none" else jnp.zeros(self.vocab_size)
        return h, self.token.embedding.astype(h.dtype), bias_V

    def __call__(self, text: types.Tokens, source: types.Tokens):
        """Returns logits_BxLxV without dropout; flax creates all parameters by this call."""
        return self.logits(self.encode(text, source, None))


def build(model: config.Model, vocab_size: int) -> types.Model:
    """The pure functions of the model over a vocabulary of this size."""
    module, decoder_module = EncoderDecoder(model, vocab_size), DECODER_MODULES[model.cell]

    def init(key):
        text = types.Tokens(*[jnp.zeros((1, 2), jnp.int32)] * 4)
        return module.init(key, text, text)["params"]

    apply_encode, logits = map(lm.make_method(module), ("encode", "logits"))

    def encode(params, text, source=None, *, key_B=None, shift_BxLxD=None, left_B=None):
        assert source is not None, "an encoder-decoder reads a source"
        assert left_B is None, "a decoder is always causal"
        return (apply_encode(params, text, source, key_B, shift_BxLxD),)

    def init_cache(params, text, source, max_len):
        """Each example holds one segment, which sees all of its source."""
        source_BxSxD = module.apply({"params": params}, source, None, method="encode_source")
        cache = {
            "length_1xB": jnp.zeros((1, len(text.ids_BxL)), jnp.int32),
            **decoder_module.init_cache(model, params["decoder"], source_BxSxD, source.segments_BxL > 0, max_len),
        }

        def read_token(cache, column):
            ids_B, is_token_B = column
            new_cache = jax.tree.map(
                lambda new, old: jnp.where(is_token_B.reshape(1, -1, *[1] * (new.ndim - 2)), new, old),
                decode_step(params, cache, ids_B)[1],
                cache,
            )
            return new_cache, None

        return jax.lax.scan(read_token, cache, (text.ids_BxL.T, text.segments_BxL.T > 0))[0]

    def decode_step(params, cache, ids_B):
        position_B = cache["length_1xB"][0]
        decoder_cache = {name: x for name, x in cache.items() if name != "length_1xB"}
        x_BxD = module.apply({"params": params}, ids_B, position_B, None, method="embed")
        h_BxD, decoder_cache = decoder_module.decode_step(model, params["decoder"], decoder_cache, position_B, x_BxD)
        return logits(params, h_BxD), decoder_cache | {"length_1xB": position_B[None] + 1}

    functions = {"init": init, "encode": encode, "init_cache": init_cache, "decode_step": decode_step}
    return lm.make_model(module, model, (types.Direction.LEFT,), **functions)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config that an encoder-decoder cannot use."""
    is_causal = cfg.model.directionality == types.Directionality.CAUSAL
    errors.require_field(cfg, "model.directionality", is_causal, "causal", "model.family")
    (rnn if cfg.model.cell == "gru" else transformer).check(cfg)


SPEC = types.ModelSpec(
    build,
    check,
    ("transformer", "gru"),
    reads_source=True,
    cell_fields={
        **{name: ("transformer",) for name in transformer.SPEC.conditional_fields if name != "first_norm"},
        **dict.fromkeys(("rnn_dim", "rnn_unroll", "chrono_init"), ("gru",)),
    },
)
