"""Autoregressive decoding of a model: greedy, sampled, or by beam search."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlm.base import types
from mlm.base.special import CLS, MASK, PAD, UNK
from mlm.inference import beam_search, sampling
from mlm.inference.masked_queries import make_tokens

SUPPRESSED_IDS = (PAD, UNK, CLS, MASK)  # never generated


class PrefillResult(NamedTuple):
    """Prompts in the cache, but for their last token."""

    decode_step: Callable  # (cache, ids_B) -> (logits_BxV of the next token, cache)
    cache: Any
    last_B: jax.Array
    max_steps_B: jax.Array  # tokens that may follow each prompt


def prefill(
    model: types.Model, params, prompt: types.Tokens, source: types.Tokens | None, cache_len: int, max_len=None
) -> PrefillResult:
    """Reads prompts of one segment, of one token or more.

    Args:
        model: a model with init_cache and decode_step.
        params: as a run stores them, with the key "model".
        prompt: the prompts.
        source: the sources of an encoder-decoder.
        cache_len: tokens that the cache has room for, those of the prompt included.
        max_len: tokens to generate at most, those of the prompt included; traced. None: `cache_len`.
    """
    length_B = (prompt.segments_BxL > 0).sum(-1)
    last_B = jnp.take_along_axis(prompt.ids_BxL, length_B[:, None] - 1, 1)[:, 0]
    is_cached_BxL = jnp.arange(prompt.ids_BxL.shape[1]) < length_B[:, None] - 1
    cached = types.Tokens(*(jnp.where(is_cached_BxL, x_BxL, 0) for x_BxL in prompt))
    init_cache, decode_step = model.init_cache, model.decode_step
    assert init_cache is not None and decode_step is not None
    cache = init_cache(params["model"], cached, source, cache_len)
    return PrefillResult(
        lambda cache, ids_B: decode_step(params["model"], cache, ids_B),
        cache,
        last_B,
        (cache_len if max_len is None else max_len) - length_B,
    )


def decode_greedy(
    model: types.Model,
    params,
    prompt: types.Tokens,
    source: types.Tokens | None = None,
    *,
    cache_len: int,
    max_len=None,
    suppressed_ids=SUPPRESSED_IDS,
) -> sampling.DecodedTokens:
    """Greedy decoding, up to [SEP] or `max_len` tokens. Arguments as for `prefill`."""
    start = prefill(model, params, prompt, source, cache_len, max_len)
    return sampling.decode_tokens(
        *start[:3],
        sampling.select_argmax,
        num_steps=cache_len - 1,
        max_steps_B=start.max_steps_B,
        suppressed_ids=suppressed_ids,
    )


def sample_tokens(
    model: types.Model,
    params,
    prompt: types.Tokens,
    source: types.Tokens | None,
    key_B,
    temperature,
    top_k,
    top_p,
    *,
    cache_len: int,
    max_len=None,
    suppressed_ids=SUPPRESSED_IDS,
) -> sampling.DecodedTokens:
    """As `decode_greedy`, but samples the tokens with `sampling.make_sampler`."""
    start = prefill(model, params, prompt, source, cache_len, max_len)
    select_token = sampling.make_sampler(key_B, temperature, top_k, top_p)
    return sampling.decode_tokens(
        *start[:3], select_token, num_steps=cache_len - 1, max_steps_B=start.max_steps_B, suppressed_ids=suppressed_ids
    )


def decode_beams(
    model: types.Model,
    params,
    prompt: types.Tokens,
    source: types.Tokens | None = None,
    *,
    cache_len: int,
    num_beams: int,
    length_penalty: str = "mean",
    early_stopping: str = "never",
    max_len=None,
    suppressed_ids=SUPPRESSED_IDS,
) -> beam_search.BeamSearchResult:
    """Beam search as `beam_search.search_beams` does it. One beam finds what `decode_greedy` finds."""
    start = prefill(model, params, prompt, source, cache_len, max_len)
    return beam_search.search_beams(
        *start[:3],
        num_beams=num_beams,
        num_steps=cache_len - 1,
        max_steps_B=start.max_steps_B,
        length_penalty=length_penalty,
        early_stopping="always" if num_beams == 1 else early_stopping,
        suppressed_ids=suppressed_ids,
    )


def translate_tokens(
    model: types.Model, params, source: types.Tokens, *, max_len: int, num_beams: int = 1, length_penalty: str = "mean"
) -> beam_search.BeamSearchResult:
    """The best translations of the sources, from [CLS] on, of at most `max_len` tokens, [CLS] included."""
    prompt = make_tokens(jnp.full((len(source.ids_BxL), 1), CLS, jnp.int32))
    return decode_beams(
        model, params, prompt, source, cache_len=max_len, num_beams=num_beams, length_penalty=length_penalty
    )
