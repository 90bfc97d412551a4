"""A source's parameters for more positions or another vocabulary: what an entry keeps, and what it is made of."""

from pathlib import Path

import numpy as np
import pytest

from mlm.base import config, fields
from mlm.base.special import NUM_SPECIAL
from mlm.data.tokenizers import kinds
from mlm.training.run import adaptation

TEXTS = Path(adaptation.__file__).read_text().split("\n")


def train(kind, vocab_size=150):
    return kinds.train_tokenizer(config.Tokenizer(kind, vocab_size), TEXTS)


def draw_params(tokenizer, positions=8, width=3):
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    V = tokenizer.vocab_size
    tables = {"token": {"embedding": draw(V, width)}, "position": {"embedding": draw(positions, width)}}
    return tables | {"bias": draw(V), "body": draw(2)}


def adapt(params, source, tokenizer, **changes):
    named = {name.replace("__", "."): value for name, value in changes.items()}
    cfg = fields.override(config.Config(), named)
    return adaptation.adapt_params(cfg, params, source, tokenizer)


@pytest.mark.parametrize(("kind", "other"), [("wordpiece", "unigram"), ("bpe", "wordpiece"), ("words", "bpe")])
def test_entries_of_the_same_text_keep_their_embedding_and_others_are_means(kind, other):
    source, tokenizer = (train(each, 300 if each == "bpe" else 150) for each in (kind, other))
    params = draw_params(source)
    adapted, changes = adapt(params, source, tokenizer, init__new_vocabulary=True)
    table_VxD = params["token"]["embedding"]
    texts, source_texts = adaptation.list_texts(tokenizer), adaptation.list_texts(source)
    assert len(adapted["bias"]) == len(adapted["token"]["embedding"]) == tokenizer.vocab_size
    np.testing.assert_array_equal(adapted["token"]["embedding"][:NUM_SPECIAL], table_VxD[:NUM_SPECIAL])
    shared = [i for i in range(NUM_SPECIAL, len(texts)) if texts[i] in source_texts[NUM_SPECIAL:]]
    assert 3 < len(shared) < len(texts) - NUM_SPECIAL
    for i in shared:
        np.testing.assert_array_equal(adapted["token"]["embedding"][i], table_VxD[source_texts.index(texts[i])])
    for i, pieces in enumerate(adaptation.find_pieces(source, tokenizer)):
        np.testing.assert_allclose(adapted["token"]["embedding"][i], table_VxD[pieces].mean(0), rtol=1e-6)
        np.testing.assert_allclose(adapted["bias"][i], params["bias"][pieces].mean(), rtol=1e-5)
    assert adapted["body"] is params["body"] and len(changes) == 1


def test_a_word_keeps_its_space():
    """A word and the same letters inside of a word are two texts."""
    tokenizer = train("wordpiece")
    texts = adaptation.list_texts(tokenizer)
    for piece, text in list(zip(tokenizer.pieces, texts, strict=True))[NUM_SPECIAL:]:
        assert text == (piece[2:] if piece.startswith("##") and len(piece) > 2 else f" {piece}")


def test_bytes_that_are_no_character_are_their_own():
    source, tokenizer = (kinds.train_tokenizer(config.Tokenizer("bpe", size), TEXTS) for size in (300, 320))
    assert len({*adaptation.list_texts(source)[NUM_SPECIAL:]}) == source.vocab_size - NUM_SPECIAL
    for i, ids in enumerate(adaptation.find_pieces(source, tokenizer)[: source.vocab_size]):
        assert [source.pieces[k] for k in ids] == [tokenizer.pieces[i]]


def test_a_plain_continuation_has_the_very_parameters():
    tokenizer = train("wordpiece")
    params = draw_params(tokenizer)
    for how in ("tile", "interpolate"):
        same = {"init__new_vocabulary": True, "init__positions": how, "model__max_positions": 8}
        adapted, changes = adapt(params, tokenizer, tokenizer, **same)
        assert adapted is params and changes == []


@pytest.mark.parametrize("count", [5, 8, 13, 24])
def test_positions_are_tiled_or_read_in_between(count):
    tokenizer = train("words")
    params = draw_params(tokenizer)
    table_PxD = params["position"]["embedding"]
    tiled, interpolated = (
        adapt(params, tokenizer, tokenizer, init__positions=how, model__max_positions=count)[0]["position"]["embedding"]
        for how in ("tile", "interpolate")
    )
    np.testing.assert_array_equal(tiled, np.resize(table_PxD, (count, 3)))
    expected = [np.interp(np.linspace(0, 7, count), np.arange(8), column) for column in table_PxD.T]
    np.testing.assert_allclose(interpolated, np.transpose(expected), atol=1e-6)
    assert interpolated.dtype == np.float32
