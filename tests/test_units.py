"""Whole words and spans: what is chosen is whole, in a random order, and on average as many tokens as the rate says."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import VOCAB, batch, drawn_config, make_dataset_info, small_config

from mlm import objectives
from mlm.base import types
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP, UNK
from mlm.data.rows import pack
from mlm.launch.sweep import plan
from mlm.objectives import masking, masking_units
from mlm.training.run import loop, resolution
from mlm.training.step import program, update

STARTS_V = np.arange(VOCAB) % 3 > 0  # a third of the entries continue a word
ROWS, LENGTH, SLOTS = 300, 40, 20
KEYS = update.make_example_keys(np.uint32(0), 0, np.arange(ROWS))


@functools.cache
def rows():
    ids_BxL = np.random.default_rng(0).integers(NUM_SPECIAL, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    ids_BxL[:, 0], ids_BxL[:, 17], ids_BxL[:, 25], ids_BxL[:, 36], ids_BxL[:, 37:] = CLS, SEP, UNK, SEP, 0
    return ids_BxL


def corrupt(ids_BxL, unit, rate=0.5, num_slots=SLOTS, **more):
    """Rows with [MASK] alone for what is corrupted."""
    more |= {"mask_token_prob": 1.0, "random_token_prob": 0.0, "cdf_V": np.ones(1)}
    corrupt_rows = functools.partial(masking.corrupt_tokens, rate=rate, num_slots=num_slots, unit=unit, **more)
    keys = update.make_example_keys(np.uint32(0), 0, np.arange(len(ids_BxL)))
    return jax.device_get(jax.jit(corrupt_rows)(keys, ids_BxL))


@functools.cache
def masked(kind, **more):
    unit = None if kind == "token" else masking_units.MaskingUnit(kind == "span", STARTS_V)
    return corrupt(rows(), unit, **more)


def mark_chosen(found):
    """chosen_BxL: the tokens that are corrupted."""
    return np.array(
        [
            np.isin(np.arange(LENGTH), places_K[:count])
            for places_K, count in zip(found.positions_BxK, found.num_corrupted_B, strict=True)
        ]
    )


def word_BxL():
    special_BxL = rows() < NUM_SPECIAL
    return np.cumsum(STARTS_V[rows()] | special_BxL | np.roll(special_BxL, 1, axis=1), axis=1) - 1


def sizes(ids_L, word_L):
    """How many of the tokens that may be chosen each word has, by its number."""
    return np.bincount(word_L[ids_L >= NUM_SPECIAL], minlength=LENGTH)


@pytest.mark.exhaustive(but=("word",))
@pytest.mark.parametrize("kind", ["word", "span"])
def test_words_are_chosen_whole_and_on_average_as_many_tokens_as_the_rate_says(kind):
    found, budget_B = masked(kind), masked("token").num_corrupted_B
    np.testing.assert_array_equal((found.ids_BxL != rows()).sum(1), found.num_corrupted_B)
    np.testing.assert_array_equal(found.weights_BxK.sum(1), found.num_corrupted_B)
    for ids_L, word_L, chosen_L, budget in zip(rows(), word_BxL(), mark_chosen(found), budget_B, strict=True):
        size_W, inside_W = sizes(ids_L, word_L), np.bincount(word_L[chosen_L], minlength=LENGTH)
        assert ((inside_W == 0) | (inside_W == size_W)).all() and (ids_L[chosen_L] >= NUM_SPECIAL).all()
        assert abs(chosen_L.sum() - budget) < 2 * size_W.max()
    assert found.num_corrupted_B.sum() / budget_B.sum() == pytest.approx(1, abs=0.01)


@pytest.mark.exhaustive(but=("span",))
@pytest.mark.parametrize("kind", ["token", "word", "span"])
def test_cls_sep_and_padding_are_never_masked(kind):
    """Not even at a rate of all that may be masked, with [UNK] among it."""
    found = masked(kind, rate=0.9999, num_slots=LENGTH, mask_unk=True)
    special_BxL = np.isin(rows(), (0, CLS, SEP))
    chosen_BxL = mark_chosen(found)
    assert not chosen_BxL[special_BxL].any() and chosen_BxL[rows() == UNK].mean() > 0.9
    np.testing.assert_array_equal(found.ids_BxL[special_BxL], rows()[special_BxL])


@pytest.mark.exhaustive(but=("word",))
@pytest.mark.parametrize("kind", ["word", "span"])
def test_unknown_words_are_masked_as_often_as_others_where_that_is_asked_for(kind):
    chosen_BxL = mark_chosen(masked(kind, mask_unk=True))
    assert chosen_BxL[rows() == UNK].mean() == pytest.approx(0.5, abs=0.1)
    assert chosen_BxL[rows() >= NUM_SPECIAL].mean() == pytest.approx(0.5, abs=0.01)


def test_what_begins_no_word_behind_a_special_token_is_masked_like_any_other():
    """Such as what is left of a word that was cut where a row began."""
    ids_BxL = np.full((400, 10), 6, np.int32)  # goes on with a word
    ids_BxL[:, 0], ids_BxL[:, 5] = CLS, UNK
    found = corrupt(ids_BxL, masking_units.MaskingUnit(False, np.arange(VOCAB) != 6), num_slots=8)
    assert set(found.num_corrupted_B) == {4} and 100 < (found.ids_BxL[:, 1] == MASK).sum() < 300


@pytest.mark.exhaustive(but=("span",))
@pytest.mark.parametrize("kind", ["word", "span"])
def test_what_is_predicted_is_whole_words_of_what_is_corrupted(kind):
    found, part = masked(kind), masked(kind, predict_rate=0.2)
    np.testing.assert_array_equal(found.ids_BxL, part.ids_BxL)
    for ids_L, word_L, places_K, weight_K in zip(rows(), word_BxL(), part.positions_BxK, part.weights_BxK, strict=True):
        inside_W = np.bincount(word_L[places_K[weight_K > 0]], minlength=LENGTH)
        assert ((inside_W == 0) | (inside_W == sizes(ids_L, word_L))).all()
    assert part.weights_BxK.sum() == pytest.approx(0.2 * found.num_eligible_B.sum(), rel=0.04)


def test_entries_that_each_begin_a_word_are_chosen_as_tokens_are():
    alone = masking_units.MaskingUnit(False, np.ones(VOCAB, bool))
    np.testing.assert_array_equal(corrupt(rows(), alone).ids_BxL, masked("token").ids_BxL)


@pytest.mark.exhaustive(but=("sizes2-0.4",))
@pytest.mark.parametrize("rate", [0.15, 0.4])
@pytest.mark.parametrize("sizes", [(3,), (1, 2, 3, 8), (1, 4, 9)])
def test_the_rate_is_realised_whatever_the_lengths_of_words(sizes, rate):
    """In short examples, where few words have the tokens that the rate asks for; long words as often as short ones."""
    draws, length, count = np.random.default_rng(0), 34, 4000
    starts_BxL = np.zeros((count, length), bool)
    for starts_L in starts_BxL:
        place = 1
        while place < length - 1:
            starts_L[place] = True
            place += draws.choice(sizes)
    ids_BxL = np.where(starts_BxL, 5, 6).astype(np.int32)
    ids_BxL[:, 0], ids_BxL[:, -1] = CLS, SEP
    found = corrupt_words(ids_BxL, rate)
    assert found.num_corrupted_B.sum() / found.num_eligible_B.sum() == pytest.approx(rate, rel=0.02)
    masked_BxL, word_BxL = found.ids_BxL == MASK, np.cumsum(starts_BxL, axis=1)
    for size in sizes:
        share = [
            masked_L[word_L == word].any()
            for masked_L, word_L in zip(masked_BxL, word_BxL, strict=True)
            for word in np.flatnonzero(np.bincount(word_L[1:-1]) == size)
        ]
        assert np.mean(share) == pytest.approx(rate, abs=0.03), size


def test_words_that_no_mask_can_hold_are_left_out():
    ids_BxL = np.full((8, 40), 6, np.int32)
    ids_BxL[:, 0], ids_BxL[:, 1], ids_BxL[:, 31:] = CLS, 5, 5
    found = corrupt_words(ids_BxL, 0.2)
    assert (found.ids_BxL[:, :31] == ids_BxL[:, :31]).all() and (found.num_corrupted_B >= 7).all()


def corrupt_words(ids_BxL, rate):
    """Masks words of the entry 5, which 6 continues, in as many slots as a run has."""
    unit = masking_units.MaskingUnit(False, np.arange(7) != 6)
    return corrupt(ids_BxL, unit, rate, masking.count_slots(rate, ids_BxL.shape[1], unit))


def test_spans_come_in_random_order_each_from_a_word_on_up_to_a_special_token():
    """Against a loop over spans, with the same draws."""
    found, budget_B = mark_chosen(masked("span")), masked("token").num_corrupted_B

    @jax.jit
    @jax.vmap
    def draw(key):
        length_W = masking_units.compute_span_lengths(jax.random.uniform(jax.random.fold_in(key, 1), (LENGTH,)))
        uniform = jax.random.uniform(jax.random.fold_in(key, 2), (2,))[1]
        return masking.sample_uniforms(key, LENGTH, SLOTS, 0, 1)[1], length_W, uniform

    order_BxL, length_BxW, drawn_B = jax.device_get(draw(KEYS))
    for row in range(40):
        ids_L, word_L, order_L = rows()[row], word_BxL()[row], order_BxL[row]
        first_L = np.append(True, word_L[1:] != word_L[:-1]) & (ids_L >= NUM_SPECIAL)
        taken, full = [], False
        for start in sorted(np.flatnonzero(first_L), key=lambda place: -order_L[place]):
            reach = range(word_L[start], word_L[start] + length_BxW[row, word_L[start]])
            for word in reach:
                places = np.flatnonzero(word_L == word)
                if full or not len(places) or ids_L[places[0]] < NUM_SPECIAL:
                    break
                new = [place for place in places if place not in taken]
                missing = budget_B[row] - len(taken)
                taken += new if drawn_B[row] * len(new) < missing and len(taken) + len(new) <= SLOTS else []
                full = missing <= len(new) and bool(new)
        np.testing.assert_array_equal(np.flatnonzero(found[row]), sorted(taken))


def test_lengths_of_spans_are_geometric_up_to_ten():
    found = np.asarray(masking_units.compute_span_lengths((np.arange(100_000) + 0.5) / 100_000))
    share = 0.2 * 0.8 ** np.arange(10)
    np.testing.assert_allclose(np.bincount(found, minlength=11)[1:] / 100_000, share / share.sum(), atol=2e-5)
    assert found.mean() == pytest.approx(3.8, abs=0.01)  # as section 3.1 says


@pytest.mark.exhaustive(but=("span",))
@pytest.mark.parametrize("unit", ["word", "span"])
def test_evaluation_masks_the_unit_of_its_own_whatever_training_masks(unit):
    def show_rows(unit, train, eval_unit="token"):
        """What a model is shown of rows, and what evaluation asks for."""
        cfg = small_config(
            "feedforward",
            "bag",
            mask__unit=unit,
            mask__rate=0.3,
            eval__mask_rate=0.3,
            eval__mask_unit=eval_unit,
            mask__mask_token_prob=1.0,
            mask__random_token_prob=0.0,
        )
        objective = objectives.OBJECTIVES["mlm"].build(
            cfg, make_dataset_info(cfg)._replace(word_starts=STARTS_V.tobytes())
        )
        knobs, seen = (program.make_train_hparams if train else program.make_eval_hparams)(cfg), []

        def encode(params, text, source=None, *, key_B=None):
            seen.append(text.ids_BxL)
            return (jnp.zeros((*text.ids_BxL.shape, 1)),)

        def show(rows):
            model = types.Model(
                ("bidirectional",), 1, None, encode, lambda params, h: jnp.zeros((*h.shape[:-1], VOCAB))
            )
            objective.loss({"model": None}, model, rows, KEYS[:4], knobs, train=train)
            return seen[-1] == MASK, objective.eval_mask(rows.text, KEYS[:4], knobs)

        return jax.device_get(jax.jit(show)(batch(4)))

    tokens_BxL, asked_BxL = show_rows("token", False)
    np.testing.assert_array_equal(tokens_BxL, asked_BxL)
    for found_BxL in show_rows(unit, False):
        np.testing.assert_array_equal(found_BxL, asked_BxL)
    assert (show_rows(unit, True)[0] != asked_BxL).any()
    shown_BxL, asked_again_BxL = show_rows("token", False, unit)
    np.testing.assert_array_equal(shown_BxL, asked_again_BxL)
    ids_BxL = np.asarray(batch(4).text.ids_BxL)
    goes_on_BxL = ~STARTS_V[ids_BxL[:, 1:]] & (ids_BxL[:, 1:] >= NUM_SPECIAL) & (ids_BxL[:, :-1] >= NUM_SPECIAL)
    assert (shown_BxL[:, 1:] == shown_BxL[:, :-1])[goes_on_BxL].all() and shown_BxL.any()


THAI = ["แมว", "กิน", "ขนมปัง", "ใกล้", "สะพาน", "และ", "หมา", "เห็น", "ช้าง"]  # cat eats bread near bridge and ...


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bpe", "characters"])  # unigram leaves rare letters unknown in so small a vocabulary
def test_text_without_spaces_is_named_and_a_separator_gives_its_words(tmp_path, kind):
    draws = np.random.default_rng(0)
    lines = [draws.choice(THAI, 50) for _ in range(60)]
    found = {}
    for name, between, separator in (("none", "", ""), ("mark", "|", "|"), ("space", " ", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text("\n".join(between.join(words) for words in lines), encoding="utf-8")
        cfg = resolution.resolve(
            drawn_config(tmp_path / "cache", mask__unit="word", mask__rate=0.3, model__max_positions=64),
            {
                "data.corpus": "text",
                "data.path": str(tmp_path / name / "*.txt"),
                "data.document_boundary": "line",
                "data.word_separator": separator,
                "tokenizer.kind": kind,
                "tokenizer.vocab_size": {"bpe": 270, "characters": 0}[kind],
                "data.validation_fraction": 0.3,
                "pack.seq_len": 64,
            },
        )
        packed = pack.load_dataset(cfg)
        found[name] = packed.train["ids"].tobytes(), loop.explain_low_masking_rate(cfg, packed)
    assert found["mark"] == found["space"] and found["mark"][1] == ""
    assert re.search(
        r"^config.mask.unit = word: masks have 0\.\d+ of the tokens, not .* = 0.3, since", found["none"][1]
    )
    assert plan.list_shortfalls([cfg]) == []
