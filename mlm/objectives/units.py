"""What is masked as a whole: tokens, words, or spans of words.

Letters in array names: W words of a row, of which there are at most L; K slots in the random order.
"""
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.special import NUM_SPECIAL

UNITS = ("token", "word", "span")
STOPS, LONGEST = 0.2, 10  # after each of its words a span ends with this chance, and after so many words at the latest


class Unit(NamedTuple):
    """How tokens hang together."""

    spans: bool
    starts_V: np.ndarray  # bool: which entries of the vocabulary begin a word


def of(cfg: config.Config, about: types.DatasetInfo) -> Unit | None:
    """What training masks as a whole; None: tokens. Where rows do not tell, every entry begins a word."""
    if cfg.mask.unit == "token":
        return None
    starts_V = np.frombuffer(about.starts, bool) if about.starts else np.ones(about.vocab_size, bool)
    return Unit(cfg.mask.unit == "span", starts_V)


def check(mask: config.Mask) -> None:
    """Raises ConfigError for what is no unit, and for several disjoint masks of words."""
    errors.require_one_of("config.mask.unit", mask.unit, UNITS)
    if mask.unit != "token":
        errors.require(mask.masks_per_example == 1, "config.mask.masks_per_example", mask.masks_per_example,
                      f"1, since config.mask.unit is {mask.unit}: words do not part into masks of one size")


def words(unit: Unit, ids_L):
    """(word_L, first_L): the number of each token's word in its row, and whether it begins it; special tokens are words
    of their own, and what follows one begins a word.
    """
    special_L = ids_L < NUM_SPECIAL
    first_L = (jnp.asarray(unit.starts_V)[ids_L] | special_L | jnp.roll(special_L, 1)).at[0].set(True)
    return jnp.cumsum(first_L) - 1, first_L


def order(unit: Unit, key, ids_L, order_L):
    """order_L: a random order of words or spans, the highest first; of one of tokens, such as Draws.order_L.

    Tokens of a word have one number. A span is of 1 to LONGEST words, geometric with STOPS and nothing above that
    (SpanBERT, Joshi et al. 2020, section 3.1: a mean of 3.8), begins at any word and ends before the next special
    token. A word has the number of the first span that holds it, so that a span brings those of its words that none
    before it has.
    """
    word_L, first_L = words(unit, ids_L)
    special_L, nothing_W = ids_L < NUM_SPECIAL, jnp.full(len(ids_L), -1.0)
    order_W = nothing_W.at[word_L].max(jnp.where(first_L & ~special_L, order_L, -1.0))
    if unit.spans:
        begins_W, stretch_W = order_W, jnp.zeros(len(ids_L), jnp.int32).at[word_L].max(jnp.cumsum(special_L))
        length_W = lengths(jax.random.uniform(jax.random.fold_in(key, 1), order_W.shape))
        for back in range(1, LONGEST):  # a span from the word so far back may reach here
            reaches_W = (jnp.roll(length_W, back) > back) & (jnp.roll(stretch_W, back) == stretch_W)
            reaches_W &= (jnp.arange(len(ids_L)) >= back) & (begins_W >= 0)
            order_W = jnp.maximum(order_W, jnp.where(reaches_W, jnp.roll(begins_W, back), -1.0))
    return order_W[word_L]


def lengths(uniform_W):
    """length_W: of spans in words, from draws of U(0,1), by the inverse of their distribution function."""
    held = 1 - (1 - STOPS) ** LONGEST
    length_W = 1 + jnp.floor(jnp.log1p(-uniform_W * held) / np.log(1 - STOPS)).astype(jnp.int32)
    return jnp.minimum(length_W, LONGEST)


def whole(unit: Unit, ids_L, ordered_K, eligible, count):
    """Of the first `count` tokens in the order as many as are whole words: the word that does not fit is left out.

    ordered_K: the places of the row in their order, of which the first `eligible` may be chosen; more than `count`,
    unless that is all of them.
    """
    word_K, number_K = words(unit, ids_L)[0][ordered_K], jnp.arange(len(ordered_K))
    begins_K = (number_K == 0) | (word_K != jnp.roll(word_K, 1)) | (number_K == eligible)
    most = jnp.where(begins_K & (number_K <= count), number_K, 0).max()
    return jnp.where(count >= eligible, eligible, most)
