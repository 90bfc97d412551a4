"""What labelled objectives make of a model's states: their losses by numpy, what they read, and dropout by row."""

import functools

import jax
import numpy as np
import pytest
from scipy.special import log_softmax
from small import LABELLED, PLAIN, batch, make_dataset_info, replace_text, small_config

from mlm.base import fields, types
from mlm.objectives import OBJECTIVES, heads

ROWS, WIDTH = 6, 8
HPARAMS = types.TracedHparams(0, 0.0, 0.0, {"temperature": 1.0})


def make_config(objective, scores="", **changes):
    cfg = small_config(objective=objective, **{**PLAIN, **changes})
    return fields.override(cfg, {"data.labelled.scores": scores})  # small_config's rows are not a task's


def build_objective(*args, **changes):
    cfg = make_config(*args, **changes)
    return OBJECTIVES[cfg.objective].build(cfg, make_dataset_info(cfg))


def rows():
    """Rows of 5 to 10 tokens, the last one empty."""
    full = batch(ROWS, labels=True)
    real_BxL = np.arange(16) < np.array([5, 6, 7, 8, 10, 0])[:, None]
    return replace_text(full, ids_BxL=full.text.ids_BxL * real_BxL, segments_BxL=1 * real_BxL)


@functools.cache
def states():
    return np.random.default_rng(0).normal(size=(ROWS, 16, WIDTH)).astype(np.float32)


def model(h_BxLxD=None):
    """One whose states are given, so that nothing is compiled but the head."""
    h_BxLxD = states() if h_BxLxD is None else h_BxLxD

    def encode(params, text, source, *, key_B):
        return (h_BxLxD.reshape(*text.ids_BxL.shape, WIDTH),)

    return types.Model(
        ("both",),
        WIDTH,
        init=dict,
        encode=encode,
        logits=None,
        encode_layers=lambda params, text, source, *, key_B: np.stack([h_BxLxD] * 3),
    )


def params(objective):
    """The head's parameters, none at zero."""
    rng = np.random.default_rng(1)
    drawn = jax.eval_shape(lambda key: objective.init(key, model()), jax.random.key(0))
    return {"model": {}, "objective": jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), drawn)}


def compute_losses(objective, params, rows, h_BxLxD=None):
    @jax.jit
    def losses(params, key):
        return objective.loss(params, model(h_BxLxD), rows, jax.random.split(key, ROWS), HPARAMS, train=False)

    return jax.device_get(losses(params, jax.random.key(0)))


def plain_row(head, read):
    """What a row's label is told from, and the dense layer on it."""
    told = []
    for h_LxD, segments_L in zip(states(), rows().text.segments_BxL, strict=True):
        length = max(segments_L.sum(), 1)
        if read == "mean":
            told.append(h_LxD[:length].mean(0))
        else:
            one_D = h_LxD[0 if read == "first" else length - 1]
            told.append(np.tanh(one_D @ head["pool"]["kernel"] + head["pool"]["bias"]))
    return np.stack(told) @ head["label"]["kernel"] + head["label"]["bias"]


@pytest.mark.parametrize("read", [pooling.value for pooling in types.Pooling])
def test_rows_are_told_from_what_is_asked_for(read):
    objective, given = build_objective("classification", "matthews,accuracy", finetune__pooling=read), rows()
    of = params(objective)
    log_prob_BxC, label_B = log_softmax(plain_row(of["objective"], read), axis=-1), given.labels["label_B"]
    found, real = compute_losses(objective, of, given), np.arange(ROWS) < ROWS - 1
    np.testing.assert_allclose(found.loss_B["classification"], -log_prob_BxC[range(ROWS), label_B] * real, rtol=1e-5)
    guess_B = log_prob_BxC.argmax(-1)
    for name, value_B in {
        "predicted": guess_B,
        "score": log_prob_BxC.max(-1),
        "correct": guess_B == label_B,
        "predicted_1": guess_B == 1,
        "actual_2": label_B == 2,
        "majority_correct": label_B == 2,
        "majority_nats": -np.log(np.array([1, 2, 3]) / 6)[label_B],
    }.items():  # counts of 0, 1, 2, and one more each
        np.testing.assert_allclose(found.sums_B[name], value_B * real, rtol=1e-5, err_msg=name)
    if read != "mean":
        return
    objective = build_objective("regression", finetune__pooling=read)
    of = params(objective)
    found, value_B = compute_losses(objective, of, given), given.labels["value_B"]
    guess_B = plain_row(of["objective"], read)[:, 0]
    np.testing.assert_allclose(found.loss_B["regression"], (guess_B - value_B) ** 2 * real, rtol=1e-5)
    np.testing.assert_allclose(found.sums_B["predicted"], guess_B * real, rtol=1e-5)


def test_words_are_tagged_and_spans_found_from_each_token_s_state():
    given = rows()
    real_BxL, tag_BxL = given.text.segments_BxL > 0, given.labels["tag_BxL"]
    objective = build_objective("tagging")
    of = params(objective)
    found = compute_losses(objective, of, given)
    log_prob_BxLxC = log_softmax(states() @ of["objective"]["kernel"] + of["objective"]["bias"], axis=-1)
    nats_BxL = -np.take_along_axis(log_prob_BxLxC, np.maximum(tag_BxL, 0)[..., None], -1)[..., 0]
    word_BxL = real_BxL & (tag_BxL >= 0)
    np.testing.assert_allclose(found.loss_B["tagging"], (nats_BxL * word_BxL).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(found.weight_B["tagging"], word_BxL.sum(-1))
    np.testing.assert_array_equal(found.sums_B["predicted"], log_prob_BxLxC.argmax(-1) * real_BxL)
    np.testing.assert_allclose(found.sums_B["majority_correct"], ((tag_BxL == 2) & word_BxL).sum(-1))

    objective = build_objective("extractive_qa")
    of, right_Bx2 = params(objective), np.tile([1, 4], (ROWS, 1))
    found = compute_losses(objective, of, given._replace(labels={"start_B": right_Bx2[:, 0], "end_B": right_Bx2[:, 1]}))
    logits_BxLx2 = states() @ of["objective"]["kernel"] + of["objective"]["bias"]
    log_prob_BxLx2 = log_softmax(np.where(real_BxL[..., None], logits_BxLx2, -np.inf)[:-1], axis=1)
    nats_B = -(log_prob_BxLx2[:, 1, 0] + log_prob_BxLx2[:, 4, 1]) / 2
    np.testing.assert_allclose(found.loss_B["extractive_qa"], np.append(nats_B, 0), rtol=1e-5)
    np.testing.assert_allclose(found.sums_B["end_logit"], logits_BxLx2[..., 1] * real_BxL, rtol=1e-5)


@pytest.mark.parametrize("objective", LABELLED)
def test_what_stands_on_padding_changes_nothing(objective):
    of, given = build_objective(objective), rows()
    head, real_BxL = params(of), given.text.segments_BxL > 0
    other = np.where(real_BxL[..., None], states(), 7).astype(np.float32)
    one, two = compute_losses(of, head, given), compute_losses(of, head, given, other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, two)


def test_dropout_draws_for_each_row_from_its_own_key_and_keeps_the_mean():
    key_B = jax.random.split(jax.random.key(0), 4)
    ones_BxD = np.ones((4, 2000), np.float32)
    dropped_BxD = np.asarray(heads.apply_dropout(ones_BxD, key_B, 0.25))
    assert set(np.unique(dropped_BxD)) == {0, np.float32(1 / 0.75)}
    np.testing.assert_allclose(dropped_BxD.mean(1), 1, atol=0.06)
    np.testing.assert_array_equal(heads.apply_dropout(ones_BxD, key_B[::-1], 0.25), dropped_BxD[::-1])
    assert (dropped_BxD[0] != dropped_BxD[1]).any()
    assert heads.apply_dropout(ones_BxD, None, 0.25) is ones_BxD
    assert heads.apply_dropout(ones_BxD, key_B, 0.0) is ones_BxD


@pytest.mark.exhaustive(but=("tagging",))
@pytest.mark.parametrize("objective", ["classification", "regression", "tagging"])
def test_training_drops_what_evaluation_keeps(objective):
    of, given = build_objective(objective, model__dropout=0.5), rows()
    head, key_B = params(of), jax.random.split(jax.random.key(0), ROWS)
    dropped_B, kept_B = (
        np.asarray(of.loss(head, model(), given, key_B, None, train=train).loss_B[objective]) for train in (True, False)
    )
    assert (dropped_B != kept_B)[:-1].all()
