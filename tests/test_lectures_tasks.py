"""The lectures' worked examples of what models are asked: search, masked tokens, pairs, heads, pooling.

Where a lecture's formula is wrong, the test says so and holds the right one.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import CLASSES, PLAIN, batch, make_dataset_info, replace_text, small_config

from mlm.base import types
from mlm.base.special import MASK, NUM_SPECIAL, SEP
from mlm.data.rows import segment_pairs
from mlm.inference import beam_search
from mlm.objectives import OBJECTIVES, heads
from mlm.training.step import program

OK, YES = 5, 6
TREE = {(): {OK: 0.4, YES: 0.5, SEP: 0.1}, (OK,): {OK: 0.7, YES: 0.2, SEP: 0.1}, (YES,): {OK: 0.3, YES: 0.4, SEP: 0.3}}
NEVER = -1e9


def likeliest(tree, width, normalise="none", steps=3):
    """(words, probability) of the best text that a search in a tree finds; what the tree does not name ends."""
    places = list(tree)
    log_prob_PxV, next_PxV = np.full((len(places) + 1, 7), NEVER), np.full((len(places) + 1, 7), len(places))
    log_prob_PxV[-1, SEP] = 0
    for place, path in enumerate(places):
        for word, share in tree[path].items():
            log_prob_PxV[place, word] = np.log(share)
            next_PxV[place, word] = places.index((*path, word)) if (*path, word) in tree else len(places)

    def decode_step(place_1xN, word_N):
        """From the row before the first word, whose number is -1, on."""
        place_N = jnp.where(place_1xN[0] < 0, 0, jnp.asarray(next_PxV)[place_1xN[0], word_N])
        return jnp.asarray(log_prob_PxV)[place_N], place_N[None]

    found = beam_search.search_beams(
        decode_step, jnp.full((1, 1), -1), jnp.array([SEP]), num_beams=width, num_steps=steps, length_penalty=normalise
    )
    length = int(found.length_BxW[0, 0])
    return tuple(found.ids_BxWxT[0, 0, :length].tolist()), float(jnp.exp(found.log_prob_BxW[0, 0]))


def test_greedy_takes_yes_yes_and_a_beam_of_two_finds_ok_ok():
    """.5 x .4 = .20 against .4 x .7 = .28. The listing of beam search never prunes its beams, so that any width finds
    the best; here a beam of one is greedy."""
    words, share = likeliest(TREE, 1)
    assert words == (YES, YES, SEP) and share == pytest.approx(0.20, abs=1e-6)
    words, share = likeliest(TREE, 2)
    assert words == (OK, OK, SEP) and share == pytest.approx(0.28, abs=1e-6)


def test_a_beam_keeps_no_more_than_its_width():
    """The best text begins with the third likeliest word, which a beam of two drops and one of three keeps."""
    tree = {(): {OK: 0.4, YES: 0.35, 4: 0.25}, (OK,): {OK: 0.5, YES: 0.5}, (YES,): {OK: 0.5, YES: 0.5}, (4,): {4: 1.0}}
    assert likeliest(tree, 2)[0][0] in (OK, YES) and likeliest(tree, 3) == ((4, 4, SEP), pytest.approx(0.25))


def test_a_score_is_the_mean_log_probability_of_a_text_s_tokens():
    """score(y) = 1/t sum of log P(y_i | y_<i): the log stands inside the sum, where the lecture drops it. A short text
    of .4 is then no better than a longer one of .35 x .95 x .95."""
    tree = {(): {SEP: 0.4, OK: 0.35, YES: 0.25}, (OK,): {OK: 0.95, YES: 0.05}, (OK, OK): {SEP: 0.95, YES: 0.05}}
    assert likeliest(tree, 3) == ((SEP,), pytest.approx(0.4))
    assert likeliest(tree, 3, "mean") == ((OK, OK, SEP), pytest.approx(0.35 * 0.95 * 0.95))
    for t in (1, 2, 7):
        assert (
            float(beam_search.compute_length_penalty("mean", t)) == t
            and float(beam_search.compute_length_penalty("none", t)) == 1
        )


WORDS = ["so", "long", "and", "thanks", "for", "all", "the", "fish", "apricot"]
LONG, THANKS, THE, APRICOT = (NUM_SPECIAL + WORDS.index(word) for word in ("long", "thanks", "the", "apricot"))


def test_the_loss_is_over_the_three_sampled_tokens_alone():
    """So [MASK] and [MASK] for all apricot fish: long, thanks and the are asked for, apricot in the place of `the`."""
    ids_L, copies = np.arange(NUM_SPECIAL, NUM_SPECIAL + 8), 2**13
    unigram_V = np.where(np.arange(NUM_SPECIAL + 9) == APRICOT, 1000, 1)
    cfg = small_config(pack__seq_len=8, mask__rate=0.375, mask__max_rate=0.5, **PLAIN)  # room for four
    objective = OBJECTIVES["mlm"].build(
        cfg, types.DatasetInfo(len(unigram_V), 8, (), unigram_V.astype(np.int64).tobytes())
    )
    log_prob_LxV = np.log(np.random.default_rng(0).dirichlet(np.ones(len(unigram_V)), 8)).astype(np.float32)
    shown = []

    def encode(params, text, source, *, key_B):
        shown.append(np.asarray(text.ids_BxL))
        return (jnp.broadcast_to(jnp.arange(8)[:, None], (*text.ids_BxL.shape, 1)),)

    model = types.Model(("bidirectional",), 1, dict, encode, lambda params, h: jnp.asarray(log_prob_LxV)[h[..., 0]])
    text = types.Tokens(
        *(np.tile(x_L, (copies, 1)) for x_L in (ids_L, np.ones(8, int), np.arange(8), np.zeros(8, int)))
    )
    found = objective.loss(
        {"model": {}},
        model,
        types.Batch(text, {}, np.arange(copies)),
        jax.random.split(jax.random.key(0), copies),
        program.make_train_hparams(cfg),
        train=True,
    )
    wanted_L = np.where(np.isin(ids_L, (LONG, THANKS)), MASK, np.where(ids_L == THE, APRICOT, ids_L))
    (rows,) = np.nonzero((shown[0] == wanted_L).all(1))
    assert len(rows) > 3
    by_hand = -sum(log_prob_LxV[word - NUM_SPECIAL, word] for word in (LONG, THANKS, THE))
    np.testing.assert_allclose(found.loss_B["mlm"][rows], by_hand, rtol=1e-5)
    assert (found.weight_B["mlm"] == 3).all()


def test_half_of_the_second_sentences_are_the_true_next_ones():
    draw = random.Random(0)
    documents = [[[10 * document + i] * draw.randint(2, 6) for i in range(9)] for document in range(400)]
    rows = list(segment_pairs.sample_segment_pairs(iter(documents), 24))
    truly = [row.label for row in rows]
    assert len(truly) > 1000 and abs(np.mean(truly) - 0.5) < 4 * 0.5 / len(truly) ** 0.5
    for row in rows:  # each label says what stands there
        first, second = row.ids[1] // 10, row.ids[row.second_start] // 10
        assert (first == second) == row.label


def states(width):
    return np.random.default_rng(1).normal(size=(3, 16, width)).astype(np.float32)


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def labelled(objective, label, h_BxLxD, head):
    """-log P of the labels by an objective of three classes; head: its parameters."""
    cfg = small_config(objective=objective, finetune__pooling="mean", **PLAIN)
    rows = batch(3, pad=0)._replace(labels=label)
    model = types.Model(("bidirectional",), h_BxLxD.shape[-1], dict, lambda *_, **__: (h_BxLxD,), None)
    made = OBJECTIVES[objective].build(cfg, make_dataset_info(cfg))
    drawn = jax.eval_shape(lambda key: made.init(key, model), jax.random.key(0))
    jax.tree.map(lambda shape, x: np.testing.assert_equal(shape.shape, x.shape), drawn, head)
    found = made.loss({"model": {}, "objective": head}, model, rows, None, None, train=True)
    return np.asarray(found.loss_B[objective])


def test_a_text_s_class_is_softmax_of_w_c_whose_shape_is_3_by_d():
    """Of a pair that entails, contradicts or neither; kept as its transpose, d x 3."""
    h_BxLxD, w_CxD, label_B = states(4), np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32), [0, 2, 1]
    nats_B = labelled(
        "classification",
        {"label_B": np.array(label_B)},
        h_BxLxD,
        {"label": {"kernel": w_CxD.T, "bias": np.zeros(3, np.float32)}},
    )
    y_BxC = softmax(h_BxLxD.mean(1) @ w_CxD.T)
    np.testing.assert_allclose(nats_B, -np.log(y_BxC[range(3), label_B]), rtol=1e-5)


def test_a_word_s_tag_is_softmax_of_w_k_whose_shape_is_k_by_d():
    h_BxLxD, w_KxD = states(4), np.random.default_rng(2).normal(size=(len(CLASSES), 4)).astype(np.float32)
    tag_BxL = np.random.default_rng(3).integers(-1, len(CLASSES), (3, 16))
    nats_B = labelled("tagging", {"tag_BxL": tag_BxL}, h_BxLxD, {"kernel": w_KxD.T, "bias": np.zeros(3, np.float32)})
    y_BxLxK = softmax(h_BxLxD @ w_KxD.T)
    by_hand = [
        sum(-np.log(y_BxLxK[row, i, tag]) for i, tag in enumerate(tags) if tag >= 0) for row, tags in enumerate(tag_BxL)
    ]
    np.testing.assert_allclose(nats_B, by_hand, rtol=1e-5)


def test_mean_pooling_is_over_a_text_s_own_tokens():
    """1/n sum of h_i, entry by entry. Max pooling, the largest of each entry, no head here reads."""
    h_BxLxD, rows = states(4), batch(3)
    real_BxL = np.arange(16) < np.array([3, 16, 7])[:, None]
    text = replace_text(rows, segments_BxL=1 * real_BxL).text
    same = {"label": {"kernel": np.eye(4, dtype=np.float32), "bias": np.zeros(4, np.float32)}}
    cfg = small_config(objective="classification", finetune__pooling="mean", **PLAIN)
    pooled_BxD = heads.apply_pooled_head(cfg, same, h_BxLxD, text, None)
    for row, count in enumerate((3, 16, 7)):
        np.testing.assert_allclose(pooled_BxD[row], h_BxLxD[row, :count].mean(0), atol=1e-6)
