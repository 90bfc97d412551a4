"""A language model around an encoder: token embeddings, the encoder, and an output layer."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util

from mlm.base import config, types
from mlm.base.types import Direction, Directionality
from mlm.models import incremental, platform_kernels
from mlm.models.layers import ACTIVATIONS, OUTSIDE_BIAS, dense, dropout, embedding_dim, fold_in, initializer, norm

DIRECTIONS: dict[str, tuple[Direction, ...]] = {
    Directionality.BIDIRECTIONAL: (Direction.BIDIRECTIONAL,),
    Directionality.CAUSAL: (Direction.LEFT,),
    Directionality.TWO_STACK: (Direction.LEFT, Direction.RIGHT),
    Directionality.MIXED: (Direction.MIXED,),
}  # what each state of a token has seen, by config.model.directionality


def sinusoids(length: int, width: int):
    """Sinusoidal position embeddings, length x width (Vaswani et al. 2017, section 3.5)."""
    angle = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(0, width, 2) / width)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(length, -1)[:, :width]


class TokenLM(nn.Module):
    """Embeddings of tokens and an output layer over the vocabulary; a subclass has what stands between them.

    With model.embedding_dim, embeddings of that width are projected to the encoder's, and states back (ALBERT, Lan et
    al. 2020, arXiv 1909.11942, section 3.1). The output layer's table is that of the embeddings, or with
    model.tie_embeddings off its own ("output").
    """

    model: config.Model
    vocab_size: int
    positions: str  # added to the embeddings: learned or sinusoidal; others add none

    def declare_tokens(self, embedding_init, *, is_scaled: bool, has_bias: bool):
        """Declares embeddings and output layer; is_scaled: embeddings are scaled up to the positions' size."""
        model, self.is_scaled = self.model, is_scaled
        # In float32, as are the sums of their gradients: [MASK] alone adds up thousands of rows a step.
        embed = functools.partial(nn.Embed, features=embedding_dim(model), embedding_init=embedding_init)
        self.token = embed(self.vocab_size)
        if self.positions == "learned":
            self.position = embed(model.max_positions)
        if model.type_vocab_size:
            self.type = embed(model.type_vocab_size)
        self.embed_norm = norm(model) if model.embed_norm else lambda x_BxLxD: x_BxLxD
        if embedding_dim(model) != model.width:
            self.embed_projection = dense(model, model.width, bias_in=OUTSIDE_BIAS)
        if model.lm_head == "bert" or embedding_dim(model) != model.width:
            self.transform = dense(model, embedding_dim(model), bias_in=OUTSIDE_BIAS)
        if model.lm_head == "bert":
            self.transform_norm = norm(model)
        zeros = nn.initializers.zeros, (self.vocab_size,)
        self.bias = self.param("bias", *zeros) if has_bias else jnp.zeros(self.vocab_size)
        if not model.tie_embeddings:
            self.output = embed(self.vocab_size)

    def embed_tokens(self, text: types.Tokens, key_B):
        """x_BxLxD, the input of an encoder or decoder."""
        x_BxLxD = self.token(text.ids_BxL)
        width = x_BxLxD.shape[-1]
        if self.is_scaled:  # Vaswani et al. 2017, section 3.4
            x_BxLxD *= width**0.5
        if self.positions == "learned":
            x_BxLxD += self.position(text.positions_BxL)
        elif self.positions == "sinusoidal":
            x_BxLxD += sinusoids(self.model.max_positions, width).astype(x_BxLxD.dtype)[text.positions_BxL]
        if self.model.type_vocab_size:
            x_BxLxD += self.type(text.types_BxL)
        x_BxLxD = self.embed_norm(x_BxLxD).astype(platform_kernels.activation_dtype(self.model))
        x_BxLxD = dropout(x_BxLxD, key_B, self.model.dropout)
        return x_BxLxD if width == self.model.width else self.embed_projection(x_BxLxD)

    def lm_head(self, h):
        """(h, table_VxD, bias_V): the logits are h @ table.T + bias."""
        if self.model.lm_head == "bert":
            h = self.transform_norm(ACTIVATIONS[self.model.lm_head_activation](self.transform(h)))
        elif embedding_dim(self.model) != self.model.width:
            h = self.transform(h)
        h, table = h.astype(self.model.dtype), self.token if self.model.tie_embeddings else self.output
        return h, table.embedding.astype(h.dtype), self.bias

    def logits(self, h):
        """Returns logits_...xV in float32 for states h_...xD."""
        h, table_VxD, bias_V = self.lm_head(h)
        return jnp.einsum("...d,vd->...v", h, table_VxD, preferred_element_type=jnp.float32) + bias_V


class EncoderLM(TokenLM):
    """Embeddings, an encoder and an output layer (BERT's, or linear; see model.lm_head).

    With model.directionality = "two_stack" two encoders, each of which sees one side in all its layers, share the
    embeddings and the output layer (ELMo, Peters et al. 2018, section 3.1). The encoder of the right side reads the
    reversed sequence.
    """

    encoder: Any  # a module class of (x_BxLxD, segments_BxL, left_B, key_B) -> h_BxLxD, whose model.directionality is
    # bidirectional, causal or mixed

    def setup(self):
        """Declares embeddings, encoders (two if model.directionality is two_stack) and the output layer."""
        model = self.model
        has_bias = model.bias == "output" or (model.lm_head == "bert" and model.bias != "none")
        self.declare_tokens(initializer(model), is_scaled=self.positions == "sinusoidal", has_bias=has_bias)
        if model.directionality == Directionality.TWO_STACK:
            causal = dataclasses.replace(model, directionality="causal")
            self.left, self.right = (self.encoder(causal, name=side) for side in encoder_names(model))
        else:
            self.body = self.encoder(model, name="body")

    def encode(self, text: types.Tokens, key_B, shift_BxLxD=None, left_B=None):
        """A tuple of h_BxLxD, one for each of DIRECTIONS[model.directionality]."""
        x_BxLxD = self.embed_tokens(text, fold_in(key_B, 0))
        if shift_BxLxD is not None:
            x_BxLxD += shift_BxLxD.astype(x_BxLxD.dtype)
        self.sow("intermediates", "embeddings", x_BxLxD)
        if self.model.directionality != Directionality.TWO_STACK:
            return (self.body(x_BxLxD, text.segments_BxL, left_B, key_B),)
        right_key_B = fold_in(key_B, self.model.num_layers + 1)
        right_BxLxD = self.right(x_BxLxD[:, ::-1], text.segments_BxL[:, ::-1], None, right_key_B)
        return self.left(x_BxLxD, text.segments_BxL, None, key_B), right_BxLxD[:, ::-1]

    def __call__(self, text: types.Tokens):
        """Returns logits_BxLxV of the first direction, without dropout; flax creates all parameters by this call."""
        return self.logits(self.encode(text, None)[0])


def encoder_names(model: config.Model) -> tuple[str, ...]:
    """The names of the encoders among the parameters, one for each direction."""
    return ("left", "right") if model.directionality == Directionality.TWO_STACK else ("body",)


def build(
    model: config.Model,
    vocab_size: int,
    encoder,
    decoder: incremental.IncrementalDecoder | None = None,
    positions: str = "none",
    *,
    has_attention: bool = False,
) -> types.Model:
    """The encoder, a module class as in EncoderLM, with embeddings and output layer, as pure functions.

    decoder: None if it cannot decode one token at a time; has_attention: whether its layers sow attention weights.
    """
    module, directions = EncoderLM(model, vocab_size, positions, encoder), DIRECTIONS[model.directionality]

    def init(key):
        ids_1x2 = jnp.zeros((1, 2), jnp.int32)
        return module.init(key, types.Tokens(ids_1x2, ids_1x2, ids_1x2, ids_1x2))["params"]

    apply_encode, logits, embed_tokens = map(make_method(module), ("encode", "logits", "embed_tokens"))

    def encode(params, text, source=None, *, key_B=None, shift_BxLxD=None, left_B=None):
        assert source is None, "an encoder reads no source"
        assert left_B is None or model.directionality == Directionality.MIXED, "left_B needs model.directionality mixed"
        return apply_encode(params, text, key_B, shift_BxLxD, left_B)

    def encode_and_sow(params, text, key_B) -> Any:
        """(states by direction, all that is sown, and of that what each encoder's stack sows)."""
        states, collections = module.apply({"params": params}, text, key_B, method="encode", mutable=["intermediates"])
        sown = collections["intermediates"]
        return states, sown, [sown[name]["stack"]["layers"] for name in encoder_names(model)]

    def encode_layers(params, text, source=None, *, key_B=None):
        states, intermediates, stacks = encode_and_sow(params, text, key_B)
        (embeddings_BxLxD,) = intermediates["embeddings"]
        parts = []
        for direction, h_BxLxD, stack in zip(directions, states, stacks, strict=True):
            outputs_KxBxLxD = jnp.concatenate(stack["after"])
            outputs_KxBxLxD = outputs_KxBxLxD[:, :, ::-1] if direction == Direction.RIGHT else outputs_KxBxLxD
            parts.append(jnp.concatenate([embeddings_BxLxD[None], outputs_KxBxLxD[:-1], h_BxLxD[None]]))
        return jnp.concatenate(parts, -1)

    def attention(params, text):
        _, _, stacks = encode_and_sow(params, text, None)
        parts = []
        for direction, stack in zip(directions, stacks, strict=True):
            weights_KxBxHxLxL = jnp.concatenate(stack["layer"]["attention"]["weights"])
            parts.append(weights_KxBxHxLxL[..., ::-1, ::-1] if direction == Direction.RIGHT else weights_KxBxHxLxL)
        return jnp.concatenate(parts, 2)

    def encode_projections(params, text, layer, key_B=None):
        path = (*encoder_names(model), "stack", "layers", "layer", "attention")
        shape = (*text.ids_BxL.shape, model.num_heads, model.width // model.num_heads)
        empty = jnp.zeros(shape, platform_kernels.activation_dtype(model))
        carried = {(*path, "layer"): jnp.asarray(layer or model.num_layers), (*path, "q_k_v"): (empty, empty, empty)}
        variables = {"params": params, "projections": traverse_util.unflatten_dict(carried)}
        states, collections = module.apply(variables, text, key_B, method="encode", mutable=["projections"])
        q_k_v: Any = traverse_util.flatten_dict(collections["projections"])[*path, "q_k_v"]
        return states, tuple(x.reshape(*text.ids_BxL.shape, model.width) for x in q_k_v)

    def init_cache(params, text, source, max_len):
        length_B = (text.segments_BxL > 0).sum(-1)
        assert decoder is not None
        x_BxLxD = embed_tokens(params, text, None)
        states = decoder.prefill(model, params[encoder_names(model)[0]], x_BxLxD, length_B, max_len)
        return {"length_1xB": length_B[None], "states": states}

    def decode_step(params, cache, ids_B):
        position_B, one_Bx1 = cache["length_1xB"][0], jnp.ones_like(ids_B)[:, None]
        text = types.Tokens(ids_B[:, None], one_Bx1, position_B[:, None], 0 * one_Bx1)
        assert decoder is not None
        x_BxD = embed_tokens(params, text, None)[:, 0]
        h_BxD, states = decoder.step(model, params[encoder_names(model)[0]], x_BxD, position_B, cache["states"])
        return logits(params, h_BxD), {"length_1xB": cache["length_1xB"] + 1, "states": states}

    can_decode = decoder is not None and model.directionality != Directionality.BIDIRECTIONAL
    return make_model(
        module,
        model,
        directions,
        init=init,
        encode=encode,
        encode_layers=encode_layers,
        attention=attention if has_attention else None,
        encode_projections=encode_projections if has_attention and len(directions) == 1 else None,
        init_cache=init_cache if can_decode else None,
        decode_step=decode_step if can_decode else None,
    )


def make_model(module, model: config.Model, directions: tuple[Direction, ...], **functions: Any) -> types.Model:
    """The pure functions of a module with `logits` and `lm_head`; functions: those that differ, by name."""
    method, has_blocks = make_method(module), platform_kernels.uses_kernel(model, "blocked_cross_entropy")
    has_kernel = has_blocks or platform_kernels.uses_kernel(model, "cross_entropy")
    return types.Model(
        directions=directions,
        width=model.width,
        logits=method("logits"),
        lm_head=method("lm_head") if has_kernel else None,  # the kernel reads the output layer's table itself
        vocab_block=platform_kernels.VOCAB_BLOCK if has_blocks else 0,
        **functions,
    )


def make_method(module) -> Callable[[str], Callable[..., Any]]:
    """(name of a method) -> its pure function of parameters and arguments."""
    return lambda name: lambda params, *arguments: module.apply({"params": params}, *arguments, method=name)


def count_parameters(params) -> dict[str, int]:
    """The number of "parameters", and of those outside the embedding tables and the output bias ("non_embedding")."""
    sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(tree)) for name, tree in params.items()}
    total = sum(sizes.values())
    tables = sum(sizes.get(name, 0) for name in ("token", "position", "type", "output", "bias"))
    return {"parameters": total, "non_embedding": total - tables}
