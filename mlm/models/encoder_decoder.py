"""Encoder-decoders: the state of a token depends on the tokens before it and on a source text.

An example may hold several pairs: a token sees the tokens of the source with its own segment number. Source, target
and output layer share one embedding table (Vaswani et al. 2017, section 3.4); the output layer is linear.
model.num_layers is the number of layers of the encoder and of the decoder; the recurrent decoder has one layer.

Letters in array names: S tokens of the source, R slots of the cache, H heads of d entries, or in the recurrent decoder
H units of the state and of the alignment, G = 3 * H gates.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.models import attention, incremental, layers, lm, platform_kernels, positions, rnn, stack, transformer
from mlm.models.recurrence import CELLS, build_bias_initializer, build_kernel_initializer, gru_step, matmul_float32

ENCODERS = {"transformer": transformer.TransformerEncoder, "gru": rnn.RecurrentEncoder}


class DecoderSpec(NamedTuple):
    """A decoder for whole sequences, and for one token at a time."""

    module: Callable[..., nn.Module]
    init_cache: Callable[..., Any]  # as types.InitCacheFn, of the module's parameters
    decode_step: Callable[..., tuple[jax.Array, Any]]  # as types.DecodeStepFn, likewise


class EncoderDecoder(lm.TokenLM):
    """Embeddings, an encoder of the source, a decoder of the target, and the output layer."""

    def setup(self):
        """Declares the parts; the encoder is always bidirectional."""
        model = self.model
        embedding_init = nn.initializers.truncated_normal(model.init_std or layers.embedding_dim(model) ** -0.5)
        is_scaled = self.positions != "learned"  # with others as in section 3.4
        self.declare_tokens(embedding_init, is_scaled=is_scaled, has_bias=model.bias != "none")
        self.encoder = ENCODERS[model.cell](dataclasses.replace(model, directionality="bidirectional"))
        self.decoder = DECODERS[model.cell].module(model)

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
    decoder = DECODERS[model.cell]

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
        states = decoder.init_cache(model, params["decoder"], source_BxSxD, source.segments_BxL > 0, max_len)
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
        h_BxD, states = decoder.decode_step(model, params["decoder"], cache["states"], position_B, x_BxD)
        return logits(params, h_BxD), {"length_1xB": position_B[None] + 1, "states": states}

    functions = {"init": init, "encode": encode, "init_cache": init_cache, "decode_step": decode_step}
    return lm.make_model(module, model, (types.Direction.LEFT,), **functions)


class DecoderLayer(stack.ResidualLayer):
    """Causal self-attention, attention to the source, and an MLP (Vaswani et al. 2017, figure 1)."""

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


def init_attention_cache(model: config.Model, params, source_BxSxD, visible_BxS, max_len: int) -> dict:
    """The cache of empty sequences of at most max_len tokens (types.InitCacheFn); params: a TransformerDecoder's."""
    empty = jnp.zeros((1, len(source_BxSxD), max_len, model.num_heads, model.width // model.num_heads), model.dtype)
    stacked, cross = params["stack"]["layers"]["layer"]["cross"], attention.CrossAttention(model)
    source = []
    for layer in range(model.num_layers):
        index = layer % layers.count_unique_layers(model)
        bound = cross.bind({"params": jax.tree.map(lambda leaf, index=index: leaf[index], stacked)})
        source.append(tuple(x_BxSxHxd.astype(model.dtype)[None] for x_BxSxHxd in bound.project_source(source_BxSxD)))
    return {"self": [(empty, empty)] * model.num_layers, "visible": visible_BxS[None], "source": source}


def decode_by_attention(model: config.Model, params, cache: dict, position_B, x_BxD) -> tuple[jax.Array, dict]:
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


class RecurrentDecoder(nn.Module):
    """One GRU layer, whose input is a token's embedding and the source context that the previous state attends to.

    It is that of Bahdanau et al. 2015 (arXiv 1409.0473, appendix A), but the reset gate is applied after the product,
    as in rnn.py; the states of the source are those of a residual encoder with a final norm; the readout is a tanh of
    model.width units, not a maxout, since the output layer is tied to the embeddings.
    """

    model: config.Model

    def setup(self):
        """Declares the parameters of the alignment, the start state, the GRU and the readout."""
        model = self.model
        H, G = model.rnn_dim, 3 * model.rnn_dim
        initial = layers.initializer(model)
        self.input = layers.dense(model, G, "input", build_bias_initializer(model, CELLS["gru"].chrono_gates))
        self.key, self.start = layers.dense(model, H, "key"), layers.dense(model, H, "start")
        self.readout = layers.dense(model, model.width, "readout")
        self.query = self.param("query", initial, (H, H))
        self.score = self.param("score", initial, (H, 1))
        self.context = self.param("context", initial, (model.width, G))
        self.kernel = self.param("kernel", build_kernel_initializer(model, 3))
        self.bias = self.param("bias", nn.initializers.zeros, (G,)) if model.bias == "all" else jnp.zeros(G)

    def project_source(self, source_BxSxD, visible_BxLxS):
        """(keys_BxSxH, start_BxLxH: before a sequence, of the source's first visible token, which has read it all)."""
        first_BxSxH = jnp.tanh(self.start(source_BxSxD)).astype(jnp.float32)
        start_BxLxH = jnp.take_along_axis(first_BxSxH, visible_BxLxS.argmax(-1)[..., None], 1)
        return self.key(source_BxSxD), jnp.where(visible_BxLxS.any(-1, keepdims=True), start_BxLxH, 0)

    def step(self, s_BxH, input_BxG, visible_BxS, keys_BxSxH, source_BxSxD):
        """(the state after a token, context_BxD); the context is zero if no token of the source is visible."""
        dtype = self.model.dtype
        query_BxH = matmul_float32(s_BxH, self.query.astype(dtype)).astype(keys_BxSxH.dtype)
        energy_BxS = matmul_float32(jnp.tanh(query_BxH[:, None] + keys_BxSxH), self.score.astype(dtype))[..., 0]
        weights_BxS = jax.nn.softmax(jnp.where(visible_BxS, energy_BxS, -1e9)) * visible_BxS
        context_BxD = jnp.einsum(
            "bs,bsd->bd", weights_BxS.astype(dtype), source_BxSxD.astype(dtype), preferred_element_type=jnp.float32
        )
        gates_BxG = input_BxG + matmul_float32(context_BxD, self.context.astype(dtype))
        (s_BxH,) = gru_step(gates_BxG, matmul_float32(s_BxH, self.kernel.astype(dtype)) + self.bias, (s_BxH,))
        return s_BxH, context_BxD

    def compute_readout(self, s, context, x):
        """h_...xD from states, contexts and embeddings (equation 4 of the paper)."""
        inputs = [part.astype(x.dtype) for part in (s, context, x)]
        return jnp.tanh(self.readout(jnp.concatenate(inputs, -1)))

    def __call__(self, x_BxLxD, segments_BxL, source_BxSxD, visible_BxLxS, key_B):
        """Returns h_BxLxD, the readouts of all tokens; the state starts anew at the first token of each segment."""
        keys_BxSxH, start_BxLxH = self.project_source(source_BxSxD, visible_BxLxS)
        is_first_BxL = jnp.pad(segments_BxL[:, 1:] != segments_BxL[:, :-1], ((0, 0), (1, 0)), constant_values=True)

        def step(s_BxH, inputs):
            input_BxG, start_BxH, is_first_B, visible_BxS = inputs
            s_BxH = jnp.where(is_first_B[:, None], start_BxH, s_BxH)
            state_and_context = self.step(s_BxH, input_BxG, visible_BxS, keys_BxSxH, source_BxSxD)
            return state_and_context[0], state_and_context

        inputs = (self.input(x_BxLxD).astype(jnp.float32), start_BxLxH, is_first_BxL, visible_BxLxS)
        if self.model.remat or platform_kernels.uses_kernel(self.model, "recurrence"):
            # It is faster to recompute the B * S * H tanhs of a step than to read them from memory.
            step = jax.checkpoint(step, prevent_cse=False)
        _, states = jax.lax.scan(
            step, jnp.zeros_like(start_BxLxH[:, 0]), [x.swapaxes(0, 1) for x in inputs], unroll=self.model.rnn_unroll
        )
        s_BxLxH, context_BxLxD = (x.swapaxes(0, 1) for x in states)
        return layers.dropout(self.compute_readout(s_BxLxH, context_BxLxD, x_BxLxD), key_B, self.model.dropout)


def init_recurrent_cache(model: config.Model, params, source_BxSxD, visible_BxS, max_len: int) -> Any:
    """The cache of empty sequences, as init_attention_cache: their states, then what each step reads of the source."""
    bound: Any = RecurrentDecoder(model).bind({"params": params})
    keys_BxSxH, state_Bx1xH = bound.project_source(source_BxSxD, visible_BxS[:, None])
    return tuple(x[None] for x in (state_Bx1xH[:, 0], visible_BxS, keys_BxSxH, source_BxSxD))


def decode_by_recurrence(model: config.Model, params, cache, position_B, x_BxD) -> tuple[jax.Array, Any]:
    """(h_BxD of the next token of each sequence, the updated cache), as decode_by_attention."""
    state_BxH, *source = (x[0] for x in cache)
    bound: Any = RecurrentDecoder(model).bind({"params": params})
    state_BxH, context_BxD = bound.step(state_BxH, bound.input(x_BxD).astype(jnp.float32), *source)
    return bound.compute_readout(state_BxH, context_BxD, x_BxD), (state_BxH[None], *cache[1:])


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config that an encoder-decoder cannot use."""
    is_causal = cfg.model.directionality == types.Directionality.CAUSAL
    errors.require_field(cfg, "model.directionality", is_causal, "causal", "model.family")
    (rnn if cfg.model.cell == "gru" else transformer).check(cfg)


DECODERS = {
    "transformer": DecoderSpec(TransformerDecoder, init_attention_cache, decode_by_attention),
    "gru": DecoderSpec(RecurrentDecoder, init_recurrent_cache, decode_by_recurrence),
}
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
