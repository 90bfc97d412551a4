"""Beam search and greedy choice over tables of probabilities: against every text there is, and by hand."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlm.base.special import PAD
from mlm.base.special import SEP as END
from mlm.inference import decoding

V, STEPS, ROWS = 4, 4, 5  # entries, of which the last ends a text; tokens; rows
MOST_B = jnp.full(ROWS, STEPS)


@functools.cache
def tables():
    """log_prob_RxVxVxV of the next token of each row, by the two before it."""
    logits = np.random.default_rng(0).normal(size=(ROWS, V, V, V), scale=1.5)
    return logits - np.logaddexp.reduce(logits, -1, keepdims=True)


def decode_step(cache, ids_N):
    """What a table says: the cache holds each row's number and the token before its last one."""
    row_1xN, before_1xN = cache
    return jnp.asarray(tables(), jnp.float32)[row_1xN[0], before_1xN[0], ids_N], (row_1xN, ids_N[None])


def start_search():
    row_B = jnp.arange(ROWS)
    return (row_B[None], row_B[None] % V), (row_B + 1) % V


@functools.partial(jax.jit, static_argnames=("num_beams", "length_penalty", "suppressed_ids"))
def search(most_B=MOST_B, **how):
    return decoding.search_beams(decode_step, *start_search(), num_steps=STEPS, max_steps_B=most_B, **how)


def every_text(row, most, normalise, alpha=0.6):
    """(score, ids) of all texts behind a row, the best first."""
    texts = []
    for length in range(1, most + 1):
        for ids in itertools.product(range(V), repeat=length):
            if END not in ids[:-1] and (ids[-1] == END or length == most):
                way = (row % V, (row + 1) % V, *ids)
                total = sum(tables()[row][a, b, c] for a, b, c in zip(way, way[1:], way[2:], strict=False))
                over = {"none": 1, "mean": length, "wu": ((5 + length) / 6) ** alpha}[normalise]
                texts.append((total / over, ids))
    return sorted(texts, reverse=True)


@pytest.mark.exhaustive(but=("mean",))
@pytest.mark.parametrize("normalise", decoding.LENGTH_PENALTIES)
def test_a_wide_beam_finds_the_best_of_all_texts(normalise):
    most_B = np.array([4, 3, 4, 1, 2])
    wide = search(most_B, num_beams=200, length_penalty=normalise)
    for row, most in enumerate(most_B):
        texts = every_text(row, most, normalise)
        best = min(len(texts), 20)
        np.testing.assert_allclose(wide.score_BxW[row, :best], [score for score, _ in texts[:best]], rtol=1e-5)
        for ids_T, length, (_, ids) in zip(wide.ids_BxWxT[row], wide.length_BxW[row], texts[:best], strict=False):
            assert length == len(ids) and tuple(ids_T[:length]) == ids and (ids_T[length:] == PAD).all()
        assert (np.asarray(wide.score_BxW[row]) > -np.inf).sum() == len(texts)


@pytest.mark.exhaustive(but=("mean",))
@pytest.mark.parametrize("normalise", decoding.LENGTH_PENALTIES)
def test_a_beam_of_one_is_greedy(normalise):
    followed = decoding.decode_tokens(
        decode_step, *start_search(), decoding.select_argmax, num_steps=STEPS, max_steps_B=MOST_B
    )
    one = search(num_beams=1, length_penalty=normalise)
    np.testing.assert_array_equal(one.ids_BxWxT[:, 0], followed.ids_BxT)
    np.testing.assert_array_equal(one.length_BxW[:, 0], followed.length_B)
    np.testing.assert_allclose(one.log_prob_BxW[:, 0], followed.log_prob_B, rtol=1e-5)
    for row in range(ROWS):
        way = [row % V, (row + 1) % V]
        while (len(way) < 2 + STEPS and way[-1] != END) or len(way) == 2:
            way.append(int(tables()[row][way[-2], way[-1]].argmax()))
        assert followed.ids_BxT[row, : followed.length_B[row]].tolist() == way[2:]


def test_a_row_s_answer_depends_on_no_other_row():
    together = search(num_beams=3, length_penalty="mean")
    alone = jax.jit(
        lambda cache, last_B: decoding.search_beams(
            decode_step, cache, last_B, num_beams=3, num_steps=STEPS, max_steps_B=MOST_B[:1]
        )
    )
    (row_1xB, before_1xB), last_B = start_search()
    for row in range(ROWS):
        mine = slice(row, row + 1)
        for its, one in zip(together, alone((row_1xB[:, mine], before_1xB[:, mine]), last_B[mine]), strict=True):
            np.testing.assert_allclose(its[mine], one, rtol=1e-6)


def test_what_is_never_taken_is_in_no_text_and_has_no_share():
    without = search(num_beams=200, length_penalty="none", suppressed_ids=(0, 2))
    there_W = np.asarray(without.score_BxW[0]) > -np.inf
    assert not np.isin(np.asarray(without.ids_BxWxT[0])[there_W], [2]).any()
    assert np.exp(np.asarray(without.score_BxW)).sum(-1) == pytest.approx(np.ones(ROWS), rel=1e-5)
    assert there_W.sum() == 1 + 1 + 1 + 1 + 1  # [1] * n then END, or four times 1


def test_a_mean_score_may_rise_so_what_goes_on_is_waited_for():
    go_T = [0.3, 0.49, *[1.0] * 6]  # the share of going on, at each place: two texts end before the best is likely

    def chain(cache, ids_N):
        go_N = jnp.asarray(go_T, jnp.float32)[cache[0]]
        return jnp.log(jnp.stack([0 * go_N, go_N, 0 * go_N, 1 - go_N], -1)), cache + 1

    start = jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32)
    best = decoding.search_beams(chain, *start, num_beams=2, num_steps=8, max_steps_B=jnp.array([8]))
    assert best.ids_BxWxT[0, 0].tolist() == [1] * 8
    assert best.score_BxW[0, 0] == pytest.approx(np.log(go_T).mean(), rel=1e-5)
