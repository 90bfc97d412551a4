"""The gap is the distance to the floor under the evaluation's own questions: none for the optimum, more for others.

And it is made of three parts, each exact.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from small import drawn_config

from mlm.base import fields, recipe_constants, types
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP
from mlm.data.language import causal_posterior, floor, grammar, posterior
from mlm.data.rows import pack
from mlm.evaluation import loss_decomposition
from mlm.report import excess_loss
from mlm.training.run import trained_run
from mlm.training.step import program
from mlm.training.validation import references, split_scores


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    cfg = drawn_config(tmp_path_factory.mktemp("cache"), eval__mask_rate=0.3, eval__batch_size=32)
    return cfg, pack.load_dataset(cfg), grammar.build_grammar(cfg.data.language)


def table(ids_NxL) -> types.Model:
    """Predicts what its only parameter says for each row of the split, found by its unmasked tokens, and each place."""

    def encode(params, text, source=None, *, key_B=None):
        agree_BxN = ((text.ids_BxL[:, None] == ids_NxL) | (text.ids_BxL[:, None] == MASK)).sum(-1)
        row_B, place_L = agree_BxN.argmax(1), jnp.arange(text.ids_BxL.shape[1])
        return (jnp.stack(jnp.broadcast_arrays(row_B[:, None], place_L), -1),)

    return types.Model(
        ("both",), 2, None, encode, lambda logits_NxLxV, h_BxKx2: logits_NxLxV[h_BxKx2[..., 0], h_BxKx2[..., 1]]
    )


def evaluate(cfg, rows, logits_NxLxV, beside=None):
    made = program.build_program(cfg, rows.dataset_info, jax.devices()[:1])._replace(
        model=table(jnp.asarray(np.asarray(rows.validation["ids"], np.int32)))
    )
    state = types.TrainState(0, {"model": jnp.asarray(logits_NxLxV), "objective": {}}, ())
    beside = references.compute_references(cfg, made, rows) if beside is None else beside
    columns = beside.add_columns(split_scores.collect_columns(cfg, made, state, rows.validation))
    return split_scores.summarize(columns, (*made.objective.scores, *beside.scores))


def compute_eval_mask(cfg, rows):
    return references.compute_eval_mask(cfg, program.build_program(cfg, rows.dataset_info, jax.devices()[:1]), rows)


def optimum(cfg, rows, language, see=posterior.compute_posterior):
    """The posterior's own predictions of the masked words, in the rows' vocabulary."""
    words_NxL = grammar.convert_ids_to_words(language, rows.tokenizer.pieces, rows.validation["ids"])
    masked_NxL = compute_eval_mask(cfg, rows)
    logits_NxLxV = np.full((*words_NxL.shape, rows.tokenizer.vocab_size), -1e9, np.float32)
    entry_W = np.array([rows.tokenizer.pieces.index(word) for word in language.words])
    row_K, column_K = np.nonzero(masked_NxL)
    logits_NxLxV[row_K[:, None], column_K[:, None], entry_W] = posterior.compute_log_probs(
        language.hmm, see(language.hmm, words_NxL, masked_NxL)
    )
    return logits_NxLxV


def test_a_window_reaches_the_window_floor(data):
    cfg, rows, language = data
    near = functools.partial(posterior.compute_window_posterior, window=recipe_constants.WINDOW_NEIGHBORS)
    result = evaluate(cfg, rows, optimum(cfg, rows, language, near))
    assert result["loss"] == pytest.approx(result["window_floor"], abs=1e-5)
    assert result["accuracy"] == pytest.approx(result["window_floor_accuracy"], abs=0.03)
    assert result["excess_loss"] == pytest.approx(result["window_floor"] - result["floor"], abs=1e-5)
    assert result["excess_loss"] > 3 * result["excess_loss_se"] > 0
    assert result["excess_loss_se"] < result["loss_se"] / 2  # the difference is paired by row


@pytest.mark.exhaustive
def test_a_bag_reaches_the_bag_floor(data):
    """Which no other model's results have."""
    cfg, rows, language = data
    bag = fields.override(cfg, {"model.family": "feedforward", "model.cell": "bag", "model.window": 2})
    near = functools.partial(posterior.compute_bag_posterior, window=2)
    result = evaluate(bag, rows, optimum(bag, rows, language, near))
    assert result["loss"] == pytest.approx(result["bag_floor"], abs=1e-5)
    assert result["bag_floor"] > result["window_floor"] + 3 * result["loss_se"]
    assert "bag_floor" not in evaluate(cfg, rows, optimum(cfg, rows, language, near))
    own = excess_loss.compute_own_excess([{"config": {"model.cell": "bag", "model.window": 2}, "evaluation": result}])
    assert own["own_excess"].mean == pytest.approx(0, abs=1e-5)


def test_the_word_frequencies_stand_far_above_the_floor(data):
    cfg, rows, _ = data
    unigram_V = np.where(
        np.arange(rows.dataset_info.vocab_size) < NUM_SPECIAL,
        0,
        np.frombuffer(rows.dataset_info.unigram_counts, np.int64),
    )
    log_V = np.log(unigram_V + np.where(np.arange(len(unigram_V)) < NUM_SPECIAL, 1e-9, 1))
    logits_NxLxV = np.broadcast_to(log_V, (*rows.validation["ids"].shape, len(log_V)))
    result = evaluate(cfg, rows, logits_NxLxV)
    assert result["excess_loss"] > 1 and result["excess_loss"] > 20 * result["excess_loss_se"]
    assert result["loss"] == pytest.approx(result["unigram_loss"], abs=1e-4)


def test_words_and_masks_are_those_of_the_rows(data):
    cfg, rows, language = data
    words_NxL = grammar.convert_ids_to_words(language, rows.tokenizer.pieces, rows.validation["ids"])
    masked_NxL = compute_eval_mask(cfg, rows)
    assert ((words_NxL >= 0) == (rows.validation["ids"] >= NUM_SPECIAL)).all()
    assert {CLS, SEP} < set(rows.validation["ids"].ravel().tolist())
    assert all(
        language.words[word] == rows.tokenizer.pieces[i]
        for word, i in zip(words_NxL[words_NxL >= 0], rows.validation["ids"][words_NxL >= 0], strict=True)
    )
    assert masked_NxL.sum() / (words_NxL >= 0).sum() == pytest.approx(0.3, abs=0.01)
    assert not (masked_NxL & (words_NxL < 0)).any() and MASK not in rows.validation["ids"]


def test_other_masks_are_an_error_and_other_corpora_have_no_floor(data):
    cfg, rows, language = data
    made = program.build_program(cfg, rows.dataset_info, jax.devices()[:1])
    other = references.compute_references(
        drawn_config(cfg.data.cache_dir, eval__mask_rate=0.3, eval__mask_seed=5), made, rows
    )
    with pytest.raises(ValueError, match="other masks"):
        evaluate(cfg, rows, optimum(cfg, rows, language), other)
    text = references.compute_references(drawn_config(cfg.data.cache_dir, data__corpus="docstrings"), made, rows)
    assert [score.name for score in text.scores] == ["bits_per_byte"]


PARTS = ("kind", "number", "word")


def decompose(cfg, rows, logits_NxLxV, sees="both"):
    """The answer of the question what the gap is made of, and the same model's gap."""
    made = program.build_program(cfg, rows.dataset_info, jax.devices()[:1])._replace(
        model=dataclasses.replace(table(jnp.asarray(np.asarray(rows.validation["ids"], np.int32))), directions=(sees,))
    )
    state = types.TrainState(0, {"model": jnp.asarray(logits_NxLxV), "objective": {}}, ())
    run = trained_run.TrainedRun(cfg, 0, rows.tokenizer, made, state, "", rows.dataset_info, rows)
    return loss_decomposition.evaluate(run, loss_decomposition.list_due_cases(cfg)[0], lambda: None), evaluate(
        cfg, rows, logits_NxLxV
    )


def excess(found):
    return [found[part]["excess"] for part in PARTS]


@pytest.mark.parametrize("what", ["optimum", "noise"])
def test_the_parts_add_up_to_the_gap_and_are_each_the_sum_of_probabilities(data, what):
    """Against sums over words by hand, of the model's probabilities and of the posterior's."""
    cfg, rows, language = data
    best_NxLxV = optimum(cfg, rows, language)
    noise = 3 * np.random.default_rng(0).normal(size=rows.dataset_info.vocab_size)
    logits_NxLxV = best_NxLxV if what == "optimum" else np.full_like(best_NxLxV, noise)
    found, whole = decompose(cfg, rows, logits_NxLxV)
    assert sum(excess(found)) == pytest.approx(whole["excess_loss"], abs=1e-5)
    assert sum(found[part]["loss"] for part in PARTS) == pytest.approx(whole["loss"], rel=1e-5)
    assert sum(found[part]["floor"] for part in PARTS) == pytest.approx(whole["floor"], rel=1e-5)
    assert found["predictions"] == whole["predictions"]
    if what == "optimum":
        np.testing.assert_allclose(excess(found), 0, atol=1e-5)

    pieces, masked_NxL = rows.tokenizer.pieces, compute_eval_mask(cfg, rows)
    at_W = [language.words.index(piece) if piece in language.words else -1 for piece in pieces]
    kind_V, number_V = (
        np.where(np.array(at_W) >= 0, of_W[at_W], "none") for of_W in (language.kind_W, language.number_W)
    )
    id_K = rows.validation["ids"][masked_NxL]
    for name, given_NxLxV in (("loss", logits_NxLxV), ("floor", best_NxLxV)):
        share_KxV = special.softmax(given_NxLxV[masked_NxL].astype(np.float64), axis=1)
        same_kind_KxV = kind_V == kind_V[id_K][:, None]
        same_KxV = same_kind_KxV & (number_V == number_V[id_K][:, None])
        kind_K, class_K = (share_KxV * same_kind_KxV).sum(1), (share_KxV * same_KxV).sum(1)
        word_K = share_KxV[np.arange(len(id_K)), id_K]
        by_hand = [-np.log(each_K).mean() for each_K in (kind_K, class_K / kind_K, word_K / class_K)]
        np.testing.assert_allclose([found[part][name] for part in PARTS], by_hand, rtol=1e-4)


@pytest.mark.exhaustive(but=("number",))
@pytest.mark.parametrize("lacks", PARTS)
def test_what_a_model_gets_wrong_is_where_its_gap_is(data, lacks):
    """The optimum made too sure of one thing: of kinds, of numbers in a kind, or of words in a class."""
    cfg, rows, language = data
    kind_V, class_V = floor.compute_vocab_groups(language, rows.tokenizer.pieces)
    share_KxV = special.softmax(optimum(cfg, rows, language)[compute_eval_mask(cfg, rows)].astype(np.float64), axis=-1)
    kind_VxV, class_VxV = (of_V[:, None] == of_V for of_V in (kind_V, class_V))
    kind_KxV, class_KxV = share_KxV @ kind_VxV, share_KxV @ class_VxV
    tiny = 1e-30

    def surer(power, share_KxV, among_VxV):  # of shares that sum to 1 among entries that are alike
        share_KxV = share_KxV**power
        return share_KxV / (share_KxV @ among_VxV + tiny)

    power = {part: 3 if part == lacks else 1 for part in PARTS}
    of_kind = surer(power["kind"], kind_KxV, 1 / kind_VxV.sum(0)[:, None])
    of_class = surer(power["number"], class_KxV / (kind_KxV + tiny), kind_VxV / class_VxV.sum(0)[:, None])
    of_word = surer(power["word"], share_KxV / (class_KxV + tiny), class_VxV)
    logits_NxLxV = np.zeros((*rows.validation["ids"].shape, len(kind_V)), np.float32)
    logits_NxLxV[compute_eval_mask(cfg, rows)] = np.log(of_kind * of_class * of_word + tiny)
    found, _ = decompose(cfg, rows, logits_NxLxV)
    for part in PARTS:
        assert found[part]["excess"] > 0.02 if part == lacks else abs(found[part]["excess"]) < 1e-4, (part, found)
    assert 0 < found[lacks]["excess_se"] < found[lacks]["excess"]


def test_of_a_causal_model_the_parts_add_up_too_and_the_end_is_a_kind(data):
    cfg, rows, language = data
    cfg = fields.override(cfg, {"objective": "causal", "model.directionality": "causal"})
    words_NxL = grammar.convert_ids_to_words(language, rows.tokenizer.pieces, rows.validation["ids"])
    known = causal_posterior.compute_causal_posterior(language.hmm, words_NxL, cfg.data.language.max_words)
    logits_NxLxV = np.full((*words_NxL.shape, rows.dataset_info.vocab_size), -1e9, np.float32)
    entry_W = np.array([*(rows.tokenizer.pieces.index(word) for word in language.words), SEP])
    logits_NxLxV[known.example_K[:, None], known.position_K[:, None] - 1, entry_W] = posterior.compute_log_probs(
        causal_posterior.add_end_state(language.hmm), known
    )
    found, whole = decompose(cfg, rows, logits_NxLxV, "left")
    np.testing.assert_allclose(excess(found), 0, atol=1e-4)
    assert whole["excess_loss"] == pytest.approx(0, abs=1e-5) and found["predictions"] == whole["predictions"]
    assert sum(found[part]["floor"] for part in PARTS) == pytest.approx(whole["floor"], rel=1e-5)
    less = logits_NxLxV - np.where(np.arange(rows.dataset_info.vocab_size) == SEP, 2, 0).astype(np.float32)
    found, whole = decompose(cfg, rows, less, "left")
    np.testing.assert_allclose(excess(found), [whole["excess_loss"], 0, 0], atol=1e-4)
    assert whole["excess_loss"] > 0.01
