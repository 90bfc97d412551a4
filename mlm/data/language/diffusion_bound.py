"""The bound of a diffusion model on a document's log-probability, and what it comes to where the model is exact.

A row of n words has k of them hidden by [MASK], k uniform on 1 to n and the places uniform given k; its loss is n / k
times the nats of the hidden words (MDLM, Sahoo et al. 2024, equation 10; LLaDA, Nie et al. 2025, equation 3, with k / n
for their rate t). Word by word in a random order, the step that leaves k - 1 hidden costs the mean nats of k hidden
words; so by the chain rule the loss is expected to be -log P(words | their number) of an exact denoiser, and more of
any other. The number is not to be had for nothing: a causal model pays for it when it predicts the end. By `HMM` it
tells no more than that the chain is in `end` at the last word, and `compute_length_log_probs` is what it costs.

Letters in array names: N rows, L places, P counts of words, S states, Z latent values, R masked rows, r of a batch.
"""

from collections.abc import Sequence

import numpy as np

from mlm.base.config import Language
from mlm.data.language.floor import compute_masked_floor
from mlm.data.language.grammar import build_grammar, encode_texts
from mlm.data.language.hmm import (
    HMM,
    Floor,
    compute_favorite_log_likelihood,
    compute_fit_probs,
    compute_state_marginals,
)
from mlm.data.language.posterior import compute_posterior, map_latents, predict_words

MASK_BATCH = 8192  # at a time: bounds memory, changes no result


def compute_length_log_probs(hmm: HMM, length: int) -> np.ndarray:
    """log_P: the log-probability that a document holds so many words, from 0 to `length`, the most that it may."""
    before_LxS, _ = compute_state_marginals(hmm, length)
    _, unfit_P = compute_fit_probs(hmm, length)
    with np.errstate(divide="ignore"):
        return np.log(np.append(0, before_LxS @ hmm.is_end) * unfit_P / (1 - unfit_P[0]))


def compute_log_probs(hmm: HMM, words_NxL: np.ndarray, seen_NxL: np.ndarray) -> np.ndarray:
    """log_N: the log-probability of the words at the places seen, given how many words each row has; float64.

    -inf where that is 0, NaN where no document has so many words. Forward recursion over the states with the unseen
    words summed out, once for all topics and names, which are independent of them (`HMM`).
    """
    valid_NxL = words_NxL >= 0
    seen_NxL = seen_NxL & valid_NxL
    ahead_NxS = np.tile(hmm.is_end / hmm.is_end.sum(), (len(words_NxL), 1))
    alone_NxS = ahead_NxS  # the same without any word seen
    scale_N = np.zeros(len(words_NxL))
    with np.errstate(divide="ignore", invalid="ignore"):
        for words_N, valid_N, seen_N in zip(words_NxL.T, valid_NxL.T, seen_NxL.T, strict=True):
            class_NxS = np.where(seen_N[:, None], hmm.class_SxC.T[hmm.class_W[words_N]], 1)
            onward_NxS = ahead_NxS @ hmm.trans_SxS * class_NxS
            total_N = onward_NxS.sum(1)
            scale_N += np.where(valid_N, np.log(total_N), 0)
            ahead_NxS = np.where(valid_N[:, None], onward_NxS / np.where(total_N > 0, total_N, 1)[:, None], ahead_NxS)
            alone_NxS = np.where(valid_N[:, None], alone_NxS @ hmm.trans_SxS, alone_NxS)
        of_states_N = scale_N + np.log(ahead_NxS @ hmm.is_end) - np.log(alone_NxS @ hmm.is_end)

        def of_latent(by_ZxW, prior_Z):
            clue_NxLxZ = np.where(seen_NxL[:, :, None], np.log(by_ZxW.T)[words_NxL], 0)
            return np.logaddexp.reduce(np.log(prior_Z) + clue_NxLxZ.sum(1), axis=1)

        topic_N, name_N = map_latents(hmm, of_latent)
        log_N = of_states_N + topic_N + name_N
    if hmm.favorites is None:
        return log_N
    return log_N + compute_favorite_log_likelihood(hmm.favorites, words_NxL, seen_NxL)


def compute_document_log_probs(language: Language, texts: Sequence[str]) -> np.ndarray:
    """log_N: the exact log-probability of each text as a document of a resolved language; -inf of what is none.

    Summed over all of them it is 1. Raises ConfigError for a word that is not the language's.
    """
    grammar = build_grammar(language)
    words_NxL = encode_texts(grammar, texts)
    log_P = compute_length_log_probs(grammar.hmm, language.max_words)
    log_P = np.append(log_P, -np.inf)  # of any more words
    length_N = log_P[np.minimum((words_NxL >= 0).sum(1), language.max_words + 1)]
    words_N = compute_log_probs(grammar.hmm, words_NxL, words_NxL >= 0)
    return np.where(length_N > -np.inf, words_N + length_N, -np.inf)


def reweight_floor(found: Floor, words_NxL: np.ndarray) -> Floor:
    """A floor under masks as diffusion weighs them: n / k times the nats of a row's k hidden words, over its n words.

    What is right is weighed alike, so that the accuracy is that of a hidden word with as many others hidden.
    """
    times_N = compute_loss_weights(words_NxL, found.count_N)
    return Floor(found.nats_N * times_N, found.correct_N * times_N, (words_NxL >= 0).sum(1))


def compute_loss_weights(words_NxL: np.ndarray, hidden_N: np.ndarray) -> np.ndarray:
    """n / k of rows of n words, of which k are hidden."""
    return (words_NxL >= 0).sum(1) / np.maximum(hidden_N, 1)


def sample_covering_masks(place_n: np.ndarray, k: int, length: int, stream: np.random.Generator) -> np.ndarray:
    """masked_RxL: masks of k of these places, each uniform among all such masks, that spare their mean most of chance.

    In a random order the places are hidden k at a time, or where fewer are left to be seen, seen so many at a time;
    the last turn takes the first places once more where they are not enough.
    """
    few = min(k, len(place_n) - k)
    count = -(-len(place_n) // few) if few else 1
    turn_RxF = np.resize(stream.permutation(place_n), count * few).reshape(count, few)
    masked_RxL = np.zeros((count, length), bool)
    masked_RxL[:, place_n] = few < k
    np.put_along_axis(masked_RxL, turn_RxF, few == k, axis=1)
    return masked_RxL


def compute_random_order_loss(hmm: HMM, words_NxL: np.ndarray, seed: int) -> np.ndarray:
    """nats_N: what the exact posterior loses by one word of each row under masks of every size, each of which hides
    what another one does and one word more: that word, any of the hidden as likely.

    Its expectation is that of `compute_integrated_loss`, with chance that cancels: by the chain rule it is
    -`compute_log_probs` in any order.
    """
    stream = np.random.default_rng(seed)
    place_NxL = np.where(words_NxL >= 0, stream.random(words_NxL.shape), 2).argsort(1).argsort(1)  # in the order
    row_R, told_R = np.nonzero(np.arange(words_NxL.shape[1]) < (words_NxL >= 0).sum(1)[:, None])
    nats_N = np.zeros(len(words_NxL))
    for begin in range(0, len(row_R), MASK_BATCH):
        row_r, told_rx1 = row_R[begin : begin + MASK_BATCH], told_R[begin : begin + MASK_BATCH, None]
        words_rxL, place_rxL = words_NxL[row_r], place_NxL[row_r]
        known = compute_posterior(hmm, words_rxL, (place_rxL >= told_rx1) & (words_rxL >= 0), place_rxL == told_rx1)
        nats_N -= np.bincount(row_r, predict_words(hmm, known, words_rxL)[0], len(words_NxL))
    return nats_N


def compute_integrated_loss(hmm: HMM, words_NxL: np.ndarray, seed: int, orders: int = 1) -> np.ndarray:
    """nats_N: the loss of the exact posterior over masks of every size, in so many random orders; its
    expectation is -`compute_log_probs` of the rows. Some 2 n log n masks a row and order.
    """
    stream = np.random.default_rng(seed)
    nats_N = np.zeros(len(words_NxL))
    for _ in range(orders):
        masked, share, of_row = [], [], []
        for row, words_L in enumerate(words_NxL):
            place_n = np.flatnonzero(words_L >= 0)
            for k in range(1, len(place_n) + 1):
                masked.append(sample_covering_masks(place_n, k, len(words_L), stream))
                share += [1 / (k * len(masked[-1]))] * len(masked[-1])  # P(k) is 1 / n, the weight n / k
                of_row += [row] * len(masked[-1])
        masked_RxL, of_row_R = np.concatenate(masked), np.array(of_row)
        batches = (slice(begin, begin + MASK_BATCH) for begin in range(0, len(of_row), MASK_BATCH))
        parts = [compute_masked_floor(hmm, words_NxL[of_row_R[r]], masked_RxL[r]).nats_N for r in batches]
        nats_N += np.bincount(of_row_R, np.concatenate(parts) * share, len(words_NxL)) / orders
    return nats_N
