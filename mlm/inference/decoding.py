"""Decoding: greedy, sampled or by beam search, or step by step in the places of [MASK]s.

The searches work on anything that predicts the next token, a model or a table. Letters in array names: T generated
tokens of a sequence, W beams, C = 2 * W candidates, N = B * W.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlm.base import errors, types
from mlm.base.special import CLS, MASK, PAD, SEP, UNK
from mlm.inference.forward_passes import make_tokens

LENGTH_PENALTIES = ("none", "mean", "wu")
WU_EXPONENT = 0.6  # alpha in Wu et al. 2016
SUPPRESSED_IDS = (PAD, UNK, CLS, MASK)  # never generated
UNMASK_ORDERS = ("left", "confidence")


class DecodedTokens(NamedTuple):
    """The tokens that were decoded for each example of a batch."""

    ids_BxT: jax.Array  # up to SEP where the text ended, PAD after it
    length_B: jax.Array  # tokens, SEP included
    log_prob_B: jax.Array  # the model's log P of them, in nats


class _DecodeState(NamedTuple):
    step: jax.Array
    cache: Any
    last_B: jax.Array
    decoded: DecodedTokens
    is_open_B: jax.Array


def decode_tokens(
    decode_step: Callable,
    cache,
    last_B,
    select_token: Callable,
    *,
    num_steps: int,
    max_steps_B,
    suppressed_ids: tuple[int, ...] = (),
) -> DecodedTokens:
    """Continues each sequence by at most `num_steps` tokens.

    select_token: (logits_BxV, step) -> ids_B, such as `select_argmax`. Other arguments as for `search_beams`.
    """

    def step(state: _DecodeState) -> _DecodeState:
        t, is_open_B, decoded = state.step, state.is_open_B, state.decoded
        logits_BxV, cache = decode_step(state.cache, state.last_B)
        logits_BxV = suppress_tokens(logits_BxV.astype(jnp.float32), suppressed_ids)
        id_B = select_token(logits_BxV, t).astype(jnp.int32)
        log_prob_B = jnp.take_along_axis(logits_BxV, id_B[:, None], 1)[:, 0] - jax.nn.logsumexp(logits_BxV, -1)
        id_B = jnp.where(is_open_B, id_B, PAD)
        decoded = DecodedTokens(
            decoded.ids_BxT.at[:, t].set(id_B),
            decoded.length_B + is_open_B,
            decoded.log_prob_B + jnp.where(is_open_B, log_prob_B, 0),
        )
        return _DecodeState(t + 1, cache, id_B, decoded, is_open_B & (id_B != SEP) & (t + 1 < max_steps_B))

    B = len(last_B)
    no_tokens = DecodedTokens(jnp.full((B, num_steps), PAD, jnp.int32), jnp.zeros(B, jnp.int32), jnp.zeros(B))
    start = _DecodeState(jnp.int32(0), cache, last_B, no_tokens, max_steps_B > 0)
    return jax.lax.while_loop(lambda state: (state.step < num_steps) & state.is_open_B.any(), step, start).decoded


def suppress_tokens(logits_NxV, suppressed_ids: tuple[int, ...]):
    """The logits with -inf for the suppressed tokens."""
    is_allowed_V = jnp.ones(logits_NxV.shape[-1], bool).at[jnp.array(suppressed_ids, int)].set(False)
    return jnp.where(is_allowed_V, logits_NxV, -jnp.inf)


def select_argmax(logits_BxV, step):
    """The likeliest token, the first of equally likely ones."""
    return logits_BxV.argmax(-1)


def make_sampler(key_B, temperature, top_k, top_p) -> Callable:
    """A `select_token` that samples each sequence with its own key, whatever the batch.

    It samples from softmax(logits / temperature), restricted to the top_k likeliest tokens (0: all) and then to the
    smallest set of likeliest tokens with a share of at least top_p (nucleus sampling, Holtzman et al. 2020, arXiv
    1904.09751, section 3.1; 1: all). All three are traced. Tokens as likely as the last of a set belong to it too.
    """

    def select_token(logits_BxV, step):
        prob_BxV = jax.nn.softmax(logits_BxV / temperature)
        count = jnp.where(top_k > 0, top_k, logits_BxV.shape[-1])
        prob_BxV = _keep_largest(prob_BxV, jnp.ones_like(prob_BxV), count)
        prob_BxV = _keep_largest(prob_BxV, prob_BxV, top_p * prob_BxV.sum(-1))
        cumulative_BxV = prob_BxV.cumsum(-1)
        step_key_B = jax.vmap(jax.random.fold_in, (0, None))(key_B, step)
        point_B = jax.vmap(jax.random.uniform)(step_key_B) * cumulative_BxV[:, -1]
        id_B = (cumulative_BxV <= point_B[:, None]).sum(-1)
        last_B = jnp.where(prob_BxV > 0, jnp.arange(prob_BxV.shape[-1]), 0).max(-1)
        return jnp.minimum(id_B, last_B)  # rounding may lift the point up to the sum

    return select_token


def _keep_largest(prob_BxV, weight_BxV, target_B):
    """Keeps the likeliest tokens whose weights add up to `target` or more, and sets the others to 0.

    It bisects the smallest probability to keep. Probabilities are positive floats, which sort by their bits.
    """
    target_B = jnp.broadcast_to(target_B, prob_BxV.shape[:1])

    def bisect(_, bounds):
        low_B, high_B = bounds
        middle_B = low_B + (high_B - low_B) // 2
        is_kept_BxV = prob_BxV >= jax.lax.bitcast_convert_type(middle_B, jnp.float32)[:, None]
        is_enough_B = jnp.where(is_kept_BxV, weight_BxV, 0).sum(-1) >= target_B
        return jnp.where(is_enough_B, middle_B, low_B), jnp.where(is_enough_B, high_B, middle_B)

    zero_B = jnp.zeros(len(prob_BxV), jnp.int32)
    two_B = zero_B + jax.lax.bitcast_convert_type(jnp.float32(2), jnp.int32)
    low_B, _ = jax.lax.fori_loop(0, 31, bisect, (zero_B, two_B))
    return jnp.where(prob_BxV >= jax.lax.bitcast_convert_type(low_B, jnp.float32)[:, None], prob_BxV, 0)


class BeamSearchResult(NamedTuple):
    """The finished texts of each sequence, best first."""

    ids_BxWxT: jax.Array  # up to SEP where the text ended, PAD after it
    score_BxW: jax.Array  # log P over the length penalty; -inf where fewer than W texts were found
    length_BxW: jax.Array  # tokens, SEP included
    log_prob_BxW: jax.Array  # log P of the text, in nats


class _BeamState(NamedTuple):
    step: jax.Array
    cache: Any
    last_N: jax.Array
    log_prob_BxW: jax.Array  # of the unfinished beams
    ids_BxWxT: jax.Array
    finished: BeamSearchResult
    is_open_B: jax.Array  # whether the sequence's search continues


def compute_length_penalty(length_penalty: str, length):
    """The divisor of the log-probability of `length` tokens.

    none: 1. mean: the length (Jurafsky & Martin, equation 13.17). wu: ((5 + length) / 6)^0.6 (Wu et al. 2016, arXiv
    1609.08144, equation 14, without the coverage term).
    """
    errors.require_one_of("length_penalty", length_penalty, LENGTH_PENALTIES)
    length = jnp.asarray(length, jnp.float32)
    return {"none": jnp.ones_like(length), "mean": length, "wu": ((5 + length) / 6) ** WU_EXPONENT}[length_penalty]


def search_beams(
    decode_step: Callable,
    cache,
    last_B,
    *,
    num_beams: int,
    num_steps: int,
    max_steps_B,
    length_penalty: str = "mean",
    suppressed_ids: tuple[int, ...] = (),
) -> BeamSearchResult:
    """Finds the `num_beams` best continuations of each sequence by beam search.

    Each step keeps the 2 * num_beams likeliest candidates. Those among the first num_beams that end become finished
    texts; the num_beams likeliest others continue. It stops where no beam can become better than num_beams finished
    texts, whatever follows, since log P only falls. One beam stops where its text ends: it is greedy.

    Args:
        decode_step: (cache, ids_N) -> (logits_NxV of the next token, cache). Every leaf of the cache has the N
            sequences on axis 1.
        cache: that of the B sequences, each read up to its last token, which last_B has.
        num_steps: tokens to generate at most; max_steps_B: the same for each sequence, 0 to `num_steps`.
        length_penalty: see `compute_length_penalty`.
        suppressed_ids: tokens that are never generated and have no share of P.
    """
    B, W, T = len(last_B), num_beams, num_steps
    get_penalty = functools.partial(compute_length_penalty, length_penalty)

    def step(beams: _BeamState) -> _BeamState:
        t = beams.step
        logits_NxV, cache = decode_step(beams.cache, beams.last_N)
        log_prob_NxV = jax.nn.log_softmax(suppress_tokens(logits_NxV.astype(jnp.float32), suppressed_ids))
        V = log_prob_NxV.shape[-1]
        log_prob_BxWV = (beams.log_prob_BxW.reshape(-1, 1) + log_prob_NxV).reshape(B, W * V)
        log_prob_BxC, index_BxC = jax.lax.top_k(log_prob_BxWV, 2 * W)
        beam_BxC, id_BxC = index_BxC // V, index_BxC % V
        ids_BxCxT = _gather_beams(beams.ids_BxWxT, beam_BxC).at[:, :, t].set(id_BxC)
        ends_BxC = (id_BxC == SEP) | (t + 1 >= max_steps_B[:, None])

        is_finished_BxC = ends_BxC & (jnp.arange(2 * W) < W) & beams.is_open_B[:, None]
        score_BxC = jnp.where(is_finished_BxC, log_prob_BxC / get_penalty(t + 1), -jnp.inf)
        candidates = BeamSearchResult(ids_BxCxT, score_BxC, jnp.full_like(id_BxC, t + 1), log_prob_BxC)
        all_finished = jax.tree.map(lambda *parts: jnp.concatenate(parts, 1), beams.finished, candidates)
        _, best_BxW = jax.lax.top_k(all_finished.score_BxW, W)
        finished = jax.tree.map(lambda x: _gather_beams(x, best_BxW), all_finished)

        log_prob_BxW, open_BxW = jax.lax.top_k(jnp.where(ends_BxC, -jnp.inf, log_prob_BxC), W)
        beam_N = (_gather_beams(beam_BxC, open_BxW) + W * jnp.arange(B)[:, None]).reshape(-1)
        best_possible_B = log_prob_BxW[:, 0] / get_penalty(max_steps_B)
        worst_B = finished.score_BxW[:, -1]  # -inf where fewer than W are finished
        stops_B = (worst_B > -jnp.inf) & (W == 1)
        is_open_B = beams.is_open_B & (best_possible_B > worst_B) & ~stops_B
        return _BeamState(
            t + 1,
            jax.tree.map(lambda x: jnp.take(x, beam_N, axis=1), cache),
            _gather_beams(id_BxC, open_BxW).reshape(-1),
            log_prob_BxW,
            _gather_beams(ids_BxCxT, open_BxW),
            finished,
            is_open_B,
        )

    none_BxW, ids_BxWxT = jnp.full((B, W), -jnp.inf), jnp.full((B, W, T), PAD, jnp.int32)
    no_results = BeamSearchResult(ids_BxWxT, none_BxW, jnp.zeros((B, W), jnp.int32), none_BxW)
    start = _BeamState(
        jnp.int32(0),
        jax.tree.map(lambda x: jnp.repeat(x, W, axis=1), cache),
        jnp.repeat(last_B, W),
        none_BxW.at[:, 0].set(0),
        ids_BxWxT,
        no_results,
        max_steps_B > 0,
    )
    return jax.lax.while_loop(lambda beams: (beams.step < T) & beams.is_open_B.any(), step, start).finished


def _gather_beams(x_BxCx, index_BxW):
    """x_BxWx: the entries of each sequence with these indices."""
    return jnp.take_along_axis(x_BxCx, index_BxW.reshape(*index_BxW.shape, *[1] * (x_BxCx.ndim - 2)), 1)


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


def continue_prompts(model: types.Model, params, ids_BxL, *, sampler_args=None, **lengths) -> DecodedTokens:
    """Continues prompts up to [SEP] or `max_len` tokens; other arguments as for `prefill`.

    sampler_args: of `make_sampler`; None: greedy.
    """
    select_token = make_sampler(*sampler_args) if sampler_args else select_argmax
    return decode_tokens(**prefill(model, params, ids_BxL, **lengths), select_token=select_token)


def decode_beams(
    model: types.Model,
    params,
    ids_BxL,
    source: types.Tokens | None = None,
    *,
    num_beams: int,
    length_penalty: str = "mean",
    **lengths,
) -> BeamSearchResult:
    """Beam search as `search_beams` does it; other arguments as for `prefill`."""
    arguments = prefill(model, params, ids_BxL, source, **lengths)
    return search_beams(**arguments, num_beams=num_beams, length_penalty=length_penalty)


def translate_tokens(model: types.Model, params, source: types.Tokens, *, max_len: int, **search) -> BeamSearchResult:
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
        sampler_args: of `make_sampler`, with a random key for each sequence; None: the likeliest tokens.
        tokens_per_step: positions that one forward pass fills in a sequence; traced.
    """
    B, L = ids_BxL.shape
    position_L = jnp.arange(L)

    def fill(carry):
        ids_BxL, log_prob_B, step = carry
        h_BxLxD = model.encode(params["model"], make_tokens(ids_BxL))[0]
        logits_NxV = model.logits(params["model"], h_BxLxD).reshape(B * L, -1)
        logits_NxV = suppress_tokens(logits_NxV.astype(jnp.float32), (*SUPPRESSED_IDS, SEP))
        select_token = select_argmax
        if sampler_args:
            key_B, *settings = sampler_args
            key_N = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, position_L))(key_B).reshape(-1)
            select_token = make_sampler(key_N, *settings)
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
