"""The exact distribution of the next word, or of the document's end, given what stands to the left.

Rows are as in `posterior`. A document holds as many sentences as fit in `length` words (`sample_documents`), and its
reader does not know how many words these are. A next word comes if its sentence fits; the document ends if a sentence
has just ended and the next one does not fit. Given the state, whether a sentence fits depends on nothing that came
before (`HMM`). So forward recursion gives each state of the next word a weight, to be multiplied by the probability
that its sentence fits; the document's end has the weight of `end`, times the probability that the next does not fit.

Letters in array names: N rows, L places, P places and one more, K queried places of all rows, B rows or queried places
of a batch, S states and the end, C classes and the end, W words and the end, T topics, M names, Z latent values, F
counts of words already written, I places of a window, the queried one last.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import errors
from mlm.base.config import Language
from mlm.data.language.grammar import build_grammar, encode_texts
from mlm.data.language.hmm import HMM, Favorites, compute_fit_probs, compute_state_marginals
from mlm.data.language.posterior import (
    EXAMPLE_BATCH,
    WINDOW_BATCH,
    Posterior,
    compute_class_evidence,
    compute_class_probs,
    compute_log_probs,
    make_posterior,
    map_batches,
    map_latents,
    put_on_device,
    scan_messages,
    select_seen,
)


class ForwardModel(NamedTuple):
    """A language as it is read word by word, to its end: forward recursion from `first_S`, and what counting adds."""

    hmm: HMM  # with the end as its last state, class and word; trans_SxS leads to the next word's state
    first_S: np.ndarray  # weight of each state at the first word that is read
    weight_FxS: np.ndarray  # by what a state is weighted once F words were read, for how many may follow


def add_end_state(hmm: HMM) -> HMM:
    """The language with the end of a document as one more state, class and word, the last of each.

    It can follow the state `end`, with a weight of 1 beside the probabilities of what else can: `_compute_fit_weights`
    says when.
    """
    states, classes = hmm.class_SxC.shape
    trans_SxS, class_SxC = np.pad(hmm.trans_SxS, (0, 1)), np.pad(hmm.class_SxC, (0, 1))
    trans_SxS[hmm.end, states] = 1
    class_SxC[states, classes] = 1
    by_topic_TxW, by_name_MxW = map_latents(hmm, lambda by_ZxW, _: np.pad(by_ZxW, ((0, 0), (0, 1)), constant_values=1))
    favorites = hmm.favorites
    if favorites is not None:
        ends = 0, favorites.lemma_W.max() + 1, 1
        of_words = (np.append(x_W, x) for x_W, x in zip(favorites, ends, strict=False))
        favorites = Favorites(*of_words, prob_F=favorites.prob_F)
    return hmm._replace(
        trans_SxS=trans_SxS,
        class_SxC=class_SxC,
        class_W=np.append(hmm.class_W, classes),
        topic_emission_TxW=by_topic_TxW,
        name_emission_MxW=by_name_MxW,
        favorites=favorites,
    )


def append_end(hmm: HMM, words_NxL: np.ndarray) -> np.ndarray:
    """tokens_NxP: the rows with the word that `add_end_state` adds after the last word of each."""
    tokens_NxP = np.pad(words_NxL, ((0, 0), (0, 1)), constant_values=-1)
    end_N = np.where(words_NxL >= 0, np.arange(1, tokens_NxP.shape[1]), 0).max(1)
    tokens_NxP[np.arange(len(tokens_NxP)), end_N] = len(hmm.class_W)
    return tokens_NxP


def _compute_fit_weights(hmm, length):
    """weight_FxS: P(the sentence of the next word fits | its state), or for the end that the next sentence does not."""
    fits_FxS, unfit_F = compute_fit_probs(hmm, length)
    unfit_F[0] = 0  # a first sentence that does not fit is sampled again
    return np.concatenate([fits_FxS, unfit_F[:, None]], 1)


def _compute_latent_log_odds(by_ZxW, prior_Z, words_BxL, seen_BxL):
    """Log-odds of each latent value given the words before each place, up to a constant over values."""
    clue_WxZ = jnp.log(by_ZxW).T
    clue_WxZ -= clue_WxZ.max(-1, keepdims=True)  # leaves the likely values near 0, where float32 is fine
    clue_BxLxZ = jnp.where(seen_BxL[:, :, None], clue_WxZ[words_BxL], 0)
    earlier_BxLxZ = jnp.pad(clue_BxLxZ[:, :-1], ((0, 0), (1, 0), (0, 0)))
    return jnp.log(prior_Z) + jnp.cumsum(earlier_BxLxZ, 1)


def _infer_prefixes(hmm, words_BxL, first_BxS):
    """What the words before each place tell: a weight for each state there, whatever fits, and the latents' log-odds.

    first_BxS: the weights at the leftmost place that holds a word.
    """
    seen_BxL = words_BxL >= 0
    evidence_LxBxS = compute_class_evidence(hmm, words_BxL, seen_BxL)
    state_BxLxS = scan_messages(hmm.trans_SxS, evidence_LxBxS, seen_BxL.T, first_BxS).swapaxes(0, 1)
    return state_BxLxS, *map_latents(hmm, _compute_latent_log_odds, words_BxL, seen_BxL)


@jax.jit
def _infer_examples(hmm, first_S, weight_FxS, words_BxP, written_BxP):
    first_BxS = jnp.broadcast_to(first_S, (len(words_BxP), len(first_S)))
    state_BxPxS, topic_BxPxT, name_BxPxM = _infer_prefixes(hmm, words_BxP, first_BxS)
    return compute_class_probs(hmm, state_BxPxS * weight_FxS[written_BxP]), topic_BxPxT, name_BxPxM


@jax.jit
def _infer_windows(hmm, weight_FxS, words_BxI, written_B, first_BxS):
    state_BxIxS, topic_BxIxT, name_BxIxM = _infer_prefixes(hmm, words_BxI, first_BxS)
    return compute_class_probs(hmm, state_BxIxS[:, -1] * weight_FxS[written_B]), topic_BxIxT[:, -1], name_BxIxM[:, -1]


def _compute_posterior(reader, words_NxL, window) -> Posterior:
    """The exact distribution of each word and of each row's end given the words before it, for `reader.hmm`.

    One pass of forward recursion (Rabiner 1989, section III.A). The queried places are those of `append_end`.
    Raises ValueError for a row that cannot begin as it does; where a true word is impossible its probability is 0.
    """
    queried = np.nonzero(append_end(reader.hmm, words_NxL) >= 0)
    words_NxP = np.pad(words_NxL, ((0, 0), (0, 1)), constant_values=-1)
    # Words before each place; no more than a document may hold, as in a longer row one of them has probability 0.
    written_NxP = np.minimum((words_NxP >= 0).cumsum(1) - (words_NxP >= 0), len(reader.weight_FxS) - 1)
    hmm, weight_FxS = put_on_device(reader.hmm), jnp.asarray(reader.weight_FxS)
    if window is None:
        infer = functools.partial(_infer_examples, hmm, jnp.asarray(reader.first_S), weight_FxS)
        found = map_batches(infer, EXAMPLE_BATCH, words_NxP, written_NxP)
        seen_KxP = select_seen(reader.hmm, words_NxP, np.zeros(words_NxP.shape, bool), *queried, left=True)
        return make_posterior(*queried, *(x_NxPxZ[queried] for x_NxPxZ in found), seen_KxL=seen_KxP)
    (row_K, column_K), written_K = queried, written_NxP[queried]
    column_KxI = column_K[:, None] + np.arange(-window, 1)
    near_KxI = words_NxP[row_K[:, None], np.maximum(column_KxI, 0)]
    words_KxI = np.where(column_KxI >= 0, near_KxI, -1)
    before_FxS = [reader.first_S]
    for _ in reader.weight_FxS[1:]:
        before_FxS.append(before_FxS[-1] @ reader.hmm.trans_SxS)
    first_KxS = np.array(before_FxS)[np.maximum(written_K - window, 0)]
    infer = functools.partial(_infer_windows, hmm, weight_FxS)
    found = map_batches(infer, WINDOW_BATCH, words_KxI, written_K, first_KxS)
    seen_KxI = words_KxI[:, :-1] if reader.hmm.favorites else words_KxI[:, :0]
    return make_posterior(*queried, *found, seen_KxL=seen_KxI)


def compute_causal_posterior(hmm: HMM, words_NxL: np.ndarray, length: int, window: int | None = None) -> Posterior:
    """Exact distributions from left to right: of each word given those to the left, and of the document's end.

    window: given the last `window` words alone, and how many words were read already. A model with a window knows the
    latter only near the row's start, where words are missing. So no model that sees these words alone can do better,
    whether it knows its place or not.
    """
    language = add_end_state(hmm)
    reader = ForwardModel(language, np.append(hmm.initial, 0), _compute_fit_weights(hmm, length))
    return _compute_posterior(reader, words_NxL, window)


def reverse_words(hmm: HMM, words_NxL: np.ndarray) -> np.ndarray:
    """tokens_NxP: the rows from right to left, then the word that `add_end_state` adds: their beginning."""
    return append_end(hmm, words_NxL[:, ::-1])


def compute_backward_posterior(hmm: HMM, words_NxL: np.ndarray, length: int, window: int | None = None) -> Posterior:
    """Exact distributions of each word given those to the right, and of the document's beginning.

    Rows and columns of the queried places are those of `reverse_words`. window: as in `compute_causal_posterior`.
    """
    trans_SxS = np.pad(hmm.trans_SxS.T, (0, 1))
    trans_SxS[:-1, -1] = hmm.initial  # what comes before the first word acts as `end` does
    last_S = np.append(hmm.is_end, 0.0)
    language = add_end_state(hmm)._replace(trans_SxS=trans_SxS)
    # Weights: P(state at the next word to the left, and that the document ends F words further); P(it begins there).
    (before_LxS, _), (_, unfit_F) = compute_state_marginals(hmm, length), compute_fit_probs(hmm, length)
    state_FxS = [unfit_F[read + 1 :] @ before_LxS[: length - read] for read in range(length + 1)]
    reader = ForwardModel(language, last_S, np.concatenate([state_FxS, unfit_F[:, None]], 1))
    return _compute_posterior(reader, words_NxL[:, ::-1], window)


def predict_next_word(language: Language, text: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The words of the language and, last, "" for the document's end; and log_W, the log-probability that each follows.

    Raises ConfigError for a word that is not the language's, and for a text that no document begins with.
    """
    grammar = build_grammar(language)
    words_1xL = encode_texts(grammar, [text])
    no_document = f"how a document of at most {language.max_words} words begins, after which more may come"
    errors.require(words_1xL.shape[1] <= language.max_words, "text", text, no_document)
    try:
        known = compute_causal_posterior(grammar.hmm, words_1xL, language.max_words)
    except ValueError:
        raise errors.ConfigError(f"text = {errors.format_value(text)}: expected {no_document}") from None
    last = type(known)(*(x_Kx[-1:] for x_Kx in known))
    return (*grammar.words, ""), compute_log_probs(add_end_state(grammar.hmm), last)[0]
