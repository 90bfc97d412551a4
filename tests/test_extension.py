"""A folder's BPE with words as further entries: the ids of all other words, as its steps cut a text, stay the same."""

import itertools
import json
import random

import numpy as np
import pytest
from fixtures import tokenizer_lines as theirs
from layouts import LAYOUTS, TEXT
from layouts import write as write_layout
from small import get_refusal, load_arrays
from test_tokenizer_peers import train_tokenizer, written

from mlm.base import config, fields
from mlm.data.rows import tokenization, vocabulary
from mlm.data.text import corpus
from mlm.data.tokenizers import hub, hub_model, kinds
from mlm.training.run import initialization

WORDS = ["zebra", "quagga", "he", "zo\u00ebs", "\u4e2d\u6587\u6587\u5b57\u6587"]
MARKS = [*" \t\n.,'_7\u20ac\xb2\u3000\u3002\u0301\ufdd0\u2581\u0120  ", "  ", "<x>", "[MASK]", "<mask>", "</w>", "<s>"]
PARTS = [*WORDS * 2, *MARKS * 2, "Zebra", "s", "x", "zebras", *TEXT.split()[:12]]
NAMES = ("bytes of RoBERTa", "bytes", "bytes, space before", "bytes, line ends with marks", "a run's")


def read(name, folder):
    """The tokenizer of a folder, with an added token that takes the white space on both sides along."""
    if name == "a run's":
        tokenizer = hub.read_tokenizer(written(train_tokenizer("bpe"), folder))
    elif name in LAYOUTS:
        tokenizer = hub.read_tokenizer(write_layout(name, folder))
    else:
        tokenizer = hub.read_tokenizer(theirs.write(load_arrays(theirs.PATH), name.removesuffix(" of RoBERTa"), folder))
    saved = json.loads(tokenizer.model)
    added, number = saved["tokenizer"]["added_tokens"], len(hub_model.get_entry_ids(saved["tokenizer"]))
    flags = {"single_word": False, "lstrip": True, "rstrip": True, "normalized": False, "special": False}
    added.append({"id": number, "content": "<x>", **flags})
    return hub_model.build_tokenizer(json.dumps(saved).encode())


@pytest.mark.parametrize("name", NAMES)
def test_each_word_keeps_its_ids_but_a_new_one_which_has_one(name, tmp_path):
    source, draws = read(name, tmp_path), random.Random(seed := random.randrange(2**32))
    extended = kinds.extend_tokenizer(source, [*WORDS, "zebra", "two words", "zebra."])
    print(f"seed {seed}")
    number, before = (hub_model.get_entry_ids(json.loads(one.model)["tokenizer"]) for one in (extended, source))
    new = number.keys() - before.keys()
    assert before.items() <= number.items() and 3 <= len(new) <= len(WORDS)
    assert extended.pieces[source.vocab_size].strip("\u2581") == "zebra"  # the most frequent
    tool = hub_model._build_text_backend(*map(json.loads(source.model).get, ("tokenizer", "special")))
    texts = ["".join(draws.choices(PARTS, k=draws.randint(1, 30))).strip() for _ in range(400)]
    texts = list(filter(None, [*texts, *theirs.LINES, *(f"a {word}, {word}s {word}" for word in WORDS)]))
    expected = []
    for text in texts:
        encoding, ids = tool.encode(text, add_special_tokens=False), []
        tokens = zip(encoding.word_ids, encoding.tokens, encoding.ids, strict=True)
        for _, word in itertools.groupby(tokens, lambda token: token[0]):
            _, pieces, word_ids = zip(*word, strict=True)
            ids += [number["".join(pieces)]] if "".join(pieces) in new else word_ids
        expected.append(ids)
    order_V, found = hub_model.get_original_ids(extended), extended.encode_batch(texts)
    for text, ids, wanted in zip(texts, found, expected, strict=True):
        assert order_V[ids].tolist() == wanted, text
    assert {i for ids in found for i in ids} >= {*range(source.vocab_size, extended.vocab_size)}
    batches = tokenization.tokenize_documents((("", text) for text in texts), extended)
    assert [i for _, batch in batches for i in batch.ids_T] == [*itertools.chain.from_iterable(found)]

    assert hub.read_tokenizer(written(extended, tmp_path)).encode_batch(texts) == found


REFUSED = {
    "cased": "the tokenizer = 'WordPiece': expected byte-level BPE of a Hugging Face folder",
    "pieces": "the tokenizer = 'Unigram': expected byte-level BPE of a Hugging Face folder",
    "end of word": "the tokenizer = 'BPE': expected byte-level BPE of a Hugging Face folder",
    "a word added to merges": "expected a tokenizer whose merges give its entry 'brown'",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_whose_other_words_might_change_is_refused(name, tmp_path):
    message = get_refusal(kinds.extend_tokenizer, read(name, tmp_path), WORDS)
    assert f"config.tokenizer.new_words: {REFUSED[name]}" in message and "\n" not in message


@pytest.mark.parametrize("change", [{"type": "Unigram"}, {"dropout": 0.1}])
def test_only_bpe_without_dropout_is_extended(change, tmp_path):
    saved = json.loads((source := read("bytes", tmp_path)).model)
    saved["tokenizer"]["model"] |= change
    source = source._replace(model=json.dumps(saved).encode())
    assert "expected byte-level BPE of" in get_refusal(kinds.extend_tokenizer, source, WORDS)


def test_a_run_takes_the_words_of_its_text_and_keeps_the_entries_of_its_source(tmp_path):
    """The new entries are the means of their pieces, and all others those of the source."""
    source = read("bytes of RoBERTa", tmp_path)
    source.save(tmp_path / "source")
    (tmp_path / "a.txt").write_text("".join(f"zebra quagga {i} zebra\n" for i in range(99)))
    changes = {"data.corpus": "text", "data.document_boundary": "line", "data.validation_fraction": 0.2}
    paths = {"data.path": "a.txt", "data.cache_dir": "cache", "tokenizer.path": "source"}
    changes |= {name: str(tmp_path / path) for name, path in paths.items()} | {"init.new_vocabulary": True}
    make = lambda count: fields.override(config.Config(), changes | {"tokenizer.new_words": count})
    build = lambda count: vocabulary.get_or_train_tokenizer(cfg := make(count), corpus.compute_fingerprint(cfg.data))
    extended = build(2)
    assert extended.pieces[-2:] == ["\u2581zebra", "\u2581quagga"] and build(0).model == source.model
    table_VxD = np.random.default_rng(0).normal(size=(source.vocab_size, 4))
    adapted, _ = initialization.adapt_params(make(2), {"bias": table_VxD}, source, extended)
    np.testing.assert_array_equal(adapted["bias"][:-2], table_VxD)
    np.testing.assert_allclose(adapted["bias"][-2], table_VxD[source.encode("zebra")].mean(0))
    assert "new_words = 3: expected at most 2, the words of the text" in get_refusal(build, 3)
