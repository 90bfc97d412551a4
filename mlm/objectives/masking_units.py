"""The unit of masking: tokens, whole words, or spans of words.

Letters in array names: W words of an example, at most L; K slots in the random order.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import types
from mlm.base.special import NUM_SPECIAL

SPAN_STOP_PROB, MAX_SPAN_WORDS = 0.2, 10  # a span ends after each of its words with this probability
MAX_EXCESS = 8  # tokens by which the last word of a mask may exceed the rate


class MaskingUnit(NamedTuple):
    """Words or spans, and where words begin."""

    spans: bool
    starts_V: np.ndarray  # bool: which vocabulary entries begin a word
    ends_V: np.ndarray | None = None  # bool: which end one, so that the next begins another


def build_unit(cfg: types.StaticConfig, dataset: types.DatasetInfo, *, train: bool = True) -> MaskingUnit | None:
    """The unit that training, or evaluation, masks; None: tokens.

    Without `dataset.word_starts` every entry begins a word.
    """
    name = cfg.mask.unit if train else cfg.eval.mask_unit
    if name == "token":
        return None
    bounds_V = np.frombuffer(dataset.word_starts or bytes([1]) * dataset.vocab_size, np.uint8)
    return MaskingUnit(name == "span", bounds_V & 1 > 0, bounds_V & 2 > 0 if (bounds_V & 2).any() else None)


def index_words(unit: MaskingUnit, ids_L):
    """(word_L, first_L): each token's word, and whether it is its first; a special token is a word of its own."""
    special_L = ids_L < NUM_SPECIAL
    ends_L = special_L if unit.ends_V is None else special_L | jnp.asarray(unit.ends_V)[ids_L]
    first_L = (jnp.asarray(unit.starts_V)[ids_L] | special_L | jnp.roll(ends_L, 1)).at[0].set(True)
    return jnp.cumsum(first_L) - 1, first_L


def sample_unit_order(unit: MaskingUnit, key, ids_L, eligible_L, order_L, num_slots: int):
    """order_L: a random order of words or spans, highest first; tokens of one word have one number.

    The first word is that of a random token, by a random order of tokens; the others are in any order. Words of more
    than `num_slots` tokens, which no mask can hold, come last.

    A span has 1 to MAX_SPAN_WORDS words, truncated geometric with SPAN_STOP_PROB (SpanBERT, Joshi et al. 2020, section
    3.1: a mean of 3.8). It begins at any word and ends before the next token that is not eligible. A word takes the
    number of the first span that holds it, so that each span adds the words that no earlier span has.
    """
    word_L, first_L = index_words(unit, ids_L)
    none_W = jnp.full(len(ids_L), -1.0)
    order_W = none_W.at[word_L].max(jnp.where(first_L & eligible_L, order_L, -1.0))
    if unit.spans:
        start_order_W, stretch_W = order_W, jnp.zeros(len(ids_L), jnp.int32).at[word_L].max(jnp.cumsum(~eligible_L))
        length_W = compute_span_lengths(jax.random.uniform(jax.random.fold_in(key, 1), order_W.shape))
        for distance in range(1, MAX_SPAN_WORDS):  # a span that begins `distance` words before may reach this word
            reaches_W = (jnp.roll(length_W, distance) > distance) & (jnp.roll(stretch_W, distance) == stretch_W)
            reaches_W &= (jnp.arange(len(ids_L)) >= distance) & (start_order_W >= 0)
            order_W = jnp.maximum(order_W, jnp.where(reaches_W, jnp.roll(start_order_W, distance), -1.0))
    size_W = jnp.zeros(len(ids_L), jnp.int32).at[word_L].add(1)
    order_L = jnp.where(eligible_L & (size_W <= num_slots)[word_L], order_L, -1.5)
    order_W = jnp.where(size_W > num_slots, -1.5, order_W)
    return (order_W if unit.spans else order_W.at[word_L[order_L.argmax()]].set(2.0))[word_L]


def compute_span_lengths(uniform_W):
    """length_W: words of each span, from draws of U(0,1) by the inverse of the distribution function."""
    total = 1 - (1 - SPAN_STOP_PROB) ** MAX_SPAN_WORDS
    length_W = 1 + jnp.floor(jnp.log1p(-uniform_W * total) / np.log(1 - SPAN_STOP_PROB)).astype(jnp.int32)
    return jnp.minimum(length_W, MAX_SPAN_WORDS)


def select_words(unit: MaskingUnit, key, ids_L, ordered, num_eligible, count_E, num_slots: int):
    """(start, end_E): parts of the order, from `start` on, that are whole words and on average `count_E` tokens.

    Each word has the same chance, whatever its length. Think of the words in their order around a circle, and of an arc
    of `count` tokens that begins anywhere in the first word: a word is chosen if a random point of it lies in the arc.
    Spans, whose order is that of the text, begin with the first word. Words for which no slots are left are left out.

    ordered: positions in their random order, of which the first `num_eligible` may be chosen; twice as many as slots
    and one more, or all there are. count_E: the numbers of tokens that rates ask for, the largest first.
    """
    word, number = index_words(unit, ids_L)[0][ordered], jnp.arange(len(ordered))
    is_start = (number == 0) | (word != jnp.roll(word, 1)) | (number == num_eligible)
    first_size = jnp.where(is_start & (number > 0), number, num_eligible).min()
    begin, point = jax.random.uniform(jax.random.fold_in(key, 2), (2,))
    begin *= not unit.spans and not unit.starts_V.all()
    reach_E = count_E + begin * first_size
    is_outside = (point < begin) & (point * first_size >= reach_E[0] - num_eligible)  # the first word's
    start = jnp.where(is_outside, first_size, 0)
    within_E = number <= jnp.minimum(reach_E, start + num_slots)[:, None]
    lower_E = jnp.where(is_start & within_E, number, 0).max(-1)
    upper_E = jnp.where(is_start & (number > reach_E[:, None]), number, 2 * len(ids_L)).min(-1)
    takes_upper_E = (point * (upper_E - lower_E) < reach_E - lower_E) & (upper_E - start <= num_slots)
    end_E = jnp.where(count_E >= num_eligible, num_eligible, jnp.where(takes_upper_E, upper_E, lower_E))
    return start, jnp.maximum(end_E, start)
