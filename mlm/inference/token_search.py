"""Searches for tokens over anything that predicts the next one, a model or a table: greedy, sampled, by beams.

Letters in array names: T generated tokens of a sequence, W beams, C = 2 * W candidates, N = B * W.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlm.base import errors
from mlm.base.special import PAD, SEP

LENGTH_PENALTIES = ("none", "mean", "wu")
WU_EXPONENT = 0.6  # alpha in Wu et al. 2016
EARLY_STOPPING = ("never", "heuristic", "always")


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
    max_steps_B=None,
    eos_id: int = SEP,
    suppressed_ids: tuple[int, ...] = (),
) -> DecodedTokens:
    """Continues each sequence by at most `num_steps` tokens.

    select_token: (logits_BxV, step) -> ids_B, such as `select_argmax`. Other arguments as for
    `search_beams`.
    """
    max_steps_B = jnp.full(len(last_B), num_steps) if max_steps_B is None else max_steps_B

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
        return _DecodeState(t + 1, cache, id_B, decoded, is_open_B & (id_B != eos_id) & (t + 1 < max_steps_B))

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
    max_steps_B=None,
    length_penalty: str = "mean",
    early_stopping: str = "never",
    eos_id: int = SEP,
    suppressed_ids: tuple[int, ...] = (),
) -> BeamSearchResult:
    """Finds the `num_beams` best continuations of each sequence by beam search.

    Each step keeps the 2 * num_beams likeliest candidates. Those among the first num_beams that end become finished
    texts; the num_beams likeliest others continue.

    Args:
        decode_step: (cache, ids_N) -> (logits_NxV of the next token, cache). Every leaf of the cache has the N
            sequences on axis 1.
        cache: that of the B sequences, each read up to its last token, which last_B has.
        num_steps: tokens to generate at most; max_steps_B: the same for each sequence, 0 to `num_steps`.
        length_penalty: see `compute_length_penalty`.
        early_stopping: when a sequence's search stops, once it has num_beams finished texts. "never": when no beam can
            become better than these, whatever follows; exact, since log P only falls. "heuristic": when none would be
            better if it ended now. "always": at once. transformers calls these "never", False and True.
        eos_id: the token that ends a text; suppressed_ids: tokens that are never generated and have no share of P.
    """
    errors.require_at_least(1, "num_beams", num_beams)
    errors.require_one_of("early_stopping", early_stopping, EARLY_STOPPING)
    B, W, T = len(last_B), num_beams, num_steps
    max_steps_B = jnp.full(B, num_steps) if max_steps_B is None else max_steps_B

    def get_penalty(length):
        return compute_length_penalty(length_penalty, length)

    def step(beams: _BeamState) -> _BeamState:
        t = beams.step
        logits_NxV, cache = decode_step(beams.cache, beams.last_N)
        log_prob_NxV = jax.nn.log_softmax(suppress_tokens(logits_NxV.astype(jnp.float32), suppressed_ids))
        V = log_prob_NxV.shape[-1]
        log_prob_BxWV = (beams.log_prob_BxW.reshape(-1, 1) + log_prob_NxV).reshape(B, W * V)
        log_prob_BxC, index_BxC = jax.lax.top_k(log_prob_BxWV, 2 * W)
        beam_BxC, id_BxC = index_BxC // V, index_BxC % V
        ids_BxCxT = _gather_beams(beams.ids_BxWxT, beam_BxC).at[:, :, t].set(id_BxC)
        ends_BxC = (id_BxC == eos_id) | (t + 1 >= max_steps_B[:, None])

        is_finished_BxC = ends_BxC & (jnp.arange(2 * W) < W) & beams.is_open_B[:, None]
        score_BxC = jnp.where(is_finished_BxC, log_prob_BxC / get_penalty(t + 1), -jnp.inf)
        candidates = BeamSearchResult(ids_BxCxT, score_BxC, jnp.full_like(id_BxC, t + 1), log_prob_BxC)
        all_finished = jax.tree.map(lambda *parts: jnp.concatenate(parts, 1), beams.finished, candidates)
        _, best_BxW = jax.lax.top_k(all_finished.score_BxW, W)
        finished = jax.tree.map(lambda x: _gather_beams(x, best_BxW), all_finished)

        log_prob_BxW, open_BxW = jax.lax.top_k(jnp.where(ends_BxC, -jnp.inf, log_prob_BxC), W)
        beam_N = (_gather_beams(beam_BxC, open_BxW) + W * jnp.arange(B)[:, None]).reshape(-1)
        final_length_B = max_steps_B if early_stopping == "never" else t + 1
        best_possible_B = log_prob_BxW[:, 0] / get_penalty(final_length_B)
        worst_B = finished.score_BxW[:, -1]  # -inf where fewer than W are finished
        stops_B = (worst_B > -jnp.inf) & (early_stopping == "always")
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
