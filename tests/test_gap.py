"""The gap is the distance to the floor under the evaluation's own masks: nothing for the optimum, more for the rest."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import drawn_config

from mlm.base import types
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP
from mlm.data.language import floor, grammar, posterior
from mlm.data.rows import loader, pack
from mlm.objectives import OBJECTIVES, masking
from mlm.train.step import evaluation, program, references, update


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    cfg = drawn_config(tmp_path_factory.mktemp("cache"), eval__rate=0.3)
    return cfg, pack.load(cfg, "validation"), grammar.build(cfg.data.language)


def encode(params, batch, *, key_B=None):
    place_L = jnp.arange(batch.ids_BxL.shape[1])
    return jnp.stack(jnp.broadcast_arrays(batch.index_B[:, None], place_L), -1)


# Predicts what a table, its only parameter, says for each row of the split and each place.
TABLE = types.Model(None, encode, lambda logits_NxLxV, h_BxKx2: logits_NxLxV[h_BxKx2[..., 0], h_BxKx2[..., 1]])


def evaluated(cfg, rows, logits_NxLxV, beside, batch_size=32):
    goal = OBJECTIVES["mlm"](cfg.mask, masking.slots(cfg.eval.rate, cfg.pack.length), rows.unigram_V)
    compiled = jax.jit(functools.partial(update.eval_step, TABLE, goal))
    batches = loader.eval_batches(rows, batch_size=batch_size, max_rows=cfg.eval.max_rows)
    params = {"model": jnp.asarray(logits_NxLxV), "objective": {}}
    knobs = program.frozen_knobs(cfg)
    lost = evaluation.collect(lambda *arguments: jax.device_get(compiled(*arguments)), params, batches,
                            lambda batch: batch, knobs)
    return evaluation.summarise(lost, knobs, beside)


def optimum(cfg, rows, language, see=posterior.posterior):
    """The posterior's own predictions of the masked words, in the rows' vocabulary."""
    words_NxL = grammar.words(language, rows.tokenizer.pieces, rows.ids_NxL)
    masked_NxL = references.masked(cfg, rows.ids_NxL)
    logits_NxLxV = np.full((*words_NxL.shape, rows.tokenizer.vocab_size), -1e9, np.float32)
    entry_W = np.array([rows.tokenizer.pieces.index(word) for word in language.words])
    row_K, column_K = np.nonzero(masked_NxL)
    logits_NxLxV[row_K[:, None], column_K[:, None], entry_W] = posterior.log_probs(
        language.hmm, see(language.hmm, words_NxL, masked_NxL))
    return logits_NxLxV


def test_the_optimum_has_no_gap(data):
    """Were the masks of the loss others than the floor's, it would be asked for words that it has no prediction of."""
    cfg, rows, language = data
    result = evaluated(cfg, rows, optimum(cfg, rows, language), references.measure(cfg, rows))
    assert result["gap"] == pytest.approx(0, abs=1e-5) and result["gap_se"] < 1e-5
    assert result["loss"] == pytest.approx(result["floor"], abs=1e-5)
    assert result["loss_se"] == pytest.approx(result["floor_se"], rel=1e-4)
    assert result["accuracy"] == pytest.approx(result["floor_accuracy"], abs=0.03)  # ties are broken otherwise


def test_a_window_reaches_the_window_floor(data):
    cfg, rows, language = data
    near = functools.partial(posterior.window_posterior, window=references.WINDOW)
    result = evaluated(cfg, rows, optimum(cfg, rows, language, near), references.measure(cfg, rows))
    assert result["loss"] == pytest.approx(result["window_floor"], abs=1e-5)
    assert result["accuracy"] == pytest.approx(result["window_floor_accuracy"], abs=0.03)
    assert result["gap"] == pytest.approx(result["window_floor"] - result["floor"], abs=1e-5)
    assert result["gap"] > 3 * result["gap_se"] > 0
    assert result["gap_se"] < result["loss_se"] / 2  # the difference is paired by row


def test_the_word_frequencies_stand_far_above_the_floor(data):
    cfg, rows, _ = data
    log_V = np.log(rows.unigram_V + np.where(np.arange(len(rows.unigram_V)) < NUM_SPECIAL, 1e-9, 1))
    logits_NxLxV = np.broadcast_to(log_V, (*rows.ids_NxL.shape, len(log_V)))
    result = evaluated(cfg, rows, logits_NxLxV, references.measure(cfg, rows))
    assert result["gap"] > 1 and result["gap"] > 20 * result["gap_se"]
    assert result["loss"] == pytest.approx(result["unigram_loss"], abs=1e-4)


def test_max_rows_and_batches_change_nothing_else(data):
    cfg, rows, language = data
    few = drawn_config(cfg.data.cache, eval__rate=0.3, eval__max_rows=50)
    result = evaluated(few, rows, optimum(cfg, rows, language), references.measure(few, rows), batch_size=16)
    assert result["rows"] == 50 and result["gap"] == pytest.approx(0, abs=1e-5)


def test_words_and_masks_are_those_of_the_rows(data):
    cfg, rows, language = data
    words_NxL = grammar.words(language, rows.tokenizer.pieces, rows.ids_NxL)
    masked_NxL = references.masked(cfg, rows.ids_NxL)
    assert ((words_NxL >= 0) == (rows.ids_NxL >= NUM_SPECIAL)).all() and {CLS, SEP} < set(rows.ids_NxL.ravel().tolist())
    assert all(language.words[word] == rows.tokenizer.pieces[i]
               for word, i in zip(words_NxL[words_NxL >= 0], rows.ids_NxL[words_NxL >= 0], strict=True))
    assert masked_NxL.sum() / (words_NxL >= 0).sum() == pytest.approx(0.3, abs=0.01)
    assert not (masked_NxL & (words_NxL < 0)).any() and MASK not in rows.ids_NxL


def test_other_masks_are_an_error_and_other_corpora_have_no_floor(data):
    cfg, rows, language = data
    other = references.measure(drawn_config(cfg.data.cache, eval__rate=0.3, eval__seed=5), rows)
    with pytest.raises(ValueError, match="other masks"):
        evaluated(cfg, rows, optimum(cfg, rows, language), other)
    assert references.measure(drawn_config(cfg.data.cache, data__corpus="docstrings"), rows) is None
    assert isinstance(references.measure(cfg, rows).args[0], floor.Floor)
