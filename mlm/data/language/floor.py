"""The floor: the least loss that a language model can reach on examples of a language that is an `HMM`.

It depends on which words the model sees. A model's excess loss is its loss minus the floor on the same examples and
masks. Compute its error from the differences by example (`estimates.compute_ratio`): the two losses rise and fall
together. Examples are arrays as `posterior` takes them.

Letters in array names: N examples, L places, P places and one more, K masked words, W words.
"""

from typing import NamedTuple

import numpy as np

from mlm.base.estimates import compute_ratio
from mlm.data.language.causal_posterior import (
    add_end_state,
    append_end,
    compute_backward_posterior,
    compute_causal_posterior,
    reverse_words,
)
from mlm.data.language.hmm import HMM
from mlm.data.language.posterior import (
    Posterior,
    compute_bag_posterior,
    compute_infilling_posterior,
    compute_posterior,
    compute_window_posterior,
    predict_words,
)


class Floor(NamedTuple):
    """Loss in nats and accuracy per predicted word, their standard errors, and the sums over each row behind them."""

    loss: float
    loss_error: float
    accuracy: float
    accuracy_error: float
    nats_N: np.ndarray
    correct_N: np.ndarray
    count_N: np.ndarray


def _score(hmm: HMM, words_NxL: np.ndarray, masked_NxL: np.ndarray, known: Posterior) -> Floor:
    """The loss and accuracy of a posterior of the masked words. Raises ValueError where a true word is impossible."""
    log_prob_K, best_K = predict_words(hmm, known, words_NxL)
    row_K = np.nonzero(masked_NxL)[0]
    if not np.isfinite(log_prob_K).all():
        raise ValueError(f"row {row_K[~np.isfinite(log_prob_K)][0]}: its words have probability 0 in this language")
    nats_N, right_N = (
        np.bincount(row_K, np.asarray(value_K, np.float64), len(words_NxL))
        for value_K in (-log_prob_K, best_K == words_NxL[masked_NxL])
    )
    return make_floor(nats_N, right_N, masked_NxL.sum(1))


def make_floor(nats_N: np.ndarray, right_N: np.ndarray, count_N: np.ndarray) -> Floor:
    """The floor of several examples, N each, from sums over the masked tokens of each example."""
    return Floor(*compute_ratio(nats_N, count_N), *compute_ratio(right_N, count_N), nats_N, right_N, count_N)


def compute_masked_floor(hmm: HMM, words_NxL: np.ndarray, masked_NxL: np.ndarray) -> Floor:
    """The floor of all models where the masked words are hidden by [MASK] alone: the posterior's loss.

    Exact however many are masked, and however places are chosen, as long as the choice does not look at the words.
    """
    return _score(hmm, words_NxL, masked_NxL, compute_posterior(hmm, words_NxL, masked_NxL))


def compute_window_floor(hmm: HMM, words_NxL: np.ndarray, masked_NxL: np.ndarray, window: int) -> Floor:
    """The floor of models that see `window` neighbours on each side: see `compute_window_posterior`."""
    return _score(hmm, words_NxL, masked_NxL, compute_window_posterior(hmm, words_NxL, masked_NxL, window))


def compute_bag_floor(hmm: HMM, words_NxL: np.ndarray, masked_NxL: np.ndarray, window: int) -> Floor:
    """The floor of models that see these neighbours without order; past a window of 5 a bound: see
    `compute_bag_posterior`.
    """
    return _score(hmm, words_NxL, masked_NxL, compute_bag_posterior(hmm, words_NxL, masked_NxL, window))


def compute_infilling_floor(hmm: HMM, words_NxL: np.ndarray, hidden_NxL: np.ndarray) -> Floor:
    """The floor of models that fill in the hidden words from left to right: nats_N is -log P(hidden | visible words).

    What is copied, and where the document ends, is certain, since the visible row says how many words it has.
    """
    return _score(hmm, words_NxL, hidden_NxL, compute_infilling_posterior(hmm, words_NxL, hidden_NxL))


def _score_with_end(hmm, tokens_NxP, known) -> Floor:
    return _score(add_end_state(hmm), tokens_NxP, tokens_NxP >= 0, known)


def compute_causal_floor(hmm: HMM, words_NxL: np.ndarray, length: int, window: int | None = None) -> Floor:
    """The floor of causal models, which predict each word, and then that the document ends, from what is to the left.

    length: the most words that a document may hold, which a model can learn; how many this one holds it does not know.
    window: they see so many words alone. count_N is a row's words and 1; nats_N is minus the log-probability of the
    document where there is no window.
    """
    return _score_with_end(hmm, append_end(hmm, words_NxL), compute_causal_posterior(hmm, words_NxL, length, window))


def compute_backward_floor(hmm: HMM, words_NxL: np.ndarray, length: int, window: int | None = None) -> Floor:
    """The floor of models that predict each word, and then that the document begins, from what is to the right.

    By the chain rule nats_N is that of `compute_causal_floor`: it is the same document's log-probability.
    """
    known = compute_backward_posterior(hmm, words_NxL, length, window)
    return _score_with_end(hmm, reverse_words(hmm, words_NxL), known)


def add_floors(one: Floor, other: Floor) -> Floor:
    """The floor of models that predict what both floors are of: their sums over each row, added up."""
    return make_floor(*(a_N + b_N for a_N, b_N in zip(one[-3:], other[-3:], strict=True)))
