"""The exact distribution of hidden words given what is seen of their row, in a language that is an `HMM`.

Rows are arrays words_NxL of word indices, -1 in every place that holds no word ([CLS], [SEP], padding). The words of a
row are one contiguous run and one document (`sample_documents`).

Letters in array names: N rows, L places, K queried words of all rows, B rows or queried words of a batch, S states,
C classes, W words, T topics, M names, F fields, R forms of a lemma, X words to choose from, Z values of a latent, I
places of a window or a bag, U sets of places of a bag: integers whose bits tell which places a set holds.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base.special import MASK
from mlm.base.types import TeacherFn
from mlm.data.language.hmm import HMM, compute_state_marginals, softmax

BAG_SIZE = 5  # neighbours on each side whose order a bag can sum out: the work grows as 4 to this power
EXAMPLE_BATCH, WINDOW_BATCH, BAG_BATCH, WORD_BATCH = 128, 1024, 64, 2048  # batch sizes: bound memory, change no result
MIN_PROB = 1e-30


class Posterior(NamedTuple):
    """What is known of each queried word, as three distributions that are independent: see `compute_log_probs`.

    The fourth, of the document's favorites, follows from the words that were seen, and is computed where it is used.
    """

    example_K: np.ndarray
    position_K: np.ndarray
    class_KxC: np.ndarray
    topic_KxT: np.ndarray
    name_KxM: np.ndarray
    seen_KxL: np.ndarray  # the words that are seen, -1 elsewhere; no place where the language has no favorites


def map_batches(function: Callable, size: int, *arrays: np.ndarray):
    """function over the leading axis of arrays, `size` at a time, the last filled up: one shape compiles."""
    parts = []
    for begin in range(0, len(arrays[0]), size):
        batch = [array[begin : begin + size] for array in arrays]
        kept = len(batch[0])
        batch = [np.concatenate([part, np.repeat(part[:1], size - kept, 0)]) for part in batch]
        parts.append(jax.tree.map(lambda x, kept=kept: np.asarray(x)[:kept], function(*batch)))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def put_on_device(hmm: HMM) -> HMM:
    """The same HMM with arrays on JAX's default device."""
    return jax.tree.map(jnp.asarray, hmm)


def scan_messages(trans_SxS, evidence_LxBxS, valid_LxB, first_BxS, *, reverse: bool = False):
    """One direction of forward-backward (Rabiner 1989, section III.A): message_LxBxS into each place from one side.

    Messages are scaled to sum 1 at each step. Places that hold no word are passed over.
    """

    def step(message_BxS, inputs):
        evidence_BxS, valid_B = inputs
        onward_BxS = jnp.matmul(message_BxS * evidence_BxS, trans_SxS, precision=jax.lax.Precision.HIGHEST)
        scaled_BxS = onward_BxS / onward_BxS.sum(-1, keepdims=True)
        return jnp.where(valid_B[:, None], scaled_BxS, message_BxS), message_BxS

    return jax.lax.scan(step, first_BxS, (evidence_LxBxS, valid_LxB), reverse=reverse)[1]


def compute_class_evidence(hmm, words_BxL, visible_BxL):
    """evidence_LxBxS of masked rows: the likelihood of a visible word's class, and 1 where nothing is seen."""
    return jnp.where(visible_BxL[:, :, None], hmm.class_SxC.T[hmm.class_W[words_BxL]], 1).swapaxes(0, 1)


def compute_class_probs(hmm, state_xS):
    """P(class of the word) from the weight of each state; NaN where all weights are 0."""
    class_xC = jnp.matmul(state_xS, hmm.class_SxC, precision=jax.lax.Precision.HIGHEST)
    return class_xC / class_xC.sum(-1, keepdims=True)


def map_latents(hmm: HMM, function: Callable, *arrays) -> tuple:
    """function(P(word | its class, value), P(value), *arrays) of both latents, the topic and the name."""
    tables = (hmm.topic_emission_TxW, hmm.topic_T), (hmm.name_emission_MxW, hmm.name_M)
    return tuple(function(by_ZxW, prior_Z, *arrays) for by_ZxW, prior_Z in tables)


def compute_log_weights(by_ZxW, prior_Z):
    """Log-odds of a latent value by each word, finite even where impossible, to be subtracted again; and its prior."""
    return jnp.log(jnp.maximum(by_ZxW, MIN_PROB)).T, jnp.log(prior_Z)


def _compute_latent_log_odds(by_ZxW, prior_Z, words_BxL, seen_BxL):
    """Log-odds of each latent value given the seen words."""
    odds_WxZ, odds_Z = compute_log_weights(by_ZxW, prior_Z)
    return odds_Z + jnp.where(seen_BxL[..., None], odds_WxZ[words_BxL], 0).sum(-2)


_make_latent_tables = jax.jit(lambda hmm: map_latents(hmm, compute_log_weights))


@jax.jit
def _infer_examples(hmm, words_BxL, visible_BxL, first_BxS, last_BxS):
    evidence_LxBxS, valid_LxB = compute_class_evidence(hmm, words_BxL, visible_BxL), (words_BxL >= 0).T
    ahead_LxBxS = scan_messages(hmm.trans_SxS, evidence_LxBxS, valid_LxB, first_BxS)
    back_LxBxS = scan_messages(hmm.trans_SxS.T, evidence_LxBxS, valid_LxB, last_BxS, reverse=True)
    class_BxLxC = compute_class_probs(hmm, ahead_LxBxS * back_LxBxS).swapaxes(0, 1)
    return class_BxLxC, *map_latents(hmm, _compute_latent_log_odds, words_BxL, visible_BxL)


@jax.jit
def _infer_windows(hmm, words_BxL, visible_BxL, first_BxS, last_BxS):
    class_BxLxC, topic_BxT, name_BxM = _infer_examples(hmm, words_BxL, visible_BxL, first_BxS, last_BxS)
    return class_BxLxC[:, words_BxL.shape[1] // 2], topic_BxT, name_BxM


def _list_subsets(count: int, most: int) -> tuple[list[int], np.ndarray]:
    """All sets of at most `most` of `count` places, small ones first, and the row of each set; 0 where it has none."""
    sets = sorted((u for u in range(2**count) if u.bit_count() <= most), key=int.bit_count)
    index = np.zeros(2**count, int)
    index[sets] = np.arange(len(sets))
    return sets, index


def _sum_over_orders(trans_SxS, evidence_IxBxS, first_BxS, most: int):
    """message_UxBxS: onward from all orders of each set of `_list_subsets(I, most)`.

    Dynamic programming over subsets as in Bellman 1962 and Held & Karp 1962, with sums for minima.
    """
    sets, index = _list_subsets(len(evidence_IxBxS), most)
    message_UxBxS = first_BxS[None]  # of the empty set; the larger ones follow, size by size
    for size in range(1, most + 1):
        grown = [u for u in sets if u.bit_count() == size]
        # Any of a set's places may be the one that came last.
        last_UxI = np.array([[i for i in range(u.bit_length()) if u >> i & 1] for u in grown])
        rest_UxI = index[np.array(grown)[:, None] - 2**last_UxI]
        seen_UxBxS = sum(
            evidence_IxBxS[last_U] * message_UxBxS[rest_U]
            for last_U, rest_U in zip(last_UxI.T, rest_UxI.T, strict=True)
        )
        onward_UxBxS = jnp.matmul(seen_UxBxS, trans_SxS, precision=jax.lax.Precision.HIGHEST)
        message_UxBxS = jnp.concatenate([message_UxBxS, onward_UxBxS])
    return message_UxBxS


def _compute_middle_state(trans_SxS, evidence_LxBxS, held_BxL, first_BxS, last_BxS):
    """Weight of each state in the middle place, not knowing the order of the words around: state_BxS.

    evidence_LxBxS: likelihood of what is seen in each place, 0 in one that holds no word; held_BxL: whether it holds
    one; first_BxS, last_BxS: messages into the outermost places, from outside.
    """
    middle = held_BxL.shape[1] // 2
    place_I = np.delete(np.arange(held_BxL.shape[1]), middle)
    before_UxBxS = _sum_over_orders(trans_SxS, evidence_LxBxS[place_I], first_BxS, middle)
    after_UxBxS = _sum_over_orders(trans_SxS.T, evidence_LxBxS[place_I], last_BxS, middle)
    sets, index = _list_subsets(len(place_I), middle)
    held_BxI = held_BxL[:, place_I]

    # Of the words around, one set stands before the middle, as large as it was, and the rest after it.
    held_B = (held_BxI * 2 ** np.arange(len(place_I))).sum(1)  # as a set
    rest_UxB = jnp.asarray(index)[held_B & ~np.array(sets)[:, None]]
    size_U = np.array([u.bit_count() for u in sets])
    before_B = held_BxI[:, :middle].sum(1)
    possible_UxB = size_U[:, None] == before_B
    state_UxBxS = before_UxBxS * jnp.take_along_axis(after_UxBxS, rest_UxB[:, :, None], 0) * possible_UxB[:, :, None]
    return state_UxBxS.sum(0)


@jax.jit
def _infer_bags(hmm, words_BxL, visible_BxL, first_BxS, last_BxS):
    """`_infer_windows` with the words' order summed out."""
    held_BxL = words_BxL >= 0
    evidence_LxBxS = compute_class_evidence(hmm, words_BxL, visible_BxL) * held_BxL.T[:, :, None]
    state_BxS = _compute_middle_state(hmm.trans_SxS, evidence_LxBxS, held_BxL, first_BxS, last_BxS)
    return compute_class_probs(hmm, state_BxS), *map_latents(hmm, _compute_latent_log_odds, words_BxL, visible_BxL)


def select_seen(hmm: HMM, words_NxL, visible_NxL, row_K, column_K, *, left: bool = False) -> np.ndarray:
    """seen_KxL of a Posterior: the visible words of the row of each queried one; left: those to its left as well."""
    if hmm.favorites is None:
        return np.zeros((len(row_K), 0), np.int32)
    place_L, column_Kx1 = np.arange(words_NxL.shape[1]), column_K[:, None]
    seen_KxL = visible_NxL[row_K] & (place_L != column_Kx1) | (left & (place_L < column_Kx1))
    return np.where(seen_KxL, words_NxL[row_K], -1).astype(np.int32)


def make_posterior(row_K, column_K, class_KxC, topic_KxT, name_KxM, seen_KxL) -> Posterior:
    """The Posterior of these log-odds of the latents; raises ValueError where nothing is possible."""
    bad_K = ~np.isfinite(class_KxC.sum(-1) + topic_KxT.max(-1) + name_KxM.max(-1))
    if bad_K.any():
        raise ValueError(f"row {row_K[bad_K][0]}: its words have probability 0 in this language")
    return Posterior(row_K, column_K, class_KxC, softmax(topic_KxT), softmax(name_KxM), seen_KxL)


def compute_posterior(
    hmm: HMM, words_NxL: np.ndarray, masked_NxL: np.ndarray, asked_NxL: np.ndarray | None = None
) -> Posterior:
    """The exact distribution of each masked word given the visible words of its row and the row's length.

    asked_NxL: the words that are queried, all masked ones where None; one that is not masked is itself not given: with
    no mask, each is given all other words of its row.
    Forward-backward (Rabiner 1989, section III.A), once for all latent values (`HMM` says why that is exact).
    Raises ValueError for a row that the language cannot write.
    """
    visible_NxL = ~masked_NxL & (words_NxL >= 0)
    row_K, column_K = np.nonzero(masked_NxL if asked_NxL is None else asked_NxL)
    ends_NxS = np.broadcast_to(np.stack([hmm.initial, hmm.is_end])[:, None], (2, len(words_NxL), len(hmm.trans_SxS)))
    infer = functools.partial(_infer_examples, put_on_device(hmm))
    class_NxLxC, topic_NxT, name_NxM = map_batches(infer, EXAMPLE_BATCH, words_NxL, visible_NxL, *ends_NxS)
    # The queried word is no evidence on the latents, even where it is visible to the other words of its row.
    word_K, own_Kx1 = words_NxL[row_K, column_K], visible_NxL[row_K, column_K][:, None]
    tables = jax.device_get(_make_latent_tables(put_on_device(hmm)))
    own_KxT, own_KxM = (odds_Z + np.where(own_Kx1, odds_WxZ[word_K], 0) - odds_Z for odds_WxZ, odds_Z in tables)
    found = class_NxLxC[row_K, column_K], topic_NxT[row_K] - own_KxT, name_NxM[row_K] - own_KxM
    return make_posterior(row_K, column_K, *found, select_seen(hmm, words_NxL, visible_NxL, row_K, column_K))


def build_teacher(hmm: HMM, word_V: np.ndarray) -> TeacherFn:
    """A traceable function (ids_BxL, positions_BxK) -> prob_BxKxV: the distribution of masked tokens that
    `compute_posterior` gives, in a vocabulary whose entries are these words (-1: none).
    """
    ends_2xS = np.stack([hmm.initial, hmm.is_end]).astype(np.float32)

    def compute_probs(ids_BxL, positions_BxK):
        model, words_BxL = put_on_device(hmm), jnp.asarray(word_V)[ids_BxL]
        visible_BxL = words_BxL >= 0
        hidden_BxL = jnp.where(ids_BxL == MASK, 0, words_BxL)
        first_BxS, last_BxS = jnp.broadcast_to(ends_2xS[:, None], (2, len(ids_BxL), ends_2xS.shape[1]))
        class_BxLxC, *odds = _infer_examples(model, hidden_BxL, visible_BxL, first_BxS, last_BxS)
        topic_BxW, name_BxW = (
            jnp.matmul(jax.nn.softmax(odds_BxZ), by_ZxW, precision=jax.lax.Precision.HIGHEST)
            for odds_BxZ, by_ZxW in zip(odds, (model.topic_emission_TxW, model.name_emission_MxW), strict=True)
        )
        class_BxKxC = jnp.take_along_axis(class_BxLxC, positions_BxK[..., None], 1)
        if model.favorites is not None:
            seen_BxL = jnp.where(visible_BxL, words_BxL, -1)
            name_BxW *= jnp.exp(_compute_all_favorites(model.favorites, seen_BxL))
        prob_BxKxW = class_BxKxC[..., model.class_W] * (topic_BxW * name_BxW)[:, None]
        return jnp.where(jnp.asarray(word_V) >= 0, prob_BxKxW[..., word_V], 0)

    return compute_probs


def _compute_local_posterior(function, size, hmm, words_NxL, masked_NxL, window) -> Posterior:
    row_K, column_K = np.nonzero(masked_NxL)
    place_KxI = column_K[:, None] + np.arange(-window, window + 1)
    inside_KxI = (place_KxI >= 0) & (place_KxI < words_NxL.shape[1])
    place_KxI = np.clip(place_KxI, 0, words_NxL.shape[1] - 1)
    words_KxI = np.where(inside_KxI, words_NxL[row_K[:, None], place_KxI], -1)
    visible_KxI = (words_KxI >= 0) & ~masked_NxL[row_K[:, None], place_KxI]
    valid_NxL = words_NxL >= 0
    before_LxS, after_LxS = compute_state_marginals(hmm, words_NxL.shape[1])
    place_K = column_K - valid_NxL.argmax(1)[row_K]
    first_KxS = before_LxS[np.maximum(place_K - window, 0)]
    last_KxS = after_LxS[np.maximum(valid_NxL.sum(1)[row_K] - 1 - place_K - window, 0)]
    near = functools.partial(function, put_on_device(hmm))
    found = map_batches(near, size, words_KxI, visible_KxI, first_KxS, last_KxS)
    seen_KxI = np.where(visible_KxI, words_KxI, -1)[:, : None if hmm.favorites else 0]
    return make_posterior(row_K, column_K, *found, seen_KxL=seen_KxI)


def compute_window_posterior(hmm: HMM, words_NxL: np.ndarray, masked_NxL: np.ndarray, window: int) -> Posterior:
    """The exact distribution of each masked word given the visible words among its `window` neighbours on each side.

    Given, too, its place in the row and the row's length, which a model with a window knows only near the row's ends,
    where neighbours are missing. So no model that sees these neighbours alone can do better, whether it knows its place
    or not; in the default language not knowing it costs less than 0.002 nats from a window of 5 on. Raises ValueError
    for a row that the language cannot write.
    """
    return _compute_local_posterior(_infer_windows, WINDOW_BATCH, hmm, words_NxL, masked_NxL, window)


def compute_bag_posterior(hmm: HMM, words_NxL: np.ndarray, masked_NxL: np.ndarray, window: int) -> Posterior:
    """`compute_window_posterior` without the order of the neighbours: which words (or masks) they are, and how often.

    window: at most BAG_SIZE.
    """
    return _compute_local_posterior(_infer_bags, BAG_BATCH, hmm, words_NxL, masked_NxL, window)


def _compute_infilling_log_odds(by_ZxW, prior_Z, words_BxL, visible_BxL):
    """Log-odds of each latent value given the visible words, and those before each place."""
    odds_WxZ, odds_Z = compute_log_weights(by_ZxW, prior_Z)
    odds_BxLxZ = odds_WxZ[words_BxL]
    visible_BxZ = jnp.where(visible_BxL[..., None], odds_BxLxZ, 0).sum(1)
    filled_BxLxZ = jnp.where((visible_BxL | (words_BxL < 0))[..., None], 0, odds_BxLxZ)
    return odds_Z + visible_BxZ[:, None] + jnp.cumsum(filled_BxLxZ, 1) - filled_BxLxZ


@jax.jit
def _infer_infilling(hmm, words_BxL, visible_BxL):
    valid_BxL, shape_BxS = words_BxL >= 0, (len(words_BxL), len(hmm.trans_SxS))
    first_BxS = jnp.broadcast_to(hmm.initial, shape_BxS)
    last_BxS = jnp.broadcast_to(hmm.is_end.astype(hmm.initial.dtype), shape_BxS)
    known, seen = (compute_class_evidence(hmm, words_BxL, at_BxL) for at_BxL in (valid_BxL, visible_BxL))
    ahead_LxBxS = scan_messages(hmm.trans_SxS, known, valid_BxL.T, first_BxS)
    back_LxBxS = scan_messages(hmm.trans_SxS.T, seen, valid_BxL.T, last_BxS, reverse=True)
    class_BxLxC = compute_class_probs(hmm, ahead_LxBxS * back_LxBxS).swapaxes(0, 1)
    return class_BxLxC, *map_latents(hmm, _compute_infilling_log_odds, words_BxL, visible_BxL)


def compute_infilling_posterior(hmm: HMM, words_NxL: np.ndarray, hidden_NxL: np.ndarray) -> Posterior:
    """The exact distribution of each hidden word given the visible words of its row and the hidden ones to its left.

    So a decoder writes a row of which its encoder has seen the words that are not hidden (`objectives/denoising.py`).
    A row's nats add up to -log P(hidden words | visible ones). Raises ValueError for a row that cannot be written.
    """
    queried = np.nonzero(hidden_NxL)
    infer, visible_NxL = functools.partial(_infer_infilling, put_on_device(hmm)), ~hidden_NxL & (words_NxL >= 0)
    found = map_batches(infer, EXAMPLE_BATCH, words_NxL, visible_NxL)
    seen_KxL = select_seen(hmm, words_NxL, visible_NxL, *queried, left=True)
    return make_posterior(*queried, *(x_NxLxZ[queried] for x_NxLxZ in found), seen_KxL=seen_KxL)


def _compute_repeat_log_odds(favorites, field_x, words_x):
    prob_x = favorites.prob_F[field_x]
    return jnp.log1p(prob_x / (1 - prob_x) / favorites.base_W[words_x])


def _compute_repeats(favorites, seen_BxL):
    """What the words seen tell of the favorites: repeats_BxL, how often a lemma was seen before, and log_BxF, the log
    of each field's evidence (`hmm.compute_favorite_log_likelihood`).
    """
    places = jnp.arange(seen_BxL.shape[1])
    lemma_BxL = jnp.where(seen_BxL >= 0, favorites.lemma_W[seen_BxL], -1)
    same_BxLxL = (lemma_BxL[:, :, None] == lemma_BxL[:, None]) & (places[:, None] > places)
    repeats_BxL = same_BxLxL.sum(-1)
    field_BxL = favorites.field_W[seen_BxL]
    prob_BxL = favorites.prob_F[field_BxL]
    clue_BxL = repeats_BxL * _compute_repeat_log_odds(favorites, field_BxL, seen_BxL)
    odds_BxL = jnp.log(prob_BxL / (1 - prob_BxL)) + clue_BxL
    odds_BxL = jnp.where(seen_BxL >= 0, odds_BxL, -jnp.inf)
    at = jnp.arange(len(seen_BxL))[:, None], field_BxL
    most_BxF = jnp.zeros((len(seen_BxL), len(favorites.prob_F))).at[at].max(odds_BxL)
    sum_BxF = jnp.exp(-most_BxF).at[at].add(jnp.exp(odds_BxL - most_BxF[at]))
    return repeats_BxL, most_BxF + jnp.log(sum_BxF)


def _compute_favorite_log_probs(favorites, words_BxX, repeats_BxX, log_BxF):
    """log P(lemma | field and what is seen) of words whose lemmas were seen so often."""
    field_BxX = favorites.field_W[words_BxX]
    prob_BxX = favorites.prob_F[field_BxX]
    clue_BxX = repeats_BxX * _compute_repeat_log_odds(favorites, field_BxX, words_BxX)
    clue_BxX -= jnp.take_along_axis(log_BxF, field_BxX, -1)
    return jnp.log(favorites.base_W[words_BxX]) + jnp.logaddexp(jnp.log(prob_BxX) + clue_BxX, jnp.log1p(-prob_BxX))


def _compute_all_favorites(favorites, seen_BxL):
    """`_compute_favorite_log_probs` of all words: log_BxW."""
    words = len(favorites.lemma_W)
    lemma_BxL = jnp.where(seen_BxL >= 0, favorites.lemma_W[seen_BxL], words)
    repeats_BxU = jnp.zeros((len(seen_BxL), words + 1)).at[jnp.arange(len(seen_BxL))[:, None], lemma_BxL].add(1)
    words_BxW = jnp.broadcast_to(jnp.arange(words), (len(seen_BxL), words))
    _, log_BxF = _compute_repeats(favorites, seen_BxL)
    return _compute_favorite_log_probs(favorites, words_BxW, repeats_BxU[:, favorites.lemma_W], log_BxF)


@jax.jit
def _compute_log_probs(hmm, class_BxC, topic_BxT, name_BxM, seen_BxL):
    """log P(class of the word) + log P(word | class), where the latter's two tables are averaged over the latents."""
    by_topic_BxW = jnp.matmul(topic_BxT, hmm.topic_emission_TxW, precision=jax.lax.Precision.HIGHEST)
    by_name_BxW = jnp.matmul(name_BxM, hmm.name_emission_MxW, precision=jax.lax.Precision.HIGHEST)
    log_BxW = jnp.log(class_BxC)[:, hmm.class_W] + jnp.log(by_topic_BxW) + jnp.log(by_name_BxW)
    return log_BxW if hmm.favorites is None else log_BxW + _compute_all_favorites(hmm.favorites, seen_BxL)


def compute_log_probs(hmm: HMM, known: Posterior) -> np.ndarray:
    """log P(word | what is seen), KxW: P(its class) * P(word | class), the latter averaged over the latents."""
    size = max(1, WORD_BATCH * 512 // max(512, len(hmm.class_W)))
    return map_batches(functools.partial(_compute_log_probs, put_on_device(hmm)), size, *known[2:])


@jax.jit
def _predict_words(hmm, leaders_X, forms_WxR, word_B, class_BxC, topic_BxT, name_BxM, seen_BxL):
    batch, leaders = jnp.arange(len(word_B)), len(leaders_X)
    tables = (topic_BxT, hmm.topic_emission_TxW), (name_BxM, hmm.name_emission_MxW)

    def average(share_BxZ, by_ZxW):
        # One product for the leaders and each true word, so that it rounds as one with the whole vocabulary does.
        by_ZxX = by_ZxW[:, jnp.concatenate([leaders_X, word_B])]
        by_BxX = jnp.matmul(share_BxZ, by_ZxX, precision=jax.lax.Precision.HIGHEST)
        return jnp.concatenate([by_BxX[:, :leaders], by_BxX[batch, leaders + batch][:, None]], 1)

    words_BxX = jnp.concatenate([jnp.broadcast_to(leaders_X, (len(word_B), leaders)), word_B[:, None]], 1)
    average_BxX = [average(*table) for table in tables]
    if hmm.favorites is not None:  # then the likeliest word may be a form of a lemma that was seen
        repeats_BxL, log_BxF = _compute_repeats(hmm.favorites, seen_BxL)
        forms_BxLxR = jnp.where(seen_BxL[..., None] >= 0, forms_WxR[seen_BxL], word_B[:, None, None])
        forms_BxX = forms_BxLxR.reshape(len(word_B), -1)
        words_BxX = jnp.concatenate([words_BxX, forms_BxX], 1)
        average_BxX = [
            jnp.concatenate([by_BxX, (share_BxZ[:, None] * by_ZxW.T[forms_BxX]).sum(-1)], 1)
            for by_BxX, (share_BxZ, by_ZxW) in zip(average_BxX, tables, strict=True)
        ]
    log_class_BxX = jnp.log(jnp.take_along_axis(class_BxC, hmm.class_W[words_BxX], 1))
    log_prob_BxX = log_class_BxX + jnp.log(average_BxX[0]) + jnp.log(average_BxX[1])
    if hmm.favorites is not None:
        lemma_BxL = jnp.where(seen_BxL >= 0, hmm.favorites.lemma_W[seen_BxL], -1)
        # All but the true word may count too few repeats: they are in the list again with all of them, if seen.
        repeats = (
            jnp.zeros((len(word_B), leaders), int),
            (lemma_BxL == hmm.favorites.lemma_W[word_B][:, None]).sum(1, keepdims=True),
            jnp.repeat(jnp.where(seen_BxL >= 0, repeats_BxL + 1, 0), forms_WxR.shape[1], 1),
        )
        log_prob_BxX += _compute_favorite_log_probs(hmm.favorites, words_BxX, jnp.concatenate(repeats, 1), log_BxF)
    best_Bx1 = log_prob_BxX.argmax(1)[:, None]
    return log_prob_BxX[:, leaders], jnp.take_along_axis(words_BxX, best_Bx1, 1)[:, 0]


def _find_leaders(hmm):
    """leaders_X: of the words that differ in frequency alone, whatever is seen, the most frequent; but for repeats."""
    odds_VxW = np.concatenate([hmm.topic_emission_TxW, hmm.name_emission_MxW])
    often_W, field_W = odds_VxW.max(0), 0 * hmm.class_W
    if hmm.favorites is not None:
        often_W, field_W = often_W * hmm.favorites.base_W, hmm.favorites.field_W
    group_WxV = np.stack([hmm.class_W, field_W, *np.round(odds_VxW / odds_VxW.max(0), 9)], 1)
    order_W = np.argsort(-often_W, kind="stable")
    return np.sort(order_W[np.unique(group_WxV[order_W], axis=0, return_index=True)[1]])


def _list_forms(hmm):
    """forms_WxR: all forms of each word's lemma, some twice where others have more."""
    if hmm.favorites is None:
        return np.zeros((len(hmm.class_W), 1), int)
    order_W, lemma_W = hmm.favorites.lemma_W.argsort(kind="stable"), hmm.favorites.lemma_W
    first_W, last_W = (np.searchsorted(lemma_W[order_W], lemma_W, side) for side in ("left", "right"))
    place_R = np.arange((last_W - first_W).max())
    return order_W[np.minimum(first_W[:, None] + place_R, last_W[:, None] - 1)]


def predict_words(hmm: HMM, known: Posterior, words_NxL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log_prob_K of the true words, in nats, and best_K, the likeliest words.

    The work grows with the words of the rows, not with the vocabulary: the likeliest word is the most
    frequent of those that are alike, or a form of a lemma that is seen.
    """
    true_K = words_NxL[known.example_K, known.position_K]
    predict = functools.partial(_predict_words, put_on_device(hmm), _find_leaders(hmm), _list_forms(hmm))
    return map_batches(predict, WORD_BATCH, true_K, *known[2:])
