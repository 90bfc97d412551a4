"""A word's neighbours in context are, by brute force, the words of texts whose states are most like its own."""

import dataclasses
import random
import re

import jax
import numpy as np
import pytest
from hub_folders import make_folders
from small import get_refusal, small_config

import mlm
from mlm.base import config, errors
from mlm.cli import use
from mlm.data.tokenizers import kinds
from mlm.inference import neighbors, pretrained_io

FORMS = ["The", "bank", "river", "the river", "don't", "banks", "money.", "(bank)", "re-read", "of", "x7"]
MEMBERS = {
    "unigram": ("transformer", "", 38),
    "wordpiece": ("rnn", "lstm", 69),
    "words": ("feedforward", "bag", 0),
    "roberta": None,
}


def sentence(draw) -> str:
    return " ".join(draw.choices(FORMS, k=draw.randint(1, 4))) + "."


@pytest.fixture(scope="module")
def texts():
    draw = random.Random(0)
    return [sentence(draw) for _ in range(60)]


@pytest.fixture(scope="module")
def models(texts, tmp_path_factory):
    """A model with drawn parameters of each kind of vocabulary, one of them a Hugging Face folder."""
    made = {"roberta": mlm.load(make_folders(tmp_path_factory.mktemp("hub"))["roberta"])}
    for kind, member in MEMBERS.items():
        if member:
            tokenizer = kinds.train_tokenizer(config.Tokenizer(kind, member[2]), texts)
            made[kind] = draw_model(small_config(*member[:2]), tokenizer)
    return {kind: dataclasses.replace(model, batch_size=8, length=16) for kind, model in made.items()}


def draw_model(cfg, tokenizer):
    """A model of a config with parameters that nothing has trained."""
    model, rng = pretrained_io.build_language_model(cfg, tokenizer, {}), np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: 0.5 * rng.normal(size=x.shape).astype(np.float32), jax.eval_shape(model.model.init, jax.random.key(0))
    )
    return dataclasses.replace(model, params={"model": params, "objective": {}})


def letters(text) -> str:
    return "".join(filter(str.isalnum, text))


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "roberta"])  # words' has no entry for "(the"
def test_words_are_those_of_the_text_whatever_the_vocabulary(models, kind):
    tokenizer, text = models[kind].tokenizer, "(the bank) don't  re-read money."
    found = neighbors.find_words(tokenizer, text, 100)
    assert [text[one.start : one.end] for one in found] == ["the", "bank", "don't", "re", "read", "money"]
    for one in found:
        pieces = "".join(tokenizer.pieces[i] for i in tokenizer.encode(text)[one.first_piece : one.end_piece])
        assert letters(text[one.start : one.end]) in letters(pieces)
    assert neighbors.find_words(tokenizer, text, found[2].end_piece - 1) == found[:2]
    assert neighbors.find_words(tokenizer, "", 100) == []


def test_a_word_has_all_its_pieces_or_is_none(models):
    """Also the mark of the space before it, where that is a piece of its own."""
    tokenizer, text = models["unigram"].tokenizer, "of 7x river"
    ids, found = tokenizer.encode(text), neighbors.find_words(tokenizer, text, 100)
    assert "\u2581" in [tokenizer.pieces[i] for i in ids]
    assert [i for one in found for i in range(one.first_piece, one.end_piece)] == [*range(len(ids))]
    for name in ("words", "wordpiece"):
        text = "bank \u03b1\u03b2 river"
        there = neighbors.find_words(models[name].tokenizer, text, 100)
        assert [text[one.start : one.end] for one in there] == ["bank", "river"]


def test_a_word_ends_where_the_vocabulary_begins_another(models):
    tokenizer = kinds.train_tokenizer(config.Tokenizer("wordpiece", 14), ["\u4e2d\u6587 ab"])
    text = "ab\u4e2d\u6587"
    found = neighbors.find_words(tokenizer, text, 100)
    assert [(one.start, one.end) for one in found] == [(0, 2), (2, 3), (3, 4)]
    with pytest.raises(errors.ConfigError, match=r"^word = ''"):  # which no place between two words is
        neighbors.locate_word(dataclasses.replace(models["words"], tokenizer=tokenizer), text, "", which=1)


@pytest.mark.exhaustive(but=("unigram--1", "roberta--1"))
@pytest.mark.parametrize(("kind", "layer"), [("unigram", 0), ("unigram", -1), ("roberta", -1)])
def test_the_nearest_are_those_by_brute_force(models, texts, kind, layer, monkeypatch):
    """Read in parts of few texts, too."""
    model, text = models[kind], "the river bank of the river"
    asked = neighbors.locate_word(model, text, "bank")

    def unit(text, word):
        h_D = (
            model.encode(text, layer, pooling=None)[word.first_piece + 1 : word.end_piece + 1]
            .astype(np.float64)
            .mean(0)
        )
        return h_D / np.linalg.norm(h_D)

    every = [
        (round(float(unit(text, asked) @ unit(other, word)), 6), line, other[word.start : word.end])
        for line, other in enumerate(texts)
        for word in neighbors.find_words(model.tokenizer, other, 14)
    ]
    best = sorted((cosine for cosine, *_ in every), reverse=True)[:20]
    for numbers in (neighbors.MAX_STATE_VALUES, 1):
        monkeypatch.setattr(neighbors, "MAX_STATE_VALUES", numbers)
        found = neighbors.find_neighbors(model, text, "bank", iter(texts), top=20, layer=layer)
        np.testing.assert_allclose([one.cosine for one in found], best, atol=2e-5)
        for one in found:
            assert texts[one.line] == one.text
            assert any(
                (line, word) == (one.line, one.word) and abs(cosine - one.cosine) < 2e-5 for cosine, line, word in every
            )


@pytest.mark.parametrize("kind", ["wordpiece", "words"])
def test_the_same_word_in_the_same_text_is_nearest(models, texts, kind):
    text = "the river bank of money."
    for word in ("river", "bank", "of"):
        first, second, *_ = neighbors.find_neighbors(models[kind], text, word, [*texts, text])
        assert (first.word, first.line, first.cosine) == (word, len(texts), pytest.approx(1, abs=1e-5))
        assert second.cosine <= first.cosine
    assert neighbors.find_neighbors(models[kind], text, "bank", []) == []


def test_a_word_is_named_by_itself_several_of_them_or_a_number(models):
    model, text = models["unigram"], "of the river The bank of 3"
    there = neighbors.find_words(model.tokenizer, text, 14)
    assert neighbors.locate_word(model, text, "the") == neighbors.locate_word(model, text, "2") == there[1]
    assert neighbors.locate_word(model, text, "The") == there[3]
    assert neighbors.locate_word(model, text, "RIVER") == there[2]
    both = neighbors.locate_word(model, text, "river The bank")
    assert (both.start, both.end, both.first_piece, both.end_piece) == (7, 21, there[2].first_piece, there[4].end_piece)
    assert neighbors.locate_word(model, text, "of", which=2) == there[5]


BAD = {
    "absent": ("sea", "expected a word of 'of the of the' that this model has entries for"),
    "part of one": ("th", "expected a word of 'of the of the'"),
    "twice": ("the", "expected a word that occurs in 'of the of the' once, or its number: 2 or 4"),
    "twice, otherwise written": ("OF", "once, or its number: 1 or 3"),
    "no number": ("5", "expected a word of 'of the of the'"),
    "a number beyond all": ("9" * 5000, "expected a word of 'of the of the'"),
    "nothing": ("", "expected a word of 'of the of the'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_word_there_is_refused_in_one_line(models, case):
    word, said = BAD[case]
    line = get_refusal(neighbors.find_neighbors, models["unigram"], "of the of the", word, ["of"])
    assert re.search(r"^word = ", line) and said in line


def test_a_word_behind_the_longest_row_is_none(models):
    with pytest.raises(errors.ConfigError, match="among the first 14 tokens"):
        neighbors.locate_word(models["unigram"], "of " * 30 + "bank", "bank")


def test_the_command_gives_them_with_the_lines_of_the_file(models, texts, tmp_path):
    (tmp_path / "texts.txt").write_text("\n\n".join(texts))
    text, model = "the river bank", models["unigram"]
    args = use.make_parser("similar").parse_words(
        ["run", text, "--word=bank", f"--file={tmp_path / 'texts.txt'}", "--top_k=3"]
    )
    found = list(use.similar(args, lambda: model))
    assert [(one["word"], one["cosine"], one["line"]) for one in found] == [
        (one.word, one.cosine, 2 * one.line + 1) for one in neighbors.find_neighbors(model, text, "bank", texts, 3)
    ]
    assert [one["rank"] for one in found] == [1, 2, 3] and {one["prompt"] for one in found} == {text}
    (tmp_path / "texts.txt").write_text("...")
    with pytest.raises(errors.ConfigError, match=r"^--file = .*: expected a text with a word"):
        list(use.similar(args, lambda: model))
