"""A hidden Markov model that writes documents under two document-level latents; samples of it and its marginals.

Letters in array names: S states, C classes, W words, T topics, M names, F fields, N rows of words, D documents, L
places of a document, P counts of words from 0 to the most that a document may hold.
"""

from typing import NamedTuple

import numpy as np


class Floor(NamedTuple):
    """Sums over the predicted words of each row: their nats, how many are the likeliest word, their number."""

    nats_N: np.ndarray
    correct_N: np.ndarray
    count_N: np.ndarray


class Favorites(NamedTuple):
    """Lemmas that a document repeats: one of each field of words, drawn as a word of the field is.

    Given the field, a word's lemma is the document's favorite with probability `prob_F`, else any: `base_W`. A lemma's
    forms share its field, so that one favorite serves the words of several classes. Given any words of a document, its
    favorites are independent of each other and of all else (`HMM`).
    """

    field_W: np.ndarray  # field of a word, int; 0 for a word without a favorite
    lemma_W: np.ndarray  # lemma of a word, int; a class has one form of it at most
    base_W: np.ndarray  # P(lemma | field), also that it is the favorite; 1 for a word without
    prob_F: np.ndarray  # P(the favorite of a field is repeated), below 1; 0 of the words without, field 0


class HMM(NamedTuple):
    """Hidden Markov model under two document-level latents, a topic and a name; float64 on the host.

    P(word | state, topic, name) = P(class of the word | state) * by_topic[topic, word] * by_name[name, word],
    where for each class by_topic or by_name is 1 throughout. A last factor is that of `Favorites`, if there are any;
    where a class has them, the first two choose the field. So a visible word's evidence on the state does not depend
    on the latents, nor its evidence on one latent on the state or on the other latent. Given any set of visible words
    the three are independent, and one forward-backward pass serves all values of the latents.

    A document starts as if it followed the `end` state and stops at its last `end` state within so many words: the
    sentence then begun did not fit. As `end` forgets what came before it, the probability of that depends on the
    document's length alone. Given its length, therefore, a document is the chain forced to be in `end` at the last
    word, and the length tells nothing more.
    """

    end: np.ndarray  # state (int) that ends a sentence, or states, each as likely before the first word
    trans_SxS: np.ndarray  # P(next state | state)
    class_SxC: np.ndarray  # P(class | state)
    class_W: np.ndarray  # class of a word, int
    topic_T: np.ndarray  # P(topic)
    topic_emission_TxW: np.ndarray  # P(word | its class, topic); 1 in classes that depend on the name
    name_M: np.ndarray  # P(name)
    name_emission_MxW: np.ndarray  # P(word | its class, name); 1 in classes that do not depend on it
    favorites: Favorites | None = None  # P(word | its field, the document's favorite of it)

    @property
    def initial(self) -> np.ndarray:
        """P(state at the first word)."""
        return self.trans_SxS[self.end.reshape(-1)].mean(0)

    @property
    def is_end(self) -> np.ndarray:
        """Whether a state ends a sentence."""
        return (np.arange(len(self.trans_SxS)) == self.end.reshape(-1, 1)).any(0)


def _build_cdf(share_RxX: np.ndarray) -> np.ndarray:
    """Cumulative shares, row r raised by r, laid end to end: one sorted array that inverts each row's distribution."""
    total_RxX = np.cumsum(share_RxX, 1) / share_RxX.sum(1, keepdims=True)
    total_RxX[total_RxX >= total_RxX[:, -1:]] = 1  # rounding must leave no gap at the end, nor reach what has no share
    return (total_RxX + np.arange(len(share_RxX))[:, None]).ravel()


def _invert_cdf(cumulated: np.ndarray, width: int, row: np.ndarray | int, uniform: np.ndarray) -> np.ndarray:
    """The outcome of each distribution `row` at each uniform number."""
    # Adding the row's number can round a number just below 1 up to it, which would be the next row's first outcome.
    value = np.minimum(row + uniform, np.nextafter(row + 1.0, 0))
    return np.searchsorted(cumulated, value, side="right") - row * width


def _sample(share_RxX: np.ndarray, row: np.ndarray | int, uniform: np.ndarray) -> np.ndarray:
    """`_invert_cdf` of the distributions with these shares."""
    return _invert_cdf(_build_cdf(share_RxX), share_RxX.shape[1], row, uniform)


def _make_streams(seed, start, count):
    return [np.random.Generator(np.random.Philox(key=[seed, i])) for i in range(start, start + count)]


def _sample_latents(hmm, streams):
    for_topic_D, for_name_D = np.stack([stream.random(2) for stream in streams]).T
    return _sample(hmm.topic_T[None], 0, for_topic_D), _sample(hmm.name_M[None], 0, for_name_D)


def sample_latents(hmm: HMM, seed: int, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """topic_D and name_D of documents start to start + count, as `sample_documents` samples them."""
    return _sample_latents(hmm, _make_streams(seed, start, count))


def _sample_favorites(favorites, streams):
    """favorite_DxF: the favorite lemma of each field."""
    fields = len(favorites.prob_F)
    favorite_DxF = np.zeros((len(streams), fields), int)
    uniform_DxF = np.stack([stream.random(fields) for stream in streams])
    _, first_U = np.unique(favorites.lemma_W, return_index=True)  # a word of each lemma
    for field in range(1, fields):
        member_U = first_U[favorites.field_W[first_U] == field]
        drawn_D = _sample(favorites.base_W[None, member_U], 0, uniform_DxF[:, field])
        favorite_DxF[:, field] = favorites.lemma_W[member_U][drawn_D]
    return favorite_DxF


def _find_forms(hmm, class_DxL, lemma_DxL):
    """The word of each class and lemma; any, if there is none."""
    lemma_W = hmm.favorites.lemma_W
    key_W = hmm.class_W * (lemma_W.max() + 1) + lemma_W
    order_W = key_W.argsort()
    at_DxL = np.searchsorted(key_W[order_W], class_DxL * (lemma_W.max() + 1) + lemma_DxL)
    return order_W[np.minimum(at_DxL, len(order_W) - 1)]


def _sample_words(hmm, class_DxL, topic_D, name_D, uniform_DxL):
    """A word of each class under the document's topic and name."""
    words_DxL = np.zeros(class_DxL.shape, int)
    for one in np.unique(class_DxL):
        (member_W,) = np.nonzero(hmm.class_W == one)
        row_K, column_K = np.nonzero(class_DxL == one)
        by_name = (hmm.name_emission_MxW[:, member_W] != 1).any()
        table_ZxW, latent_D = (hmm.name_emission_MxW, name_D) if by_name else (hmm.topic_emission_TxW, topic_D)
        table_ZxW = table_ZxW[:, member_W] * (1 if hmm.favorites is None else hmm.favorites.base_W[member_W])
        drawn_K = _sample(table_ZxW, latent_D[row_K], uniform_DxL[row_K, column_K])
        words_DxL[row_K, column_K] = member_W[drawn_K]
    return words_DxL


def sample_documents(
    hmm: HMM, length: int, seed: int, start: int, count: int, topic_D: np.ndarray | None = None
) -> np.ndarray:
    """Documents start to start + count, each as many sentences as fit in `length` words.

    topic_D: their topics, if not those of `sample_latents`. Returns words_DxL, int32, -1 after a document's end.
    Document i depends on seed and i alone: its numbers come from the counter-based generator of Salmon et al. 2011
    keyed by the two. A first sentence that does not fit is sampled again, so a `length` that no sentence fits in never
    returns.
    """
    states = len(hmm.trans_SxS)
    trans = _build_cdf(np.concatenate([hmm.trans_SxS, hmm.initial[None]]))
    favorites = hmm.favorites
    streams = _make_streams(seed, start, count)
    drawn_D, name_D = _sample_latents(hmm, streams)
    favorite_DxF = None if favorites is None else _sample_favorites(favorites, streams)
    topic_D = drawn_D if topic_D is None else topic_D
    words_DxL = np.full((count, length), -1, np.int32)
    open_D = np.arange(count)
    while open_D.size:
        uniform_DxLxU = np.stack([streams[d].random((length, 3 if favorites is None else 4)) for d in open_D])
        state_DxL = np.empty((len(open_D), length), int)
        state_D = np.full(len(open_D), states)
        for m in range(length):
            state_DxL[:, m] = state_D = _invert_cdf(trans, states, state_D, uniform_DxLxU[:, m, 0])
        class_DxL = _sample(hmm.class_SxC, state_DxL, uniform_DxLxU[..., 1])
        drawn_DxL = _sample_words(hmm, class_DxL, topic_D[open_D], name_D[open_D], uniform_DxLxU[..., 2])
        if favorites is not None and favorite_DxF is not None:
            wanted_DxL = np.take_along_axis(favorite_DxF[open_D], favorites.field_W[drawn_DxL], 1)
            is_repeat_DxL = uniform_DxLxU[..., 3] < favorites.prob_F[favorites.field_W[drawn_DxL]]
            drawn_DxL = np.where(is_repeat_DxL, _find_forms(hmm, class_DxL, wanted_DxL), drawn_DxL)
        last_D = np.where(hmm.is_end[state_DxL], np.arange(length), -1).max(1)
        words_DxL[open_D] = np.where(np.arange(length) <= last_D[:, None], drawn_DxL, -1)
        open_D = open_D[last_D < 0]
    return words_DxL


def compute_favorite_log_likelihood(favorites: Favorites, words_NxL: np.ndarray, seen_NxL: np.ndarray) -> np.ndarray:
    """log P(lemmas seen | their fields) of each row, the favorites summed out: log_N, float64.

    The evidence of a field is 1 + sum over its lemmas of P(favorite) * (r^n - 1) for n repeats; word by word, each adds
    p / (1 - p) * r^(repeats before it), as P(favorite) * (r - 1) = p / (1 - p) in `Favorites`.
    """
    field_NxL = np.where(seen_NxL & (words_NxL >= 0), favorites.field_W[words_NxL], 0)
    lemma_NxL = np.where(field_NxL > 0, favorites.lemma_W[words_NxL], -1)
    before_NxL = np.tril(lemma_NxL[:, :, None] == lemma_NxL[:, None], -1).sum(2)
    prob_NxL, base_NxL = favorites.prob_F[field_NxL], np.where(field_NxL > 0, favorites.base_W[words_NxL], 1)
    with np.errstate(divide="ignore"):
        odds_NxL = np.log(prob_NxL / (1 - prob_NxL)) + before_NxL * np.log1p(prob_NxL / (1 - prob_NxL) / base_NxL)
    evidence_NxF = np.zeros((len(words_NxL), len(favorites.prob_F)))
    np.logaddexp.at(evidence_NxF, (np.arange(len(words_NxL))[:, None], field_NxL), odds_NxL)
    return np.log((1 - prob_NxL) * base_NxL).sum(1) + evidence_NxF.sum(1)


def compute_state_marginals(hmm: HMM, length: int) -> tuple[np.ndarray, np.ndarray]:
    """What the place in a document tells of the state when no word is seen.

    Returns before_LxS, P(state at word l, from 0), and after_LxS, P(the state after l further words is `end` | state).
    """
    before_LxS, after_LxS = [hmm.initial], [hmm.is_end.astype(float)]
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
    return softmax(np.log(hmm.topic_T) + compute_topic_log_likelihood(hmm, words_NxL))


def softmax(odds_NxZ: np.ndarray) -> np.ndarray:
    """Probabilities of log-odds; scipy's would be loaded in every run."""
    weight_NxZ = np.exp(odds_NxZ - odds_NxZ.max(-1, keepdims=True))
    return weight_NxZ / weight_NxZ.sum(-1, keepdims=True)


def compute_fit_probs(hmm: HMM, length: int) -> tuple[np.ndarray, np.ndarray]:
    """What the place in a document tells of whether a sentence fits in its `length` words.

    Returns fits_PxS, P(the sentence of word p, from 0, ends in time | state at that word), 0 where p is `length`, and
    unfit_P, P(the next sentence does not | a sentence, or none yet, has ended with p words written).
    """
    is_end_S = hmm.is_end
    fits_PxS = [np.zeros(len(is_end_S))]
    open_PxS = [is_end_S / is_end_S.sum()]  # P(state, no further end | p words after an end)
    for _ in range(length):
        fits_PxS.append(np.where(is_end_S, 1, hmm.trans_SxS @ fits_PxS[-1]))
        open_PxS.append(open_PxS[-1] @ (hmm.trans_SxS * ~is_end_S))
    return np.array(fits_PxS[::-1]), np.sum(open_PxS, 1)[::-1]
