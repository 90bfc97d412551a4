"""A source's parameters for a run that is not its own: positions, vocabulary, layers, and what is said of them."""

import itertools
from pathlib import Path

import jax
import numpy as np
import pytest
from small import (
    PLAIN,
    VOCAB,
    batch,
    get_refusal,
    make_letters_config,
    small_config,
    small_program,
    state_of,
    train_config,
)

from mlm.base import config, fields
from mlm.base.special import NUM_SPECIAL
from mlm.data.tokenizers import kinds
from mlm.training.run import initialization, resolution
from mlm.training.run.directory import RunDirectory
from mlm.training.step import program, trainable

NORMAL = {"init__new_vocabulary": True, "init__new_entries": "normal"}
TEXTS = Path(kinds.__file__).with_name("tokenizer.py").read_text().split("\n")


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
    return initialization.adapt_params(cfg, params, source, tokenizer)


@pytest.mark.parametrize(("kind", "other"), [("wordpiece", "unigram"), ("bpe", "wordpiece"), ("words", "bpe")])
def test_entries_of_the_same_text_keep_their_embedding_and_others_are_means(kind, other):
    source, tokenizer = (train(each, 300 if each == "bpe" else 150) for each in (kind, other))
    params = draw_params(source)
    adapted, changes = adapt(params, source, tokenizer, init__new_vocabulary=True)
    table_VxD = params["token"]["embedding"]
    texts, source_texts = initialization.list_texts(tokenizer), initialization.list_texts(source)
    assert len(adapted["bias"]) == len(adapted["token"]["embedding"]) == tokenizer.vocab_size
    np.testing.assert_array_equal(adapted["token"]["embedding"][:NUM_SPECIAL], table_VxD[:NUM_SPECIAL])
    shared = [i for i in range(NUM_SPECIAL, len(texts)) if texts[i] in source_texts[NUM_SPECIAL:]]
    assert 3 < len(shared) < len(texts) - NUM_SPECIAL
    for i in shared:
        np.testing.assert_array_equal(adapted["token"]["embedding"][i], table_VxD[source_texts.index(texts[i])])
    for i, pieces in enumerate(initialization.find_pieces(source, tokenizer)):
        np.testing.assert_allclose(adapted["token"]["embedding"][i], table_VxD[pieces].mean(0), rtol=1e-6)
        np.testing.assert_allclose(adapted["bias"][i], params["bias"][pieces].mean(), rtol=1e-5)
    assert adapted["body"] is params["body"] and len(changes) == 1


def test_a_word_keeps_its_space():
    """A word and the same letters inside of a word are two texts."""
    tokenizer = train("wordpiece")
    texts = initialization.list_texts(tokenizer)
    for piece, text in list(zip(tokenizer.pieces, texts, strict=True))[NUM_SPECIAL:]:
        assert text == (piece[2:] if piece.startswith("##") and len(piece) > 2 else f" {piece}")


def test_bytes_that_are_no_character_are_their_own():
    source, tokenizer = (kinds.train_tokenizer(config.Tokenizer("bpe", size), TEXTS) for size in (300, 320))
    assert len({*initialization.list_texts(source)[NUM_SPECIAL:]}) == source.vocab_size - NUM_SPECIAL
    for i, ids in enumerate(initialization.find_pieces(source, tokenizer)[: source.vocab_size]):
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


def test_new_entries_are_drawn_around_the_mean():
    source, tokenizer = train("wordpiece"), train("unigram")
    params = draw_params(source)
    draw = lambda seed: adapt(params, source, tokenizer, **NORMAL | {"seed": seed})[0]["token"]["embedding"]
    drawn, again, other, table_VxD = draw(0), draw(0), draw(1), params["token"]["embedding"]
    is_new = np.array([len(ids) > 1 for ids in initialization.find_pieces(source, tokenizer)])
    np.testing.assert_array_equal(drawn, again)
    np.testing.assert_array_equal(drawn[~is_new], other[~is_new])
    assert (drawn[is_new] != other[is_new]).all()
    z = (drawn[is_new] - table_VxD.mean(0)) / (1e-5**0.5 * table_VxD.std(0))
    assert 0.8 < z.std() < 1.2 and abs(z).max() < 5


@pytest.mark.parametrize(("how", "expected"), [("first", [0, 1, 2]), ("spread", [0, 2, 4])])
def test_a_shallower_model_has_some_of_the_layers(how, expected):
    tokenizer = train("words")
    params = draw_params(tokenizer) | {"body": {"stack": {"layers": {"kernel": np.arange(6.0)}}}}
    adapted, _ = adapt(params, tokenizer, tokenizer, init__layers=how, model__num_layers=3)
    np.testing.assert_array_equal(adapted["body"]["stack"]["layers"]["kernel"], expected)
    assert adapted["token"]["embedding"] is params["token"]["embedding"]


def test_layers_that_are_spread_are_those_at_their_share_of_the_way():
    for fewer, layers in itertools.combinations_with_replacement(range(1, 80), 2):
        chosen = initialization.select_layers({"layers": np.arange(layers)}, fewer, spreads=True)["layers"]
        assert chosen.tolist() == [number * layers // fewer for number in range(fewer)]


def test_what_has_an_entry_of_the_vocabulary_is_trained_first():
    cfg = small_config("feedforward", "bag", **PLAIN, model__num_layers=1, model__tie_embeddings=False)
    cfg = fields.override(cfg, {"init.embedding_steps": 2, "train.steps": 9, "train.batch_size": 4})
    made, hparams, rows = small_program(cfg), program.make_train_hparams(cfg), batch(4)
    state = made.partitioner.put_state(state_of(jax.eval_shape(made.init_state, hparams)))
    before = made.partitioner.get_state(state).params["model"]
    for step in (1, 2, 3):
        state, _ = made.partitioner.train_step(state, made.partitioner.put_batch(rows), hparams)
        after = made.partitioner.get_state(state).params["model"]
        moved = {name for name in before if not jax.tree.all(jax.tree.map(np.array_equal, before[name], after[name]))}
        assert moved >= {*trainable.VOCABULARY_PARAMS}
        assert (moved == {*trainable.VOCABULARY_PARAMS}) == (step < 3)


def test_what_has_an_entry_of_the_vocabulary_is_the_generator_s_too():
    cfg = small_config(objective="replaced_token_detection", model__tie_embeddings=False)
    params = jax.eval_shape(small_program(cfg).init_state, program.make_train_hparams(cfg)).params
    assert trainable.flag_body(params) == jax.tree.map(lambda leaf: VOCAB not in leaf.shape[:1], params)


@pytest.mark.usefixtures("quick_to_compile")
def test_a_continuation_says_what_it_changed(tmp_path):
    """Of a run of 16 tokens and two layers, whose continuation reads twice as many with the first of them."""
    changes = {"family": "transformer", "num_layers": 2, "num_heads": 2, "positions": "rotary", "cell": ""}
    base = make_letters_config(tmp_path, "first", **{f"model__{name}": value for name, value in changes.items()})
    base = fields.override(base, {"train.steps": 1, "train.checkpoint_every": 1, "model.window": 0})
    train_config(resolution.resolve(base))
    source = {"init.run": base.workdir, "workdir": str(tmp_path / "second"), "pack.seq_len": 32}
    plain = resolution.resolve(base, source)
    scaled = resolution.resolve(base, source, {"model.rope_scaling": "yarn"})
    assert (scaled.model.rope_original_len, scaled.model.rope_factor) == (16, 2.0)
    refusal = get_refusal(resolution.resolve, base, source, {"model.num_layers": 1})
    assert refusal.endswith("its parameters depend on it; init.layers=spread takes some of them")
    fewer = {"model.num_layers": 1, "init.layers": "spread"}
    train_config(resolution.resolve(base, source, {"model.rope_scaling": "yarn"}, fewer))
    (start,) = RunDirectory(tmp_path / "second").read_provenance()
    assert start["source"]["path"] == base.workdir and start["source"]["sha256"] == plain.init.run_sha256
    (line,) = start["source"]["changes"]
    for expected in ("num_layers is 2 there and 1 here", "rope_scaling is '' there and 'yarn' here"):
        assert f"config.model.{expected}" in line
