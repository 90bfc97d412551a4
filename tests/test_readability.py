"""The cloze procedure: each word is deleted once, every fifth at a time, and counts where it is filled in exactly."""

import re

import jax
import jax.numpy as jnp
import pytest
from small import params_of, read_alone, small_config

from mlm.base.special import CLS, MASK, SEP, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers import kinds
from mlm.evaluation import readability
from mlm.inference import pretrained_io

ENTRIES = [*SPECIAL_TOKENS, "a", "b", "c", "##b", "##c", ".", ","]
PASSAGES = ["a bc b, abc. c b a b", "a b c a b", "cb b a bcb, a c § b bb a. c c, b abc a b c a"]


@pytest.fixture(scope="module")
def model():
    cfg = small_config(pack__seq_len=20, model__width=8)
    made = pretrained_io.build_language_model(
        cfg, kinds.KINDS["wordpiece"].build_tokenizer("\n".join(ENTRIES).encode()), {}
    )
    params = params_of(jax.eval_shape(made.model.init, jax.random.key(0)), 0.75)
    return pretrained_io.build_language_model(cfg, made.tokenizer, params)


def count_exact(model, words, version, every):
    """How many words of one version of a passage are exact, by hand: its words and marks as they stand."""
    deleted = [i for i, word in enumerate(words) if word.isalnum()][version::every]
    row, where = [CLS], {}
    for i, word in enumerate(words):
        ids = model.tokenizer.encode(word)
        where[i] = len(row), ids
        row += [MASK] * len(ids) if i in deleted else ids
    _, logits_TxV = read_alone(model.model, model.params["model"], [*row, SEP], model.length)
    best = logits_TxV.argmax(-1).tolist()
    return sum(best[first : first + len(ids)] == ids for first, ids in map(where.get, deleted))


@pytest.mark.exhaustive(but=("2",))
@pytest.mark.parametrize("every", [2, 5])
def test_words_are_exact_where_the_model_s_likeliest_tokens_are_theirs(model, every):
    found = readability.measure_readability(model, PASSAGES[:2], every)
    for passage, text in zip(found, PASSAGES, strict=False):
        words = re.findall(r"\w+|[.,]", text)
        assert passage.words == sum(word.isalnum() for word in words) and passage.text == text
        assert passage.exact == sum(count_exact(model, words, version, every) for version in range(every))
    assert sum(one.exact for one in found) > 0
    assert found[0] == readability.measure_readability(model, PASSAGES[:1], every)[0]


def test_every_word_of_a_passage_longer_than_a_row_is_asked_once(model, monkeypatch):
    hidden = []
    kept = readability._mask_words
    monkeypatch.setattr(readability, "_mask_words", lambda row, words: hidden.append((row, words)) or kept(row, words))
    (passage,) = readability.measure_readability(model, PASSAGES[2:])
    spoken = [model.tokenizer.decode(row[first:end]) for row, words in hidden for first, end in words]
    assert sorted(spoken) == sorted(readability.WORD.findall(PASSAGES[2])) and len(spoken) == passage.words
    assert len(hidden) == 2 * readability.DELETION_INTERVAL and all(len(row) <= model.length for row, _ in hidden)
    for row, words in hidden:
        shown = kept(row, words)
        assert shown.count(MASK) == sum(end - first for first, end in words) and len(shown) == len(row)


def test_a_word_that_the_vocabulary_lacks_is_never_exact(model, monkeypatch):
    monkeypatch.setattr(readability, "predict_tokens", lambda model, params, ids_BxL: jnp.full(ids_BxL.shape, UNK))
    assert readability.measure_readability(model, ["x x x x x x"]) == [
        readability.PassageReadability("x x x x x x", 6, 0)
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The cat sat on the mat.", 206.835 - 1.015 * 6 - 84.6),
        ("Apples are red. The window is there today!", 206.835 - 1.015 * 4 - 84.6 * 11 / 8),
    ],
)
def test_flesch_is_his_formula(text, wanted):
    assert readability.compute_reading_ease(text) == pytest.approx(wanted)
