"""The floors of causal models against brute force: every document that a tiny language can write, added up."""

import numpy as np
import pytest
import tiny

from mlm.base.config import Language
from mlm.data.language import causal_posterior, floor, posterior
from mlm.data.language.grammar import build_grammar
from mlm.data.language.hmm import sample_documents

LENGTH = 5
# No sentence is shorter than two words, so that many a first one does not fit.
TINY = tiny.TINY._replace(
    end=np.array(1),
    class_SxC=np.array([[0.1, 0.7, 0.2], [0.8, 0.2, 0.0], [0.0, 0.3, 0.7]]),
    trans_SxS=np.array([[0.3, 0.2, 0.5], [0.6, 0.0, 0.4], [0.45, 0.35, 0.2]]),
)
WORDS = len(TINY.class_W)


@pytest.fixture(scope="module")
def tables():
    """P(document), the first sentence drawn anew where it does not fit."""
    joints = tiny.documents(TINY, LENGTH)
    total = sum(joint.sum() for joint in joints.values())
    assert 0.05 < 1 - total < 0.95
    return {count: joint / total for count, joint in joints.items()}


@pytest.fixture(scope="module")
def every(tables):
    """Every document of the tiny language, with room on both sides as [CLS] and [SEP] leave it, and its probability."""
    documents = [
        (words, joint[words]) for joint in tables.values() for words in np.ndindex(joint.shape) if joint[words] > 0
    ]
    words_NxL = np.array([(-1, *words, *[-1] * (LENGTH + 2 - len(words))) for words, _ in documents])
    return words_NxL, np.array([share for _, share in documents])


def brute(tables, seen, written):
    """P(next word or, last, the end | the last words are `seen`, so many words are written)."""
    weight_W = np.zeros(WORDS + 1)
    for count, joint in tables.items():
        if count >= written:
            tail = joint.sum(tuple(range(written - len(seen))))[tuple(seen)]
            weight_W[:WORDS] += tail.reshape(WORDS, -1).sum(1) if count > written else 0
            weight_W[WORDS] += tail if count == written else 0
    return weight_W / weight_W.sum()


def assert_enumerated(tables, words_NxL, known, window):
    log_prob_KxW = posterior.compute_log_probs(causal_posterior.add_end_state(TINY), known)
    cache = {}
    for row, column, log_prob_W in zip(known.example_K, known.position_K, log_prob_KxW, strict=True):
        seen = tuple(words_NxL[row, max(1, column - window) : column].tolist())
        if (seen, column) not in cache:
            cache[seen, column] = brute(tables, seen, column - 1)
        np.testing.assert_allclose(np.exp(log_prob_W), cache[seen, column], rtol=1e-5, atol=1e-6)
    assert len(known.example_K) == (words_NxL >= 0).sum() + len(words_NxL)
    np.testing.assert_allclose(np.exp(log_prob_KxW).sum(1), 1, atol=1e-5)


def test_every_next_token_is_the_enumerated_one(tables, every):
    words_NxL, _ = every
    assert_enumerated(tables, words_NxL, causal_posterior.compute_causal_posterior(TINY, words_NxL, LENGTH), LENGTH)


@pytest.mark.exhaustive(but=("1",))
@pytest.mark.parametrize("window", [0, 1, 3])
def test_every_next_token_given_a_window_is_the_enumerated_one(tables, every, window):
    words_NxL, _ = every
    assert_enumerated(
        tables, words_NxL, causal_posterior.compute_causal_posterior(TINY, words_NxL, LENGTH, window), window
    )


def test_right_counts_the_tokens_that_are_likeliest(tables, every):
    words_NxL, _ = every
    few_NxL = words_NxL[::40]
    best = [
        [brute(tables, words_L[1 : i + 1], i).argmax() for i in range((words_L >= 0).sum() + 1)] for words_L in few_NxL
    ]
    right = [
        np.sum(np.append(words_L[words_L >= 0], WORDS) == best_L) for words_L, best_L in zip(few_NxL, best, strict=True)
    ]
    np.testing.assert_array_equal(floor.compute_causal_floor(TINY, few_NxL, LENGTH).correct_N, right)
    assert 0 < sum(right) < (few_NxL >= 0).sum()


@pytest.fixture(scope="module")
def default():
    hmm = build_grammar(Language()).hmm
    return hmm, np.pad(sample_documents(hmm, 126, 0, 0, 64), ((0, 0), (1, 1)), constant_values=-1)


@pytest.mark.exhaustive
def test_float32_is_enough_for_whole_rows(default):
    """Against the forward recursion of the textbook in float64, for each topic and name apart."""
    hmm, words_NxL = default
    row = (words_NxL >= 0).sum(1).argmin()  # the earliest end is the least likely one
    words_L = words_NxL[row][words_NxL[row] >= 0]
    by_ZxW = (hmm.topic_emission_TxW[:, None] * hmm.name_emission_MxW).reshape(-1, len(hmm.class_W))
    ahead_ZxS = np.eye(len(hmm.trans_SxS))[hmm.end] * (hmm.topic_T[:, None] * hmm.name_M).reshape(-1, 1)
    stays_SxS = hmm.trans_SxS * (np.arange(len(hmm.trans_SxS)) != hmm.end)

    def unfit_S(left):  # P(no end among `left` further words | state)
        return np.linalg.matrix_power(stays_SxS, left).sum(1)

    prefix = [1 - unfit_S(126)[hmm.end]]
    for count, word in enumerate(words_L, 1):
        ahead_ZxS = ahead_ZxS @ hmm.trans_SxS * by_ZxW[:, word, None] * hmm.class_SxC[:, hmm.class_W[word]]
        prefix.append((ahead_ZxS * np.where(np.arange(len(stays_SxS)) == hmm.end, 1, 1 - unfit_S(126 - count))).sum())
    prefix.append(ahead_ZxS[:, hmm.end].sum() * unfit_S(126 - len(words_L))[hmm.end])
    tokens_NxP = causal_posterior.append_end(hmm, words_NxL[[row]])
    log_prob_K, _ = posterior.predict_words(
        causal_posterior.add_end_state(hmm),
        causal_posterior.compute_causal_posterior(hmm, words_NxL[[row]], 126),
        tokens_NxP,
    )
    np.testing.assert_allclose(log_prob_K, np.diff(np.log(prefix)), atol=1e-5)


def test_where_a_row_lies_and_its_batch_change_nothing(default, monkeypatch):
    hmm, words_NxL = default
    few_NxL = words_NxL[:10]
    whole, near = floor.compute_causal_floor(hmm, few_NxL, 126), floor.compute_causal_floor(hmm, few_NxL, 126, 3)
    monkeypatch.setattr(causal_posterior, "EXAMPLE_BATCH", 7)
    monkeypatch.setattr(causal_posterior, "WINDOW_BATCH", 100)
    np.testing.assert_allclose(floor.compute_causal_floor(hmm, few_NxL[:, 1:-1], 126).nats_N, whole.nats_N, rtol=1e-6)
    np.testing.assert_allclose(floor.compute_causal_floor(hmm, few_NxL[:, 1:-1], 126, 3).nats_N, near.nats_N, rtol=1e-6)


def left_window_loss(hmm, words_NxL, length):
    return floor.compute_causal_floor(hmm, words_NxL, length, 3)


@pytest.mark.parametrize("broken", ["order", "cut", "long", "twice", "empty"])
@pytest.mark.parametrize("loss", [floor.compute_causal_floor, left_window_loss, floor.compute_backward_floor])
def test_a_row_that_the_language_cannot_write_is_named(default, broken, loss):
    hmm, words_NxL = default
    by_words_N = (words_NxL >= 0).sum(1).argsort()
    broken_NxL, length = words_NxL[by_words_N[[0, 1, 2, 3, 4, -1]]], 126
    words = (broken_NxL[5] >= 0).sum()
    if broken == "order":
        broken_NxL[5, 1:4] = broken_NxL[5, 1]
    elif broken == "cut":
        broken_NxL[5, words] = -1
    elif broken == "long":
        length = words - 1
    elif broken == "twice":
        broken_NxL = np.pad(broken_NxL, ((0, 0), (0, 128)), constant_values=-1)
        broken_NxL[5, 1 : 1 + 2 * words] = np.tile(broken_NxL[5, 1 : 1 + words], 2)
    else:
        broken_NxL[5] = -1
    with pytest.raises(ValueError, match="row 5"):
        loss(hmm, broken_NxL, length)


def test_a_name_that_contradicts_another_is_impossible():
    hmm = build_grammar(Language(recall_prob=1.0)).hmm
    words_NxL = sample_documents(hmm, 126, 0, 0, 4)
    assert np.isfinite(floor.compute_causal_floor(hmm, words_NxL, 126).nats_N).all()
    names = np.flatnonzero((hmm.name_emission_MxW != 1).any(0))
    row, column = np.argwhere(np.isin(words_NxL, names).cumsum(1) == 2)[0]  # the second mention of a protagonist
    words_NxL[row, column] = names[names != words_NxL[row, column]][0]
    with pytest.raises(ValueError, match=f"row {row}"):  # because of what is seen
        causal_posterior.compute_causal_posterior(hmm, words_NxL, 126)
    words_NxL[row, column + 1 :] = -1
    with pytest.raises(ValueError, match=f"row {row}"):  # because of what comes next
        floor.compute_causal_floor(hmm, words_NxL, 126)
