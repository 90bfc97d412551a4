"""Greedy decoding and sampling as one loop over anything that predicts the next token.

Letters in array names: T generated tokens of a sequence.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlm.base.special import PAD, SEP


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
    `beam_search.search_beams`.
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
