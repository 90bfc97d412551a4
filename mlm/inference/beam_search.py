"""Beam search over anything that tells the next token, as one loop: a model, or a table of probabilities.

Letters in array names: W beams of a row, T tokens after it, C = 2 * W candidates, N = B * W.
"""
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlm.base import errors
from mlm.base.special import PAD, SEP
from mlm.inference import sampling

NORMS = ("none", "mean", "wu")
STOPS = ("bound", "now", "first")


class Found(NamedTuple):
    """The texts that a search ended with, of each row the best first."""

    ids_BxWxT: jax.Array      # SEP is the last where the text ended, PAD stands behind it
    score_BxW: jax.Array      # the sum of log P over `divisor`; -inf where fewer than W were found
    length_BxW: jax.Array     # tokens, SEP among them
    log_prob_BxW: jax.Array   # the sum of log P, in nats


class _Beams(NamedTuple):
    step: jax.Array
    cache: Any
    last_N: jax.Array
    sum_BxW: jax.Array        # of the beams that go on
    ids_BxWxT: jax.Array
    ended: Found
    open_B: jax.Array         # whether the row's search goes on


def divisor(normalise: str, length, alpha=0.6):
    """What the log-probability of `length` tokens is divided by.

    none: 1. mean: the length, so that score(y) = 1/t sum log P(y_t) (Jurafsky & Martin, equation 13.17). wu: ((5 + t) /
    6)^alpha (Wu et al. 2016, arXiv 1609.08144, equation 14, without its coverage).
    """
    errors.require_one_of("normalise", normalise, NORMS)
    length = jnp.asarray(length, jnp.float32)
    return {"none": jnp.ones_like(length), "mean": length, "wu": ((5 + length) / 6) ** alpha}[normalise]


def search(following: Callable, cache, last_B, *, width: int, steps: int, most_B=None, normalise: str = "mean",
           alpha=0.6, stop: str = "bound", end: int = SEP, never: tuple[int, ...] = ()) -> Found:
    """The `width` likeliest texts of at most `steps` tokens behind each row, as far as so many beams see.

    following: (cache, ids_N) -> (logits_NxV of the token after these, cache), N rows of which are on axis 1 of every
    leaf of the cache; cache: of the B rows, each before its last token, last_B. most_B: tokens of each row's texts at
    most, 0 to `steps`. never: what is never taken, and has no share of P.

    Each step keeps the 2 * width likeliest continuations; those of them that end, among the first `width`, are
    candidates for the answer, the `width` likeliest others go on. A row's search stops once it has `width` ended texts
    and no beam that goes on can get among them: "bound", whatever follows (transformers' early_stopping="never"; exact,
    as log P only falls); "now", if it ended as it stands (their False); "first", at once (their True).
    """
    errors.require_at_least(1, "beam", width)
    errors.require_one_of("stop", stop, STOPS)
    B, W, T = len(last_B), width, steps
    most_B = jnp.full(B, steps) if most_B is None else most_B

    def norm(length):
        return divisor(normalise, length, alpha)

    def step(beams: _Beams) -> _Beams:
        t = beams.step
        logits_NxV, cache = following(beams.cache, beams.last_N)
        log_prob_NxV = jax.nn.log_softmax(sampling.without(logits_NxV.astype(jnp.float32), never))
        V = log_prob_NxV.shape[-1]
        total_BxWV = (beams.sum_BxW.reshape(-1, 1) + log_prob_NxV).reshape(B, W * V)
        sum_BxC, index_BxC = jax.lax.top_k(total_BxWV, 2 * W)
        from_BxC, id_BxC = index_BxC // V, index_BxC % V
        ids_BxCxT = _of(beams.ids_BxWxT, from_BxC).at[:, :, t].set(id_BxC)
        ends_BxC = (id_BxC == end) | (t + 1 >= most_B[:, None])

        counts_BxC = ends_BxC & (jnp.arange(2 * W) < W) & beams.open_B[:, None]
        score_BxC = jnp.where(counts_BxC, sum_BxC / norm(t + 1), -jnp.inf)
        new = Found(ids_BxCxT, score_BxC, jnp.full_like(id_BxC, t + 1), sum_BxC)
        every = jax.tree.map(lambda *parts: jnp.concatenate(parts, 1), beams.ended, new)
        _, best_BxW = jax.lax.top_k(every.score_BxW, W)
        ended = jax.tree.map(lambda x: _of(x, best_BxW), every)

        sum_BxW, on_BxW = jax.lax.top_k(jnp.where(ends_BxC, -jnp.inf, sum_BxC), W)
        from_N = (_of(from_BxC, on_BxW) + W * jnp.arange(B)[:, None]).reshape(-1)
        longest_B = most_B if stop == "bound" else t + 1
        possible_B = sum_BxW[:, 0] / norm(longest_B)
        worst_B = ended.score_BxW[:, -1]  # -inf where fewer than W ended
        open_B = beams.open_B & (possible_B > worst_B) & ~((worst_B > -jnp.inf) & (stop == "first"))
        return _Beams(t + 1, jax.tree.map(lambda x: jnp.take(x, from_N, axis=1), cache),
                      _of(id_BxC, on_BxW).reshape(-1), sum_BxW, _of(ids_BxCxT, on_BxW), ended, open_B)

    no_BxW, ids_BxWxT = jnp.full((B, W), -jnp.inf), jnp.full((B, W, T), PAD, jnp.int32)
    first = _Beams(jnp.int32(0), jax.tree.map(lambda x: jnp.repeat(x, W, axis=1), cache), jnp.repeat(last_B, W),
                   no_BxW.at[:, 0].set(0), ids_BxWxT, Found(ids_BxWxT, no_BxW, jnp.zeros((B, W), jnp.int32), no_BxW),
                   most_B > 0)
    return jax.lax.while_loop(lambda beams: (beams.step < T) & beams.open_B.any(), step, first).ended


def _of(x_BxCx, index_BxW):
    """x_BxW... of those by their numbers in each row."""
    return jnp.take_along_axis(x_BxCx, index_BxW.reshape(*index_BxW.shape, *[1] * (x_BxCx.ndim - 2)), 1)
