"""A tokenizer with words as further entries: its own keep their ids, and so do texts without the words."""

import json

import numpy as np
import pytest
import tokenizers
from fixtures import tokenizer_lines as theirs
from small import get_refusal, load_arrays
from test_tokenizer_peers import train_tokenizer, written

from mlm.base import config, fields
from mlm.base.special import UNK
from mlm.data.rows import vocabulary
from mlm.data.text import corpus
from mlm.data.tokenizers import extension, hub, hub_model
from mlm.training.run import initialization

WORDS = ["zebra", "Quagga", "électron"]  # in no line
read = lambda name, folder: hub.read_tokenizer(theirs.write(load_arrays(theirs.PATH), name, folder))


@pytest.mark.parametrize("name", [*theirs.FOLDERS, "a word beside all", "a word beside merges"])
def test_a_new_word_has_one_id_and_other_text_keeps_its_own(name, tmp_path):
    source = read(name, tmp_path)
    extended = extension.extend_tokenizer(source, [*WORDS, "zebra", "the big"])
    assert extended.pieces[: source.vocab_size] == source.pieces and extended.vocab_size == source.vocab_size + 3
    assert extended.pieces[source.vocab_size].strip("▁") == "zebra"  # the most frequent
    order_V, source_order_V = map(hub_model.get_original_ids, (extended, source))
    np.testing.assert_array_equal(order_V[: source.vocab_size], source_order_V)
    assert extended.splits_at_spaces == source.splits_at_spaces and extended.keeps_space == source.keeps_space
    lines = [*theirs.LINES, *([] if name == "pieces" else ["the zebras", "the xzebra", "the électronique"])]
    assert extended.encode_batch(lines) == source.encode_batch(lines)
    text = "the zebra Quagga, électron."
    ids = extended.encode(text)
    assert sorted(i for i in ids if i >= source.vocab_size) == [*range(source.vocab_size, extended.vocab_size)]
    assert extended.decode(ids) in (text, text.lower().replace("é", "e")) and UNK not in ids

    folder = written(extended, tmp_path)  # over the source's
    expected, again = order_V[ids].tolist(), hub.read_tokenizer(folder)
    assert hub_model.get_original_ids(again)[again.encode(text)].tolist() == expected
    tool = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tool.encode(text, add_special_tokens=False).ids == expected
    transformers = pytest.importorskip("transformers")
    assert transformers.AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"] == expected


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "words", "unigram"])
def test_ours_are_extended_as_they_are_exported(kind):
    source = train_tokenizer(kind)
    extended = extension.extend_tokenizer(source, WORDS)
    assert extended.pieces[: source.vocab_size] == source.pieces
    for line in filter(str.isascii, theirs.LINES):
        assert extended.encode(line) == source.encode(line)
    assert len({*extended.encode(" ".join(WORDS))} - {*range(source.vocab_size)}) == len(WORDS)


def test_a_run_extends_its_source_by_the_words_of_its_text(tmp_path):
    """The new entries are the means of their pieces, and all others those of the source, in place of its padding."""
    source = read("cased", tmp_path)
    padded = json.loads(source.model) | {"vocab_size": source.vocab_size + 1}
    source = hub_model.build_tokenizer(json.dumps(padded).encode())
    source.save(tmp_path / "source")
    (tmp_path / "a.txt").write_text("".join(f"zebra Quagga {i} zebra\n" for i in range(99)))
    size = source.vocab_size + 1
    changes = {"data.corpus": "text", "data.document_boundary": "line", "data.validation_fraction": 0.2}
    paths = {"data.path": "a.txt", "data.cache_dir": "cache", "tokenizer.path": "source"}
    changes |= {name: str(tmp_path / path) for name, path in paths.items()} | {"init.new_vocabulary": True}
    make = lambda size: fields.override(config.Config(), changes | {"tokenizer.extend_to": size})
    build = lambda size: vocabulary.get_or_train_tokenizer(cfg := make(size), corpus.compute_fingerprint(cfg.data))
    extended = build(size)
    assert extended.pieces[-2:] == ["zebra", "Quagga"] and build(0).model == source.model
    table_VxD = np.random.default_rng(0).normal(size=(source.vocab_size, 4))
    adapted, changed = initialization.adapt_params(make(size), {"bias": table_VxD}, source, extended)
    np.testing.assert_array_equal(adapted["bias"][:-2], table_VxD[:-1])
    np.testing.assert_allclose(adapted["bias"][-2], table_VxD[source.encode("zebra")].mean(0))
    assert changed == [
        f"of {size} entries of the vocabulary {size - 2} are one of the source's, the others means of some"
    ]
    assert f"from {source.vocab_size} to {size}, with each word" in get_refusal(build, size + 1)
