"""n-gram language models counted in packed rows: interpolated modified Kneser-Ney (Chen & Goodman 1999, section 3).

A token is predicted from the tokens of its segment before it, as for causal models. Each order is a sorted array
of numbers, an n-gram's made of that of its first n - 1 tokens: memory holds some 50 bytes for each distinct n-gram and
a block of rows, however many rows there are.

Letters in array names: G distinct n-grams of an order, C those one shorter, T tokens of a block; others as in types.py.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mlm.base.special import CLS, MASK, PAD
from mlm.data.rows.loader import Columns

BLOCK_TOKENS = 2**20  # tokens that are counted at a time
FALLBACK_DISCOUNTS = 0.5, 1.0, 1.5  # discounts of a text that is too small to tell its own (KenLM's)


class NgramCounts(NamedTuple):
    """The n-grams of one order that stand in the rows; of order 1 all the vocabulary."""

    key_G: np.ndarray  # int64, sorted: number of the first n - 1 tokens among the grams one shorter, times V,
    # plus the last token
    count_G: np.ndarray  # how often its last token is predicted behind the others
    starts_text_G: np.ndarray  # bool: it begins with [CLS], before which nothing stands
    num_predecessors_G: np.ndarray  # different tokens before it, the start of a segment among them; 0 where not counted


class NgramOrder(NamedTuple):
    """One order of a model: P(w | context) = share of the n-gram + back of the context * P(w | context one shorter)."""

    key_G: np.ndarray
    prob_G: np.ndarray
    backoff_C: np.ndarray


class NgramModel(NamedTuple):
    """An n-gram model that interpolates its orders."""

    orders: tuple[NgramOrder, ...]  # of order 1 and on
    uniform_prob: float  # probability of each token that can be predicted, without any counts


def count_ngrams(rows: Columns, vocab_size: int, order: int) -> list[NgramCounts]:
    """The n-grams of order 1 to `order` in the rows of a split; of fewer orders where no segment is so long."""
    count_V, every_V = np.zeros(vocab_size, np.int64), np.arange(vocab_size)
    for _, ids_T, place_T in _iterate_blocks(rows):
        count_V += np.bincount(ids_T[place_T > 0], minlength=vocab_size)
    found = [NgramCounts(every_V, count_V, every_V == CLS, count_V)]
    suffix_C = np.arange(0)  # of each gram of the last order, the number of all but its first token
    for n in range(2, order + 1):
        key_G, count_G = _count_distinct(_make_block_keys(found, *block) for _, *block in _iterate_blocks(rows))
        if not len(key_G):
            break
        context_G, last_G = np.divmod(key_G, vocab_size)
        shorter = found[-1]
        suffix_C = last_G if n == 2 else _find_keys(shorter.key_G, suffix_C[context_G] * vocab_size + last_G)
        before_C = np.bincount(suffix_C, minlength=len(shorter.key_G))
        inside_C = np.bincount(suffix_C, count_G, len(shorter.key_G))  # of its counts, those with a token before them
        found[-1] = shorter._replace(num_predecessors_G=before_C + (shorter.count_G > inside_C))
        found.append(NgramCounts(key_G, count_G, shorter.starts_text_G[context_G], np.zeros(len(key_G), np.int64)))
    return found


def smooth_counts(found: Sequence[NgramCounts], order: int) -> NgramModel:
    """The model of this order, at most that to which grams were counted.

    Below its own order n-grams count by how many different tokens stand before them (Kneser & Ney 1995); those that
    begin with [CLS] by how often they come, as nothing does.
    """
    vocab_size = len(found[0].key_G)
    levels, found = [], found[:order]
    for n, grams in enumerate(found, 1):
        count_G = np.where(grams.starts_text_G | (n == len(found)), grams.count_G, grams.num_predecessors_G)
        context_G, contexts = grams.key_G // vocab_size, len(found[n - 2].key_G) if n > 1 else 1
        less_G = np.array([0.0, *estimate_discounts(count_G)])[np.minimum(count_G, 3)]
        total_C = np.bincount(context_G, count_G, contexts)
        some_C = np.maximum(total_C, 1)
        back_C = np.where(total_C > 0, np.bincount(context_G, less_G, contexts) / some_C, 1.0)
        levels.append(NgramOrder(grams.key_G, (count_G - less_G) / some_C[context_G], back_C))
    return NgramModel(tuple(levels), 1 / (vocab_size - len({PAD, CLS, MASK})))


def estimate_discounts(count_G: np.ndarray) -> tuple[float, ...]:
    """The discount of counts of 1, of 2, and of 3 or more (Chen & Goodman 1999, equation 26).

    FALLBACK_DISCOUNTS where counts of 1, 2 or 3 are lacking, or would lose less than nothing.
    """
    one, two, three, four = (np.count_nonzero(count_G == times) for times in range(1, 5))
    if not (one and two and three):
        return FALLBACK_DISCOUNTS
    y = one / (one + 2 * two)
    found = 1 - 2 * y * two / one, 2 - 3 * y * three / two, 3 - 4 * y * four / three
    return found if min(found) >= 0 else FALLBACK_DISCOUNTS


def compute_nats(model: NgramModel, rows: Columns, most: int) -> tuple[np.ndarray, np.ndarray]:
    """(nats_N, count_N) of the first `most` rows: sums of -log P, and how many tokens they are of."""
    nats_N, count_N = np.zeros(most), np.zeros(most, np.int64)
    for row_T, ids_T, place_T in _iterate_blocks({name: column[:most] for name, column in rows.items()}):
        asked_T = place_T > 0
        nats_N += np.bincount(row_T[asked_T], -np.log(compute_probabilities(model, ids_T, place_T)[asked_T]), most)
        count_N += np.bincount(row_T[asked_T], minlength=most)
    return nats_N, count_N


def compute_probabilities(model: NgramModel, ids_T: np.ndarray, place_T: np.ndarray) -> np.ndarray:
    """prob_T of tokens that follow each other in a text, place_T: how many stand before each in its segment."""
    vocab_size = len(model.orders[0].key_G)
    prob_T = np.full(len(ids_T), model.uniform_prob)
    context_T = np.zeros(len(ids_T), np.int64)
    for n, level in enumerate(model.orders):
        key_T = _make_keys(context_T, ids_T, place_T, n, vocab_size)
        number_T = _find_keys(level.key_G, key_T)
        share_T = np.where(number_T >= 0, level.prob_G[number_T], 0)
        prob_T = np.where(key_T >= 0, share_T + level.backoff_C[context_T] * prob_T, prob_T)
        context_T = np.append(-1, number_T[:-1])
    return prob_T


def _iterate_blocks(rows) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(row_T, ids_T, place_T) of the tokens of some rows at a time; padding has the place -1."""
    count, length = rows["ids"].shape
    column_L = np.arange(length)
    for first in range(0, count, size := max(1, BLOCK_TOKENS // length)):
        segments_BxL = np.asarray(rows["segments"][first : first + size])
        starts_BxL = np.diff(segments_BxL.astype(np.int64), axis=1, prepend=-1) != 0
        place_BxL = column_L - np.maximum.accumulate(np.where(starts_BxL, column_L, 0), axis=1)
        row_T = np.repeat(np.arange(first, first + len(segments_BxL)), length)
        ids_T = np.asarray(rows["ids"][first : first + size], np.int64).ravel()
        yield row_T, ids_T, np.where(segments_BxL > 0, place_BxL, -1).ravel()


def _make_block_keys(found, ids_T, place_T):
    """Keys of all n-grams of a block that are one longer than the last that were found."""
    context_T = np.zeros(len(ids_T), np.int64)
    for n, grams in enumerate(found):
        number_T = _find_keys(grams.key_G, _make_keys(context_T, ids_T, place_T, n, len(found[0].key_G)))
        context_T = np.append(-1, number_T[:-1])
    key_T = _make_keys(context_T, ids_T, place_T, len(found), len(found[0].key_G))
    return key_T[key_T >= 0]


def _make_keys(context_T, ids_T, place_T, before, vocab_size):
    """Keys of the n-grams that end at each token with `before` others, -1 where that many do not stand before it."""
    return np.where((context_T >= 0) & (place_T >= before), context_T * vocab_size + ids_T, -1)


def _find_keys(key_G, key_T):
    """number_T: where each key stands among the sorted ones, -1 where it does not."""
    number_T = np.minimum(np.searchsorted(key_G, key_T), len(key_G) - 1)
    return np.where(key_G[number_T] == key_T, number_T, -1)


def _count_distinct(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(key_G, count_G): the keys of all blocks, sorted, and how often each came. Parts of like size are merged."""
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for key_T in itertools.chain(blocks, [None]):
        if key_T is not None:
            parts.append(np.unique(key_T, return_counts=True))
        while len(parts) > 1 and (key_T is None or len(parts[-2][0]) < 2 * len(parts[-1][0])):
            parts.append(_merge_counts(parts.pop(), parts.pop()))
    return parts[0]


def _merge_counts(one, other):
    key_T, count_T = (np.concatenate(both) for both in zip(one, other, strict=True))
    order_T = key_T.argsort(kind="stable")
    key_T, count_T = key_T[order_T], count_T[order_T]
    (first_G,) = np.nonzero(np.diff(key_T, prepend=-1))
    return key_T[first_G], np.add.reduceat(count_T, first_G) if len(first_G) else count_T
