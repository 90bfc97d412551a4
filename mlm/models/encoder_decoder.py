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
from mlm.models import decoder, layers, lm, rnn, rnn_decoder, transformer

ENCODERS = {"transformer": transformer.TransformerEncoder, "gru": rnn.RecurrentEncoder}
DECODERS = {"transformer": decoder.TransformerDecoder, "gru": rnn_decoder.RecurrentDecoder}
DECODER_MODULES = {"transformer": decoder, "gru": rnn_decoder}


class EncoderDecoder(lm.TokenLM):
    """Embeddings, an encoder of the source, a decoder of the target, and the output layer."""

    def setup(self):
        """Declares the parts; the encoder is always bidirectional."""
        model = self.model
        embedding_init = nn.initializers.truncated_normal(model.init_std or layers.embedding_dim(model) ** -0.5)
        is_scaled = self.positions != "learned"  # with others as in section 3.4
        self.declare_tokens(embedding_init, is_scaled=is_scaled, has_bias=model.bias != "none")
        self.encoder = ENCODERS[model.cell](dataclasses.replace(model, directionality="bidirectional"))
        self.decoder = DECODERS[model.cell](model)

    def encode_source(self, source: types.Tokens, key_B):
        """source_BxSxD, the states of the source's tokens."""
        x_BxSxD = self.embed_tokens(source, layers.fold_in(key_B, 0))
        return self.encoder(x_BxSxD, source.segments_BxL, None, layers.fold_in(key_B, 1))

    def encode(self, text: types.Tokens, source: types.Tokens, key_B, shift_BxLxD=None):
        """Returns the target's h_BxLxD; shift_BxLxD is added to its embeddings, and key_B None means no dropout."""
        x_BxLxD = self.embed_tokens(text, layers.fold_in(key_B, 2))
        if shift_BxLxD is not None:
            x_BxLxD += shift_BxLxD.astype(x_BxLxD.dtype)
        source_BxSxD, segments_BxL = self.encode_source(source, key_B), text.segments_BxL
        visible_BxLxS = segments_BxL[:, :, None] == source.segments_BxL[:, None, :]
        return self.decoder(x_BxLxD, segments_BxL, source_BxSxD, visible_BxLxS, layers.fold_in(key_B, 3))

    def __call__(self, text: types.Tokens, source: types.Tokens):
        """Returns logits_BxLxV without dropout; flax creates all parameters by this call."""
        return self.logits(self.encode(text, source, None))


def build(model: config.Model, vocab_size: int) -> types.Model:
    """The pure functions of the model over a vocabulary of this size."""
    model = dataclasses.replace(model, directionality="causal", lm_head="linear", embed_norm=False, type_vocab_size=0)
    module = EncoderDecoder(model, vocab_size, "none" if model.cell == "gru" else model.positions)
    decoder_module = DECODER_MODULES[model.cell]

    def init(key):
        text = types.Tokens(*[jnp.zeros((1, 2), jnp.int32)] * 4)
        return module.init(key, text, text)["params"]

    apply_encode, logits, embed_tokens = map(lm.make_method(module), ("encode", "logits", "embed_tokens"))

    def encode(params, text, source=None, *, key_B=None, shift_BxLxD=None, left_B=None):
        assert source is not None, "an encoder-decoder reads a source"
        assert left_B is None, "a decoder is always causal"
        return (apply_encode(params, text, source, key_B, shift_BxLxD),)

    def init_cache(params, text, source, max_len):
        """Each example holds one segment, which sees all of its source."""
        source_BxSxD = module.apply({"params": params}, source, None, method="encode_source")
        states = decoder_module.init_cache(model, params["decoder"], source_BxSxD, source.segments_BxL > 0, max_len)
        cache = {"length_1xB": jnp.zeros((1, len(text.ids_BxL)), jnp.int32), "states": states}

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
        x_BxD = embed_tokens(params, types.Tokens(ids_B, None, position_B, None), None)
        h_BxD, states = decoder_module.decode_step(model, params["decoder"], cache["states"], position_B, x_BxD)
        return logits(params, h_BxD), {"length_1xB": position_B[None] + 1, "states": states}

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
