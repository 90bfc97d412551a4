"""The gap is the distance to the floor under the evaluation's own questions: none for the optimum, more for others."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import drawn_config

from mlm.base import types
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP
from mlm.data.language import grammar, posterior
from mlm.data.rows import pack
from mlm.train.step import evaluation, program, references


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    cfg = drawn_config(tmp_path_factory.mktemp("cache"), eval__rate=0.3, eval__batch_size=32)
    return cfg, pack.load(cfg), grammar.build(cfg.data.language)


def table(ids_NxL) -> types.Model:
    """Predicts what its only parameter says for each row of the split, found by its unmasked tokens, and each place."""
    def hidden(params, text, source=None, *, key_B=None):
        agree_BxN = ((text.ids_BxL[:, None] == ids_NxL) | (text.ids_BxL[:, None] == MASK)).sum(-1)
        row_B, place_L = agree_BxN.argmax(1), jnp.arange(text.ids_BxL.shape[1])
        return (jnp.stack(jnp.broadcast_arrays(row_B[:, None], place_L), -1),)

    return types.Model(("both",), 2, None, hidden,
                       lambda logits_NxLxV, h_BxKx2: logits_NxLxV[h_BxKx2[..., 0], h_BxKx2[..., 1]])


def evaluated(cfg, rows, logits_NxLxV, beside=None):
    made = program.build(cfg, rows.about, jax.devices()[:1])._replace(
        model=table(jnp.asarray(np.asarray(rows.validation["ids"], np.int32))))
    state = types.TrainState(0, {"model": jnp.asarray(logits_NxLxV), "objective": {}}, ())
    beside = references.measure(cfg, made, rows) if beside is None else beside
    columns = beside.add(evaluation.collect(cfg, made, state, rows.validation))
    return evaluation.summary(columns, (*made.objective.scores, *beside.scores))


def asked(cfg, rows):
    return references.asked(cfg, program.build(cfg, rows.about, jax.devices()[:1]), rows)


def optimum(cfg, rows, language, see=posterior.posterior):
    """The posterior's own predictions of the masked words, in the rows' vocabulary."""
    words_NxL = grammar.words(language, rows.tokenizer.pieces, rows.validation["ids"])
    masked_NxL = asked(cfg, rows)
    logits_NxLxV = np.full((*words_NxL.shape, rows.tokenizer.vocab_size), -1e9, np.float32)
    entry_W = np.array([rows.tokenizer.pieces.index(word) for word in language.words])
    row_K, column_K = np.nonzero(masked_NxL)
    logits_NxLxV[row_K[:, None], column_K[:, None], entry_W] = posterior.log_probs(
        language.hmm, see(language.hmm, words_NxL, masked_NxL))
    return logits_NxLxV


def test_the_optimum_has_no_gap(data):
    """Were the masks of the loss others than the floor's, it would be asked for words that it has no prediction of."""
    cfg, rows, language = data
    result = evaluated(cfg, rows, optimum(cfg, rows, language))
    assert result["gap"] == pytest.approx(0, abs=1e-5) and result["gap_se"] < 1e-5
    assert result["loss"] == pytest.approx(result["floor"], abs=1e-5)
    assert result["loss_se"] == pytest.approx(result["floor_se"], rel=1e-4)
    assert result["accuracy"] == pytest.approx(result["floor_accuracy"], abs=0.03)  # ties are broken otherwise


def test_a_window_reaches_the_window_floor(data):
    cfg, rows, language = data
    near = functools.partial(posterior.window_posterior, window=references.WINDOW)
    result = evaluated(cfg, rows, optimum(cfg, rows, language, near))
    assert result["loss"] == pytest.approx(result["window_floor"], abs=1e-5)
    assert result["accuracy"] == pytest.approx(result["window_floor_accuracy"], abs=0.03)
    assert result["gap"] == pytest.approx(result["window_floor"] - result["floor"], abs=1e-5)
    assert result["gap"] > 3 * result["gap_se"] > 0
    assert result["gap_se"] < result["loss_se"] / 2  # the difference is paired by row


def test_the_word_frequencies_stand_far_above_the_floor(data):
    cfg, rows, _ = data
    unigram_V = np.where(np.arange(rows.about.vocab_size) < NUM_SPECIAL, 0,
                         np.frombuffer(rows.about.unigram, np.int64))
    log_V = np.log(unigram_V + np.where(np.arange(len(unigram_V)) < NUM_SPECIAL, 1e-9, 1))
    logits_NxLxV = np.broadcast_to(log_V, (*rows.validation["ids"].shape, len(log_V)))
    result = evaluated(cfg, rows, logits_NxLxV)
    assert result["gap"] > 1 and result["gap"] > 20 * result["gap_se"]
    assert result["loss"] == pytest.approx(result["unigram_loss"], abs=1e-4)


def test_max_rows_and_batches_change_nothing_else(data):
    cfg, rows, language = data
    few = drawn_config(cfg.data.cache, eval__rate=0.3, eval__max_rows=50, eval__batch_size=16)
    result = evaluated(few, rows, optimum(cfg, rows, language))
    assert result["rows"] == 50 and result["gap"] == pytest.approx(0, abs=1e-5)


def test_words_and_masks_are_those_of_the_rows(data):
    cfg, rows, language = data
    words_NxL = grammar.words(language, rows.tokenizer.pieces, rows.validation["ids"])
    masked_NxL = asked(cfg, rows)
    assert ((words_NxL >= 0) == (rows.validation["ids"] >= NUM_SPECIAL)).all()
    assert {CLS, SEP} < set(rows.validation["ids"].ravel().tolist())
    assert all(language.words[word] == rows.tokenizer.pieces[i]
               for word, i in zip(words_NxL[words_NxL >= 0], rows.validation["ids"][words_NxL >= 0], strict=True))
    assert masked_NxL.sum() / (words_NxL >= 0).sum() == pytest.approx(0.3, abs=0.01)
    assert not (masked_NxL & (words_NxL < 0)).any() and MASK not in rows.validation["ids"]


def test_other_masks_are_an_error_and_other_corpora_have_no_floor(data):
    cfg, rows, language = data
    made = program.build(cfg, rows.about, jax.devices()[:1])
    other = references.measure(drawn_config(cfg.data.cache, eval__rate=0.3, eval__seed=5), made, rows)
    with pytest.raises(ValueError, match="other masks"):
        evaluated(cfg, rows, optimum(cfg, rows, language), other)
    assert references.measure(drawn_config(cfg.data.cache, data__corpus="docstrings"), made, rows).scores == ()
