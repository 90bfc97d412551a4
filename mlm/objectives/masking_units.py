"""The unit of masking: tokens, whole words, or spans of words.

Letters in array names: W words of an example, at most L; K slots in the random order.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.special import NUM_SPECIAL
from mlm.base.static_config import StaticConfig

UNITS = ("token", "word", "span")
SPAN_STOP_PROB, MAX_SPAN_WORDS = 0.2, 10  # a span ends after each of its words with this probability


class MaskingUnit(NamedTuple):
    """Words or spans, and where words begin."""

    spans: bool
    starts_V: np.ndarray  # bool: which vocabulary entries begin a word


def build_unit(cfg: StaticConfig, dataset: types.DatasetInfo) -> MaskingUnit | None:
    """The unit that training masks; None: tokens. Without `dataset.word_starts` every entry begins a word."""
    if cfg.mask.unit == "token":
        return None
    starts_V = np.frombuffer(dataset.word_starts, bool) if dataset.word_starts else np.ones(dataset.vocab_size, bool)
    return MaskingUnit(cfg.mask.unit == "span", starts_V)


def check(mask: config.Mask) -> None:
    """Raises ConfigError for an unknown unit, and for several disjoint masks of words."""
    errors.require_one_of("config.mask.unit", mask.unit, UNITS)
    if mask.unit != "token":
        errors.require(
            mask.masks_per_example == 1,
            "config.mask.masks_per_example",
            mask.masks_per_example,
            f"1, since config.mask.unit is {mask.unit}: words cannot be split into masks of one size",
        )


def index_words(unit: MaskingUnit, ids_L):
    """(word_L, first_L): the index of each token's word, and whether the token is the word's first.

    Each special token is a word, and the token after one begins a word.
    """
    special_L = ids_L < NUM_SPECIAL
    first_L = (jnp.asarray(unit.starts_V)[ids_L] | special_L | jnp.roll(special_L, 1)).at[0].set(True)
    return jnp.cumsum(first_L) - 1, first_L


def sample_unit_order(unit: MaskingUnit, key, ids_L, order_L):
    """order_L: a random order of words or spans, highest first; tokens of one word have one number.

    A span has 1 to MAX_SPAN_WORDS words, truncated geometric with SPAN_STOP_PROB (SpanBERT, Joshi et al. 2020, section
    3.1: a mean of 3.8). It begins at any word and ends before the next special token. A word takes the number of the
    first span that holds it, so that each span adds the words that no earlier span has.

    Args:
        order_L: a random order of tokens, such as UniformDraws.order_L.
    """
    word_L, first_L = index_words(unit, ids_L)
    special_L, none_W = ids_L < NUM_SPECIAL, jnp.full(len(ids_L), -1.0)
    order_W = none_W.at[word_L].max(jnp.where(first_L & ~special_L, order_L, -1.0))
    if unit.spans:
        start_order_W, stretch_W = order_W, jnp.zeros(len(ids_L), jnp.int32).at[word_L].max(jnp.cumsum(special_L))
        length_W = compute_span_lengths(jax.random.uniform(jax.random.fold_in(key, 1), order_W.shape))
        for distance in range(1, MAX_SPAN_WORDS):  # a span that begins `distance` words before may reach this word
            reaches_W = (jnp.roll(length_W, distance) > distance) & (jnp.roll(stretch_W, distance) == stretch_W)
            reaches_W &= (jnp.arange(len(ids_L)) >= distance) & (start_order_W >= 0)
            order_W = jnp.maximum(order_W, jnp.where(reaches_W, jnp.roll(start_order_W, distance), -1.0))
    return order_W[word_L]


def compute_span_lengths(uniform_W):
    """length_W: words of each span, from draws of U(0,1) by the inverse of the distribution function."""
    total = 1 - (1 - SPAN_STOP_PROB) ** MAX_SPAN_WORDS
    length_W = 1 + jnp.floor(jnp.log1p(-uniform_W * total) / np.log(1 - SPAN_STOP_PROB)).astype(jnp.int32)
    return jnp.minimum(length_W, MAX_SPAN_WORDS)


def round_down_to_words(unit: MaskingUnit, ids_L, ordered_K, num_eligible, count):
    """The largest number of tokens, at most `count`, that is whole words of the order.

    Args:
        ordered_K: positions in their random order, of which the first `num_eligible` may be chosen; more than `count`
            of them, or all there are.
    """
    word_K, number_K = index_words(unit, ids_L)[0][ordered_K], jnp.arange(len(ordered_K))
    is_word_start_K = (number_K == 0) | (word_K != jnp.roll(word_K, 1)) | (number_K == num_eligible)
    largest = jnp.where(is_word_start_K & (number_K <= count), number_K, 0).max()
    return jnp.where(count >= num_eligible, num_eligible, largest)
