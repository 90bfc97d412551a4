"""The floors of whole rows: float64, rows that cannot be, batches; brute force: test_language_ingredients.py."""

import numpy as np
import pytest

from mlm.base.config import Language
from mlm.base.estimates import compute_ratio
from mlm.data.language import floor, posterior
from mlm.data.language.grammar import build_grammar
from mlm.data.language.hmm import sample_documents


@pytest.fixture(scope="module")
def default():
    grammar = build_grammar(Language())
    words_NxL = np.pad(sample_documents(grammar.hmm, 126, 0, 0, 64), ((0, 0), (1, 1)), constant_values=-1)
    return grammar.hmm, words_NxL, (np.random.default_rng(0).random(words_NxL.shape) < 0.15) & (words_NxL >= 0)


def test_float32_is_enough_for_whole_rows(default):
    """Against the forward-backward of the textbook in float64, for each topic and name apart."""
    hmm, words_NxL, masked_NxL = default
    words_L, masked_L = words_NxL[0][words_NxL[0] >= 0], masked_NxL[0][words_NxL[0] >= 0]
    by_ZxW = (hmm.topic_emission_TxW[:, None] * hmm.name_emission_MxW).reshape(-1, len(hmm.class_W))
    prior_Z = (hmm.topic_T[:, None] * hmm.name_M).ravel()
    word_WxS = hmm.class_SxC.T[hmm.class_W]
    seen_LxZxS = np.where(masked_L[:, None, None], 1, by_ZxW.T[words_L][:, :, None] * word_WxS[words_L][:, None])
    states = len(hmm.trans_SxS)
    ahead_LxZxS = [np.tile(hmm.trans_SxS[hmm.end], (len(prior_Z), 1)) * prior_Z[:, None]]
    back_LxZxS = [np.tile(np.eye(states)[hmm.end], (len(prior_Z), 1))]
    for place in range(len(words_L) - 1):
        ahead_LxZxS.append(100 * (ahead_LxZxS[-1] * seen_LxZxS[place]) @ hmm.trans_SxS)  # 100: against underflow
        back_LxZxS.append(100 * (back_LxZxS[-1] * seen_LxZxS[-1 - place]) @ hmm.trans_SxS.T)
    joint_LxZxS = np.array(ahead_LxZxS) * np.array(back_LxZxS[::-1])
    share_LxW = np.einsum("lzs,zw,ws->lw", joint_LxZxS, by_ZxW, word_WxS, optimize=True)
    share_LxW /= share_LxW.sum(1, keepdims=True)
    known = posterior.compute_posterior(hmm, words_NxL[:1], masked_NxL[:1])
    np.testing.assert_allclose(
        np.exp(posterior.compute_log_probs(hmm, known)), share_LxW[masked_L], rtol=1e-4, atol=1e-5
    )


def test_the_floor_is_the_mean_over_masked_words_with_the_error_over_rows(default):
    hmm, words_NxL, masked_NxL = default
    bayes = floor.compute_masked_floor(hmm, words_NxL, masked_NxL)
    log_prob_KxW = posterior.compute_log_probs(hmm, posterior.compute_posterior(hmm, words_NxL, masked_NxL))
    true_K = words_NxL[masked_NxL]
    loss, error = compute_ratio(bayes.nats_N, bayes.count_N)
    assert loss == pytest.approx(-log_prob_KxW[np.arange(len(true_K)), true_K].mean(), rel=1e-5)
    assert bayes.correct_N.sum() == (log_prob_KxW.argmax(1) == true_K).sum()
    stream = np.random.default_rng(0)
    resampled = [bayes.nats_N[rows].sum() / bayes.count_N[rows].sum() for rows in stream.integers(0, 64, (2000, 64))]
    assert error == pytest.approx(np.std(resampled), rel=0.1)


def test_an_impossible_row_is_named(default):
    hmm, words_NxL, masked_NxL = default
    broken_NxL = words_NxL.copy()
    broken_NxL[5, 1:4] = broken_NxL[5, 1]
    with pytest.raises(ValueError, match="row 5"):  # because of what is seen
        posterior.compute_posterior(hmm, broken_NxL, masked_NxL & (np.arange(masked_NxL.shape[1]) > 4))
    with pytest.raises(ValueError, match="row 5"):  # because of what is hidden
        floor.compute_masked_floor(hmm, broken_NxL, words_NxL >= 0)


def test_batches_change_nothing(default, monkeypatch):
    hmm, words_NxL, masked_NxL = default
    whole = floor.compute_masked_floor(hmm, words_NxL, masked_NxL).nats_N
    monkeypatch.setattr(posterior, "EXAMPLE_BATCH", 48)
    monkeypatch.setattr(posterior, "WORD_BATCH", 100)
    np.testing.assert_allclose(floor.compute_masked_floor(hmm, words_NxL, masked_NxL).nats_N, whole, rtol=1e-6)
