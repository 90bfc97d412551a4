"""Decoding of a model: autoregressive (greedy, sampled, by beam search), or step by step in the places of [MASK]s."""

from typing import Any

import jax
import jax.numpy as jnp

from mlm.base import types
from mlm.base.special import CLS, MASK, PAD, SEP, UNK
from mlm.inference import token_search
from mlm.inference.masked_queries import make_tokens

SUPPRESSED_IDS = (PAD, UNK, CLS, MASK)  # never generated
UNMASK_ORDERS = ("left", "confidence")


def prefill(
    model: types.Model,
    params,
    ids_BxL,
    source: types.Tokens | None = None,
    *,
    cache_len: int,
    max_len=None,
    suppressed_ids: tuple[int, ...] = SUPPRESSED_IDS,
) -> dict[str, Any]:
    """Reads prompts of one token or more, but for their last token; returns the arguments of a search.

    Args:
        model: a model with init_cache and decode_step; params: as a run stores them, with the key "model".
        ids_BxL: the prompts, with PAD at their ends; source: the sources of an encoder-decoder.
        cache_len: tokens that the cache has room for, those of the prompt included.
        max_len: tokens to generate at most, those of the prompt included; traced. None: `cache_len`.
        suppressed_ids: tokens that are never generated.
    """
    prompt = make_tokens(ids_BxL)
    length_B = (prompt.segments_BxL > 0).sum(-1)
    is_cached_BxL = jnp.arange(ids_BxL.shape[1]) < length_B[:, None] - 1
    cached = types.Tokens(*(jnp.where(is_cached_BxL, x_BxL, 0) for x_BxL in prompt))
    init_cache, decode_step = model.init_cache, model.decode_step
    assert init_cache is not None and decode_step is not None
    return {
        "decode_step": lambda cache, ids_B: decode_step(params["model"], cache, ids_B),
        "cache": init_cache(params["model"], cached, source, cache_len),
        "last_B": jnp.take_along_axis(ids_BxL, length_B[:, None] - 1, 1)[:, 0],
        "num_steps": cache_len - 1,
        "max_steps_B": (cache_len if max_len is None else max_len) - length_B,
        "suppressed_ids": suppressed_ids,
    }


def continue_prompts(
    model: types.Model, params, ids_BxL, source: types.Tokens | None = None, *, sampler_args=None, **lengths
) -> token_search.DecodedTokens:
    """Continues prompts up to [SEP] or `max_len` tokens; other arguments as for `prefill`.

    sampler_args: of `token_search.make_sampler`; None: greedy.
    """
    select_token = token_search.make_sampler(*sampler_args) if sampler_args else token_search.select_argmax
    return token_search.decode_tokens(**prefill(model, params, ids_BxL, source, **lengths), select_token=select_token)


def decode_beams(
    model: types.Model,
    params,
    ids_BxL,
    source: types.Tokens | None = None,
    *,
    num_beams: int,
    length_penalty: str = "mean",
    early_stopping: str = "never",
    **lengths,
) -> token_search.BeamSearchResult:
    """Beam search as `token_search.search_beams` does it; other arguments as for `prefill`. One beam is greedy."""
    return token_search.search_beams(
        **prefill(model, params, ids_BxL, source, **lengths),
        num_beams=num_beams,
        length_penalty=length_penalty,
        early_stopping="always" if num_beams == 1 else early_stopping,
    )


def translate_tokens(
    model: types.Model, params, source: types.Tokens, *, max_len: int, **search
) -> token_search.BeamSearchResult:
    """The best translations of the sources, from [CLS] on, of at most `max_len` tokens, [CLS] included.

    search: other arguments of `decode_beams`.
    """
    start_Bx1 = jnp.full((len(source.ids_BxL), 1), CLS, jnp.int32)
    return decode_beams(model, params, start_Bx1, source, cache_len=max_len, **search)


def unmask_tokens(model: types.Model, unmask_order: str, params: Any, ids_BxL, sampler_args, tokens_per_step):
    """(ids_BxL without [MASK], log_prob_B of the filled tokens in nats, each at its step) by iterative unmasking.

    Each step is given the tokens of those before it. Confident first, k positions per step, is how MaskGIT (Chang et
    al. 2022, arXiv 2202.04200, section 3.2) and LLaDA (Nie et al. 2025, arXiv 2502.09992, section 2.4) generate with a
    model that was trained to predict masked tokens.

    Args:
        model: the model, whose states predict their own tokens; params: as a run stores them, with the key "model".
        unmask_order: "left" to right, or by "confidence".
        ids_BxL: sequences with [MASK]s.
        sampler_args: of `token_search.make_sampler`, with a random key for each sequence; None: the likeliest tokens.
        tokens_per_step: positions that one forward pass fills in a sequence; traced.
    """
    B, L = ids_BxL.shape
    position_L = jnp.arange(L)

    def fill(carry):
        ids_BxL, log_prob_B, step = carry
        h_BxLxD = model.encode(params["model"], make_tokens(ids_BxL))[0]
        logits_NxV = model.logits(params["model"], h_BxLxD).reshape(B * L, -1)
        logits_NxV = token_search.suppress_tokens(logits_NxV.astype(jnp.float32), (*SUPPRESSED_IDS, SEP))
        select_token = token_search.select_argmax
        if sampler_args:
            key_B, *settings = sampler_args
            key_N = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, position_L))(key_B).reshape(-1)
            select_token = token_search.make_sampler(key_N, *settings)
        id_N = select_token(logits_NxV, step).astype(jnp.int32)
        confidence_N = jnp.take_along_axis(jax.nn.log_softmax(logits_NxV), id_N[:, None], 1)[:, 0]
        confidence_BxL, id_BxL, is_masked_BxL = confidence_N.reshape(B, L), id_N.reshape(B, L), ids_BxL == MASK
        order_BxL = confidence_BxL if unmask_order == "confidence" else -position_L
        rank_BxL = (-jnp.where(is_masked_BxL, order_BxL, -jnp.inf)).argsort(-1).argsort(-1)
        fill_BxL = is_masked_BxL & (rank_BxL < tokens_per_step)
        log_prob_B = log_prob_B + jnp.where(fill_BxL, confidence_BxL, 0).sum(-1)
        return jnp.where(fill_BxL, id_BxL, ids_BxL), log_prob_B, step + 1

    start = ids_BxL, jnp.zeros(B), jnp.int32(0)
    return jax.lax.while_loop(lambda carry: (carry[0] == MASK).any(), fill, start)[:2]
