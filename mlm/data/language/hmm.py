"""A hidden Markov model that writes documents under two document-level latents; samples of it and its marginals.

Letters in array names: S states, C classes, W words, T topics, M names, N rows of words, D documents, L places of a
document, P counts of words from 0 to the most that a document may hold.
"""

from typing import NamedTuple

import numpy as np


class HMM(NamedTuple):
    """Hidden Markov model under two document-level latents, a topic and a name; float64 on the host.

    P(word | state, topic, name) = P(class of the word | state) * by_topic[topic, word] * by_name[name, word],
    where for each class by_topic or by_name is 1 throughout. So a visible word's evidence on the state does not depend
    on the latents, nor its evidence on one latent on the state or on the other latent. Given any set of visible words
    the three are independent, and one forward-backward pass serves all values of the latents.

    A document starts as if it followed the `end` state and stops at its last `end` state within so many words: the
    sentence then begun did not fit. As `end` forgets what came before it, the probability of that depends on the
    document's length alone. Given its length, therefore, a document is the chain forced to be in `end` at the last
    word, and the length tells nothing more.
    """

    end: np.ndarray  # state (int) that ends a sentence
    trans_SxS: np.ndarray  # P(next state | state)
    class_SxC: np.ndarray  # P(class | state)
    class_W: np.ndarray  # class of a word, int
    topic_T: np.ndarray  # P(topic)
    topic_emission_TxW: np.ndarray  # P(word | its class, topic); 1 in classes that depend on the name
    name_M: np.ndarray  # P(name)
    name_emission_MxW: np.ndarray  # P(word | its class, name); 1 in classes that do not depend on it


def _build_cdf(share_RxX: np.ndarray) -> np.ndarray:
    """Cumulative shares, row r raised by r, laid end to end: one sorted array that inverts each row's distribution."""
    total_RxX = np.cumsum(share_RxX, 1) / share_RxX.sum(1, keepdims=True)
    total_RxX[total_RxX >= total_RxX[:, -1:]] = 1  # rounding must leave no gap at the end, nor reach what has no share
    return (total_RxX + np.arange(len(share_RxX))[:, None]).ravel()


def _invert_cdf(cumulated: np.ndarray, width: int, row: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The outcome of each distribution `row` at each uniform number."""
    # Adding the row's number can round a number just below 1 up to it, which would be the next row's first outcome.
    value = np.minimum(row + uniform, np.nextafter(row + 1.0, 0))
    return np.searchsorted(cumulated, value, side="right") - row * width


def _make_streams(seed, start, count):
    return [np.random.Generator(np.random.Philox(key=[seed, i])) for i in range(start, start + count)]


def _sample_latents(hmm, streams):
    latent_Dx2 = np.stack([stream.random(2) for stream in streams])
    none_D = np.zeros(len(streams), int)
    return (
        _invert_cdf(_build_cdf(hmm.topic_T[None]), len(hmm.topic_T), none_D, latent_Dx2[:, 0]),
        _invert_cdf(_build_cdf(hmm.name_M[None]), len(hmm.name_M), none_D, latent_Dx2[:, 1]),
    )


def sample_latents(hmm: HMM, seed: int, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """topic_D and name_D of documents start to start + count, as `sample_documents` samples them."""
    return _sample_latents(hmm, _make_streams(seed, start, count))


def sample_documents(
    hmm: HMM, length: int, seed: int, start: int, count: int, topic_D: np.ndarray | None = None
) -> np.ndarray:
    """Documents start to start + count, each as many sentences as fit in `length` words.

    topic_D: their topics, if not those of `sample_latents`. Returns words_DxL, int32, -1 after a document's end.
    Document i depends on seed and i alone: its numbers come from the counter-based generator of Salmon et al. 2011
    keyed by the two. A first sentence that does not fit is sampled again, so a `length` that no sentence fits in never
    returns.
    """
    states, classes = hmm.class_SxC.shape
    vocabulary = len(hmm.class_W)
    member_CxW = np.arange(classes)[:, None] == hmm.class_W
    by_name_C = np.array([(hmm.name_emission_MxW[:, member_W] != 1).any() for member_W in member_CxW])
    trans, kind = _build_cdf(hmm.trans_SxS), _build_cdf(hmm.class_SxC)
    word = _build_cdf(
        np.concatenate(
            [
                (table_ZxW[:, None] * member_CxW).reshape(-1, vocabulary)
                for table_ZxW in (hmm.topic_emission_TxW, hmm.name_emission_MxW)
            ]
        )
    )
    streams = _make_streams(seed, start, count)
    drawn_D, name_D = _sample_latents(hmm, streams)
    topic_D = drawn_D if topic_D is None else topic_D
    words_DxL = np.full((count, length), -1, np.int32)
    open_D = np.arange(count)
    while open_D.size:
        uniform_DxLx3 = np.stack([streams[d].random((length, 3)) for d in open_D])
        state_DxL = np.empty((len(open_D), length), int)
        state_D = np.full(len(open_D), int(hmm.end))
        for m in range(length):
            state_DxL[:, m] = state_D = _invert_cdf(trans, states, state_D, uniform_DxLx3[:, m, 0])
        class_DxL = _invert_cdf(kind, classes, state_DxL, uniform_DxLx3[..., 1])
        latent_DxL = np.where(by_name_C[class_DxL], len(hmm.topic_T) + name_D[open_D, None], topic_D[open_D, None])
        drawn_DxL = _invert_cdf(word, vocabulary, latent_DxL * classes + class_DxL, uniform_DxLx3[..., 2])
        last_D = np.where(state_DxL == hmm.end, np.arange(length), -1).max(1)
        words_DxL[open_D] = np.where(np.arange(length) <= last_D[:, None], drawn_DxL, -1)
        open_D = open_D[last_D < 0]
    return words_DxL


def compute_state_marginals(hmm: HMM, length: int) -> tuple[np.ndarray, np.ndarray]:
    """What the place in a document tells of the state when no word is seen.

    Returns before_LxS, P(state at word l, from 0), and after_LxS, P(the state after l further words is `end` | state).
    """
    before_LxS, after_LxS = [hmm.trans_SxS[hmm.end]], [np.eye(len(hmm.trans_SxS))[hmm.end]]
    for _ in range(length - 1):
        before_LxS.append(before_LxS[-1] @ hmm.trans_SxS)
        after_LxS.append(hmm.trans_SxS @ after_LxS[-1])
    return np.array(before_LxS), np.array(after_LxS)


def compute_topic_log_likelihood(hmm: HMM, words_NxL: np.ndarray) -> np.ndarray:
    """log P(words | their states, name, topic) of each topic, NxT, up to a constant of the example.

    Given the words the topic depends on no state, as only the class of a word does (`HMM`).
    """
    log_WxT = np.log(hmm.topic_emission_TxW).T
    return np.where((words_NxL >= 0)[:, :, None], log_WxT[words_NxL], 0).sum(1)


def compute_topic_posterior(hmm: HMM, words_NxL: np.ndarray) -> np.ndarray:
    """P(topic | words), NxT; words_NxL: -1 where there is none."""
    odds_NxT = np.log(hmm.topic_T) + compute_topic_log_likelihood(hmm, words_NxL)
    weight_NxT = np.exp(odds_NxT - odds_NxT.max(1, keepdims=True))
    return weight_NxT / weight_NxT.sum(1, keepdims=True)


def compute_fit_probs(hmm: HMM, length: int) -> tuple[np.ndarray, np.ndarray]:
    """What the place in a document tells of whether a sentence fits in its `length` words.

    Returns fits_PxS, P(the sentence of word p, from 0, ends in time | state at that word), 0 where p is `length`, and
    unfit_P, P(the next sentence does not | a sentence, or none yet, has ended with p words written).
    """
    is_end_S = np.arange(len(hmm.trans_SxS)) == hmm.end
    fits_PxS = [np.zeros(len(is_end_S))]
    open_PxS = [np.eye(len(is_end_S))[hmm.end]]  # P(state, no further end | p words after an end)
    for _ in range(length):
        fits_PxS.append(np.where(is_end_S, 1, hmm.trans_SxS @ fits_PxS[-1]))
        open_PxS.append(open_PxS[-1] @ (hmm.trans_SxS * ~is_end_S))
    return np.array(fits_PxS[::-1]), np.sum(open_PxS, 1)[::-1]
