"""Labelled rows: from a task's files to columns, labels and what predictions are written from."""
import random

import jax.numpy as jnp
import numpy as np
import pytest

from mlm.base import config, fields, types
from mlm.base.special import CLS, PAD, SEP
from mlm.data.rows import labelled, loader, pack
from mlm.data.tokenizers import kinds

WORDS = [f"w{i}" for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    kinds.train(config.Tokenizer("words", 0), [" ".join(WORDS)]).save(folder)
    return str(folder)


def asked(folder, tokenizer, **changes):
    base = {"data.task": "own", "data.task_path": str(folder), "data.cache": str(folder / "cache"),
            "tokenizer.path": tokenizer, "pack.length": 16, "data.labelled.train": "train", "data.labelled.dev": "dev"}
    named = {f"data.labelled.{name}": value for name, value in changes.items() if "__" not in name}
    other = {name.strip("_").replace("__", "."): value for name, value in changes.items() if "__" in name}
    cfg = pack.resolve(fields.override(config.Config(), base | named | other))
    pack.check(cfg)
    return cfg


def write(folder, name, *lines):
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


def text(draw, longest=8):
    return " ".join(draw.choices(WORDS, k=draw.randint(1, longest)))


def tokens(rows):
    return [[i for i in row.tolist() if i != PAD] for row in rows["ids"]]


def test_a_pair_is_a_row_whose_texts_see_each_other(tmp_path, tokenizer):
    draw = random.Random(0)
    pairs = [(text(draw, 20), text(draw, 20), draw.choice(["no", "yes"])) for _ in range(60)]
    for name, part in (("train", pairs), ("dev", pairs[:5]), ("test", pairs[5:9])):
        write(tmp_path, name, "a\tlabel\tb", *(f"{a}\t{label}\t{b}" for a, b, label in part))
    cfg = asked(tmp_path, tokenizer, format="tsv", text="a", second="b", label="label", test="test")
    packed = pack.load(cfg)
    assert packed.about.labels == ("label_B",) and packed.about.classes == ("no", "yes")
    known = kinds.given("", tokenizer)
    truncated = 0
    for at, (a, b, label) in enumerate(pairs):
        a, b = known.encode(a), known.encode(b)
        truncated += len(a) + len(b) > 13
        while len(a) + len(b) > 13:  # the longer one loses its last token
            (a if len(a) > len(b) else b).pop()
        row = [CLS, *a, SEP, *b, SEP]
        assert tokens(packed.train)[at] == row
        assert packed.train["segments"][at].tolist() == [1] * len(row) + [0] * (16 - len(row))
        assert packed.train["positions"][at, :len(row)].tolist() == list(range(len(row)))
        assert packed.train["types"][at].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (16 - len(row))
        assert packed.train["label"][at] == ("no", "yes").index(label)
    said = packed.manifest
    assert said["classes"] == ["no", "yes"] and said["train"]["truncated"] == truncated > 0
    assert said["counts"] == {name: sum(label == name for *_, label in pairs) for name in ("no", "yes")}
    assert said["train"]["rows"] == 60 and said["train"]["tokens"] == sum(map(len, tokens(packed.train)))
    counted_V = np.bincount(packed.train["ids"].ravel(), minlength=known.vocab_size)
    counted_V[PAD] = 0
    assert np.array_equal(np.frombuffer(packed.about.unigram, np.int64), counted_V)
    for split, part in (("train", pairs), ("validation", pairs[:5]), ("test", pairs[5:9])):
        kept = list(labelled.examples(packed, split))
        assert [(*one.example.texts, one.example.label) for one in kept] == part
        assert [one.rows for one in kept] == [range(i, i + 1) for i in range(len(part))]
        assert [one.example.id for one in kept] == [str(i) for i in range(len(part))]
    assert len(packed.validation["ids"]) == 5 and len(packed.others["test"]["ids"]) == 4
    assert pack.shape(cfg, known.vocab_size)._replace(unigram=b"", counts=b"") == packed.about._replace(
        unigram=b"", counts=b"")


def test_numbers_stay_numbers_with_their_fraction(tmp_path, tokenizer):
    for name in ("train", "dev"):
        write(tmp_path, name, *(f'{{"t": "w1 w{i}", "n": {i / 4}, "name": "e{i}"}}' for i in range(10)))
    cfg = asked(tmp_path, tokenizer, format="jsonl", text="t", label="n", id="name", objective__="regress")
    packed = pack.load(cfg)
    assert packed.about.labels == ("value_B",) and packed.about.classes == ()
    batch = next(loader.train_batches(packed.train, seed=0, batch_size=4, start_step=0))
    assert batch.labels["value_B"].dtype == np.float32
    numbers = [int(packed.tokenizer.pieces[i][1:]) / 4 for i in batch.text.ids_BxL[:, 2]]
    assert batch.labels["value_B"].tolist() == numbers
    shapes = types.abstract(4, packed.about)
    assert shapes.labels["value_B"].dtype == jnp.float32 and shapes.labels["value_B"].shape == (4,)
    assert [one.example.id for one in labelled.examples(packed, "train")] == [f"e{i}" for i in range(10)]
