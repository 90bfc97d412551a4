"""Gradients, names and time by distance: of models that read from the left, against what is known of small ones."""

import functools

import jax
import numpy as np
import pytest
from small import PLAIN, batch, build, drawn_config, small_config

from mlm.base import types
from mlm.data.language import grammar
from mlm.data.rows import pack
from mlm.evaluation import context_range
from mlm.training.run import trained_run
from mlm.training.step import program


@pytest.mark.exhaustive(but=("rnn-elman-16",))
@pytest.mark.parametrize(("family", "cell", "far"), [("feedforward", "window", 3), ("rnn", "elman", 16)])
def test_a_gradient_s_norm_is_that_of_finite_differences(family, cell, far):
    """At each distance; beyond a window of three there is none, nor behind the state or in another segment."""
    cfg = small_config(family, cell, objective="causal", **PLAIN)
    model, params, _ = build(cfg)
    rows = batch(4)._replace(index_B=np.array([0, 1, 2, 3], np.int32))
    norm_BxL, apart_BxL = jax.jit(functools.partial(context_range.compute_gradient_norms, model))(
        {"model": params}, rows, None
    )
    place_B = 13 - 1 - np.arange(4) - 1  # of 13 tokens, the state before the last, before that, ...
    expected_BxL = place_B[:, None] - np.arange(16)
    expected_BxL[(expected_BxL < 0) | (rows.text.segments_BxL != 2)] = -1
    np.testing.assert_array_equal(apart_BxL, expected_BxL)
    assert (np.asarray(norm_BxL)[apart_BxL >= far] == 0).all() and (norm_BxL[expected_BxL == -1] < 1e-6).all()

    @jax.jit
    def nats(shift_BxLxD):
        (h_BxLxD,) = model.encode(params, rows.text, shift_BxLxD=shift_BxLxD)
        log_prob_BxV = jax.nn.log_softmax(model.logits(params, h_BxLxD[np.arange(4), place_B]))
        return -log_prob_BxV[np.arange(4), rows.text.ids_BxL[np.arange(4), place_B + 1]]

    for column in (8, 9, 10):
        slope_BxD = []
        for entry in range(model.width):
            step_BxLxD = np.zeros((4, 16, model.width), np.float32)
            step_BxLxD[:, column, entry] = 0.01
            slope_BxD.append((nats(step_BxLxD) - nats(-step_BxLxD)) / 0.02)
        seen_B = expected_BxL[:, column] >= 0
        np.testing.assert_allclose(
            np.linalg.norm(slope_BxD, axis=0)[seen_B], norm_BxL[seen_B, column], rtol=2e-2, atol=1e-3
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One whose states tell the last name that stood before, or else the language's first."""
    cfg = drawn_config(
        tmp_path_factory.mktemp("run"),
        "rnn",
        "elman",
        objective="causal",
        eval__batch_size=64,
        pack__seq_len=64,
        data__language__recall_prob=0.6,
    )
    packed, language = pack.load_dataset(cfg), grammar.build_grammar(cfg.data.language)
    name_V = np.isin(packed.tokenizer.pieces, [language.words[name] for name in context_range.find_names(language)])

    def encode(params, text, source=None, *, key_B=None, shift_BxLxD=None):
        place_BxL = jax.numpy.where(jax.numpy.asarray(name_V)[text.ids_BxL], jax.numpy.arange(64), 0)
        last_BxL = jax.lax.cummax(place_BxL, axis=1)
        return (jax.numpy.take_along_axis(text.ids_BxL, last_BxL, axis=1)[..., None],)

    made = program.build_program(cfg, packed.dataset_info, jax.devices()[:1])
    model = types.Model(("left",), 1, dict, encode, lambda params, h: jax.nn.one_hot(h[..., 0], len(name_V)))
    return trained_run.TrainedRun(
        cfg,
        0,
        packed.tokenizer,
        made._replace(model=model),
        types.TrainState(0, {"model": {}}, {}),
        "",
        packed.dataset_info,
        packed,
    )


def test_recall_is_of_names_that_stood_before_by_the_sentences_between(run):
    found = context_range.measure_recall(run)
    language = grammar.build_grammar(run.cfg.data.language)
    right, by_hand = [], {}
    for ids in run.load_data().validation["ids"]:
        words, last, sentence = [run.load_data().tokenizer.pieces[i] for i in ids], {}, 0
        newest = None
        for word in words:
            if word in [language.words[name] for name in context_range.find_names(language)]:
                if word in last:
                    right.append(newest == word)
                    low = max(low for low, _ in context_range.SENTENCE_DISTANCES if low <= sentence - last[word])
                    by_hand.setdefault(low, []).append(newest == word)
                last[word], newest = sentence, word
            sentence += word == "."
    assert found["items"] == len(right) > 30 and found["accuracy"] == pytest.approx(np.mean(right))
    assert {one["low"]: (one["items"], pytest.approx(one["accuracy"])) for one in found["distance"]} == {
        low: (len(of), np.mean(of)) for low, of in by_hand.items()
    }
    assert 0 < found["accuracy"] < found["optimum"] < 1
