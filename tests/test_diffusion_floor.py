"""The bound of an exact denoiser is the log-probability of a document: every mask of tiny ones, many of long ones."""

import itertools
import math

import numpy as np
import pytest
from test_left_floor import LENGTH, TINY, every, tables

from mlm.base.config import Language
from mlm.base.estimates import compute_ratio
from mlm.data.language import diffusion_bound, floor, posterior
from mlm.data.language.grammar import build_grammar
from mlm.data.language.hmm import sample_documents


def test_the_length_of_a_document_is_the_enumerated_one(tables):
    log_P = diffusion_bound.compute_length_log_probs(TINY, LENGTH)
    np.testing.assert_allclose(np.exp(log_P), [0, *(joint.sum() for joint in tables.values())], rtol=1e-12)


def test_what_is_seen_of_a_document_is_as_likely_as_enumerated(tables, every):
    words_NxL, share_N = every
    log_P, count_N = diffusion_bound.compute_length_log_probs(TINY, LENGTH), (words_NxL >= 0).sum(1)
    whole_N = diffusion_bound.compute_log_probs(TINY, words_NxL, words_NxL >= 0)
    np.testing.assert_allclose(whole_N + log_P[count_N], np.log(share_N), rtol=1e-10)
    few_NxL = words_NxL[::37]
    seen_NxL = np.random.default_rng(0).random(few_NxL.shape) < 0.5
    for words_L, seen_L, got in zip(
        few_NxL, seen_NxL, diffusion_bound.compute_log_probs(TINY, few_NxL, seen_NxL), strict=True
    ):
        joint = tables[(words_L >= 0).sum()]
        at = tuple(word if seen else slice(None) for word, seen in zip(words_L, seen_L, strict=True) if word >= 0)
        assert got == pytest.approx(np.log(joint[at].sum() / joint.sum()), rel=1e-10)


def test_over_every_mask_the_exact_posterior_loses_the_log_probability(every):
    """k uniform on 1 to n, its places uniform, the loss n / k times the nats: all of them, without a draw."""
    words_NxL, _ = every
    few_NxL = words_NxL[3::211]
    lost_N = []
    for words_L in few_NxL:
        place_n = np.flatnonzero(words_L >= 0)
        n = len(place_n)
        hidden = [
            np.isin(np.arange(len(words_L)), places)
            for k in range(1, n + 1)
            for places in itertools.combinations(place_n, k)
        ]
        found = diffusion_bound.reweight_floor(
            floor.compute_masked_floor(TINY, np.tile(words_L, (len(hidden), 1)), np.array(hidden)),
            np.tile(words_L, (len(hidden), 1)),
        )
        k_R = np.sum(hidden, 1)
        lost_N.append(found.nats_N @ [1 / n / math.comb(n, k) for k in k_R])
        np.testing.assert_array_equal(found.count_N, n)
    assert len({(words_L >= 0).sum() for words_L in few_NxL}) > 2
    np.testing.assert_allclose(lost_N, -diffusion_bound.compute_log_probs(TINY, few_NxL, few_NxL >= 0), rtol=2e-6)


def test_words_filled_in_from_the_left_are_the_enumerated_ones(tables, every):
    words_NxL, _ = every
    few_NxL = words_NxL[::37]
    hidden_NxL = (np.random.default_rng(1).random(few_NxL.shape) < 0.5) & (few_NxL >= 0)
    known = posterior.compute_infilling_posterior(TINY, few_NxL, hidden_NxL)
    for row, column, log_prob_W in zip(
        known.example_K, known.position_K, posterior.compute_log_probs(TINY, known), strict=True
    ):
        told_L = ~hidden_NxL[row] | (np.arange(len(few_NxL[row])) < column)
        joint = tables[(few_NxL[row] >= 0).sum()]
        at = [word if told else slice(None) for word, told in zip(few_NxL[row], told_L, strict=True) if word >= 0]
        at[column - 1] = slice(None)
        share_W = joint[tuple(at)].reshape(*[len(log_prob_W)] * at.count(slice(None)))
        mine = at[: column - 1].count(slice(None))
        share_W = share_W.sum(tuple(axis for axis in range(share_W.ndim) if axis != mine))
        np.testing.assert_allclose(np.exp(log_prob_W), share_W / share_W.sum(), rtol=1e-5, atol=1e-6)
    nats_N = floor.compute_floor(TINY, few_NxL, posterior.compute_infilling_posterior(TINY, few_NxL, hidden_NxL)).nats_N
    apart_N = diffusion_bound.compute_log_probs(TINY, few_NxL, ~hidden_NxL) - diffusion_bound.compute_log_probs(
        TINY, few_NxL, few_NxL >= 0
    )
    np.testing.assert_allclose(nats_N, apart_N, atol=1e-5)
    assert len(known.example_K) > 50


def test_masks_in_turn_are_each_as_likely_and_hide_so_many():
    stream, counts = np.random.default_rng(0), {k: {} for k in (1, 2, 3, 4, 5)}
    for k, _ in itertools.product(counts, range(3000)):
        masked_RxL = diffusion_bound.sample_covering_masks(np.array([1, 2, 4, 5, 6]), k, 8, stream)
        assert (masked_RxL.sum(1) == k).all() and not masked_RxL[:, [0, 3, 7]].any()
        assert masked_RxL.any(0).sum() == 5  # every word has its turn
        assert k == 5 or not masked_RxL[:, [1, 2, 4, 5, 6]].all(0).any()
        for mask_L in masked_RxL:
            counts[k][mask_L.tobytes()] = counts[k].get(mask_L.tobytes(), 0) + 1
    for k, found in counts.items():
        assert len(found) == math.comb(5, k)
        share = np.array(list(found.values())) / sum(found.values())
        np.testing.assert_allclose(share, 1 / len(found), atol=0.02)


def test_drawn_masks_meet_the_causal_floor_within_their_error():
    hmm = build_grammar(Language()).hmm
    words_NxL = sample_documents(hmm, 20, 0, 0, 32)
    count_N = (words_NxL >= 0).sum(1)
    exact_N = (
        floor.compute_causal_floor(hmm, words_NxL, 20).nats_N
        + diffusion_bound.compute_length_log_probs(hmm, 20)[count_N]
    )
    np.testing.assert_allclose(exact_N, -diffusion_bound.compute_log_probs(hmm, words_NxL, words_NxL >= 0), atol=1e-4)
    np.testing.assert_allclose(diffusion_bound.compute_random_order_loss(hmm, words_NxL, 0), exact_N, atol=1e-3)
    apart, error = compute_ratio(diffusion_bound.compute_integrated_loss(hmm, words_NxL, 0) - exact_N, count_N)
    assert abs(apart) < 3 * error < 0.04
