"""The exact distribution of the word before, or of the document's beginning, given what stands to the right.

A row is reversed and read by `compute_next_word_posterior`, with the end of `add_end_state` as the document's
beginning. Backward recursion gives each state of the next word to the left the probability of the words read, given
that state. It is multiplied by that of the state, and of a document that ends where this one does, summed over how many
words may stand to the left; the beginning has the weight of the state `end`, from which a document starts, and of no
further word.

Letters in array names: N rows, L places, P places and one more, S states and the beginning, F counts of words read.
"""

import numpy as np

from mlm.data.language.causal_posterior import (
    ForwardModel,
    add_end_state,
    append_end,
    compute_next_word_posterior,
    compute_next_word_window_posterior,
)
from mlm.data.language.hmm import HMM, compute_fit_probs, compute_state_marginals
from mlm.data.language.posterior import Posterior


def reverse_words(hmm: HMM, words_NxL: np.ndarray) -> np.ndarray:
    """tokens_NxP: the rows from right to left, then the word that `add_end_state` adds, which says that they begin
    there.
    """
    return append_end(hmm, words_NxL[:, ::-1])


def make_backward_model(hmm: HMM, length: int) -> ForwardModel:
    """A forward model that reads documents from right to left, of at most `length` words."""
    trans_SxS = np.pad(hmm.trans_SxS.T, (0, 1))
    trans_SxS[:-1, -1] = hmm.trans_SxS[hmm.end]  # what comes before the first word acts as `end` does
    last_S = np.append(np.arange(len(hmm.trans_SxS)) == hmm.end, 0.0)
    return ForwardModel(add_end_state(hmm)._replace(trans_SxS=trans_SxS), last_S, _compute_start_weights(hmm, length))


def _compute_start_weights(hmm, length):
    """weight_FxS: P(state at the next word to the left, and that the document ends F words further), or for the
    beginning that it ends there.
    """
    before_LxS, _ = compute_state_marginals(hmm, length)
    _, unfit_F = compute_fit_probs(hmm, length)
    state_FxS = [unfit_F[read + 1 :] @ before_LxS[: length - read] for read in range(length + 1)]
    return np.concatenate([state_FxS, unfit_F[:, None]], 1)


def compute_backward_posterior(hmm: HMM, words_NxL: np.ndarray, length: int) -> Posterior:
    """Exact distributions of each word given those to the right, and of the document's beginning.

    Rows and columns of the queried places are those of `reverse_words`.
    """
    return compute_next_word_posterior(make_backward_model(hmm, length), words_NxL[:, ::-1])


def compute_backward_window_posterior(hmm: HMM, words_NxL: np.ndarray, length: int, window: int) -> Posterior:
    """`compute_next_word_window_posterior` from right to left; places as in `compute_backward_posterior`."""
    return compute_next_word_window_posterior(make_backward_model(hmm, length), words_NxL[:, ::-1], window)
