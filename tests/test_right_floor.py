"""The floors of models that read from the right, against brute force: every document of a tiny language, added up."""

import numpy as np
import pytest
from test_left_floor import LENGTH, TINY, brute, every, tables

from mlm.data.language import causal_posterior, floor, posterior


@pytest.mark.exhaustive(but=("5",))
@pytest.mark.parametrize("window", [0, 2, LENGTH])
def test_every_word_before_is_the_enumerated_one(tables, every, window):
    words_NxL, _ = every
    known = (
        causal_posterior.compute_backward_posterior(TINY, words_NxL, LENGTH)
        if window == LENGTH
        else causal_posterior.compute_backward_posterior(TINY, words_NxL, LENGTH, window)
    )
    log_prob_KxW = posterior.compute_log_probs(causal_posterior.add_end_state(TINY), known)
    tokens_NxP = causal_posterior.reverse_words(TINY, words_NxL)
    turned, cache = {count: joint.transpose() for count, joint in tables.items()}, {}
    for row, column, log_prob_W in zip(known.example_K, known.position_K, log_prob_KxW, strict=True):
        word_n = words_NxL[row][words_NxL[row] >= 0]
        read = (tokens_NxP[row, :column] >= 0).sum()
        seen = tuple(word_n[len(word_n) - read :][:window].tolist())
        if (seen, read) not in cache:
            cache[seen, read] = brute(turned, seen[::-1], read)
        np.testing.assert_allclose(np.exp(log_prob_W), cache[seen, read], rtol=1e-5, atol=1e-6)
    assert len(known.example_K) == (words_NxL >= 0).sum() + len(words_NxL)


def test_a_documents_losses_add_up_to_its_probability_from_either_side(every):
    words_NxL, share_N = every
    whole = floor.compute_backward_floor(TINY, words_NxL, LENGTH)
    np.testing.assert_allclose(np.exp(-whole.nats_N), share_N, rtol=1e-5)
    np.testing.assert_array_equal(whole.count_N, (words_NxL >= 0).sum(1) + 1)
    sides = floor.add_floors(floor.compute_causal_floor(TINY, words_NxL, LENGTH), whole)
    np.testing.assert_allclose(sides.nats_N, -2 * np.log(share_N), rtol=1e-5)
    assert sides.count_N.sum() == 2 * whole.count_N.sum()
