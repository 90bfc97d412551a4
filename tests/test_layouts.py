"""Tokenizers of every layout: a text's ids are those of the whole text, and words and decoding are the library's."""

import itertools
import random
import re

import numpy as np
import pytest
import tokenizers
from layouts import LAYOUTS, LOSSLESS, TEXT, write
from small import get_refusal, mark_further, small_config

from mlm.base import config, errors
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP, UNK
from mlm.data.rows import pack, tokenization
from mlm.data.text import corpus
from mlm.data.tokenizers import hub, hub_model, kinds
from mlm.evaluation import prompts
from mlm.inference import pseudo_likelihood
from mlm.training.run import resolution

SIZES = {"bpe": 390, "wordpiece": 180, "unigram": 80, "words": 0, "characters": 0}
NAMES = [*LAYOUTS, *SIZES]
WORDS = "The horse bread was unbelievable horses ran"
PARTS = [
    *"a\t\n\x1f\x85\u2028\u3000\u3002\uff01\u4e2d\ufb01\u200b.",
    "the",
    "Ra",
    "'s",
    " ",
    "  ",
    "\n\n",
    ". ",
    "?\n",
    ".\x1c",
    "7",
    "x" * 30,
]
PATTERN = "{text} The river was [MASK] ."


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of each tokenizer, those of the project's own kinds among them."""
    made = {}
    for name in NAMES:
        made[name] = tmp_path_factory.mktemp("tokenizer")
        if name in SIZES:
            kinds.train_tokenizer(
                config.Tokenizer(name, SIZES[name]), [line + "\n" for line in TEXT.split("\n")] * 3
            ).save(made[name])
        else:
            write(name, made[name])
    return made


def load(folders, name):
    return kinds.load_tokenizer_folder("config.tokenizer.path", str(folders[name]))


def encode_whole(folders, name, text) -> list[int]:
    """Ids of a whole text by the tokenizers library, in our numbers; [MASK] is read there."""
    tokenizer = load(folders, name)
    if name in SIZES:
        return tokenizer.encode(text)
    tool = tokenizers.Tokenizer.from_file(str(folders[name] / hub.TOKENIZER_FILE))
    ours_V = np.argsort(hub_model.get_original_ids(tokenizer))
    return ours_V[tool.encode(text, add_special_tokens=False).ids].tolist()


@pytest.mark.parametrize(
    ("name", "mode"),
    mark_further(
        [(name, mode) for name in NAMES for mode in ("full_sentences", "doc_sentences", "segment_pair", "stream")],
        [(name, "full_sentences") for name in NAMES] + [(NAMES[0], "segment_pair"), (NAMES[0], "stream")],
    ),
)
def test_packed_text_has_the_ids_of_the_whole_text(folders, name, mode, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenization, "BATCH_CHARACTERS", 150)
    lines = [
        TEXT,
        TEXT.replace("\n", " "),
        "No space.\u3000Here!\x85And\u2028there",
        "a. " * 70,
        "x" * 30,
        TEXT[40:] * 9,
    ]
    for number, text in enumerate(lines):
        (tmp_path / f"{number}.txt").write_text(f"{text}\n", encoding="utf-8", newline="")
    (tmp_path / "held_out").write_text("The end.\n  It rained.")
    cfg = resolution.resolve(
        small_config(data__corpus="docstrings"),
        {
            "data.corpus": "text",
            "data.path": str(tmp_path / "*.txt"),
            "data.validation_path": str(tmp_path / "held_out"),
            "data.cache_dir": str(tmp_path / "cache"),
            "tokenizer.path": str(folders[name]),
            "pack.mode": mode,
            "pack.seq_len": 24,
        }
        | ({"objective": "nsp"} if mode == "segment_pair" else {}),
    )
    packed = pack.load_dataset(cfg)
    ids = packed.train["ids"].ravel()
    found = ids[(ids >= NUM_SPECIAL) | (ids == UNK)].tolist()
    texts = (
        ["".join(corpus.read_running_text(cfg.data, "train"))] if mode == "stream" else [text.strip() for text in lines]
    )
    expected = [encode_whole(folders, name, text) for text in texts]
    if mode == "segment_pair":  # samples its pairs
        pairs = {pair for ids in expected for pair in itertools.pairwise(ids)}
        assert sum(pair not in pairs for pair in itertools.pairwise(found)) < 0.2 * len(found)
        return
    assert found == list(itertools.chain.from_iterable(expected))
    if name in (*LOSSLESS, "characters", "bpe"):
        known = [(text, ids) for text, ids in zip(texts, expected, strict=True) if UNK not in ids]
        assert mode == "stream" or len(known) > 0.6 * len(texts)
        assert all(packed.tokenizer.decode(ids) == text for text, ids in known)


@pytest.mark.parametrize("name", NAMES)
def test_documents_of_any_letters_have_the_ids_of_the_whole_text(folders, name):
    tokenizer, draws = load(folders, name), random.Random(0)
    texts = ["".join(draws.choices(PARTS, k=draws.randint(1, 60))).strip() for _ in range(300)]
    _, batches = zip(*tokenization.tokenize_documents((("", text) for text in texts if text), tokenizer), strict=True)
    expected = [tokenizer.encode(text) for text in texts if text]
    assert [i for batch in batches for i in batch.ids_T] == list(itertools.chain.from_iterable(expected))
    assert sum(batch.size_S.sum() for batch in batches) == sum(map(len, expected))
    assert sum(batch.ends_document_S.sum() for batch in batches) == len(expected)


@pytest.mark.parametrize("name", NAMES)
def test_words_are_those_between_spaces(folders, name):
    tokenizer = load(folders, name)
    if name == "no mark":
        assert re.search(
            r"its pieces = .*: expected pieces that show where words begin", get_refusal(tokenizer.pack_word_bounds)
        )
        return
    text = WORDS
    ids, spans = tokenizer.encode_with_offsets(text)
    starts_T = tokenizer.find_word_starts(np.array(ids))
    firsts = {text[: start + 1].count(" ") for (start, end), begins in zip(spans, starts_T, strict=True) if begins}
    assert starts_T[1:].sum() >= len(text.split()) - 1 and starts_T.sum() <= len(text.split()) and firsts >= {1, 2, 3}
    if name != "characters":  # whose spaces are words
        queries = pseudo_likelihood.build_queries(tokenizer, [text], 64)
        word_T = np.array([text[: max(start + 1, end)].count(" ") for start, end in spans])
        for position, end in zip(queries.position_I - 1, queries.end_I - 1, strict=True):
            assert end == position + 1 or (
                len({*word_T[position:end]}) == 1 and (word_T[end : end + 1] > word_T[position]).all()
            )
        assert queries.in_word_l2r_I.sum() == len(ids)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_encoded_as_one_text_and_cut_where_it_is_too_long(folders, name):
    tokenizer = load(folders, name)
    text = "Rain came. The horse slept?"
    (ids_L,), truncated = (lambda made: (made[0].ids_BxL, made[1]))(
        prompts.build_queries(tokenizer, PATTERN, [(text, 0)], 128)
    )
    ids = ids_L[ids_L > 0].tolist()
    filled = PATTERN.replace("{text}", text)
    if name not in SIZES:
        assert ids == [CLS, *encode_whole(folders, name, filled), SEP] and truncated == 0
    assert ids.count(MASK) == 1
    short, truncated = prompts.build_queries(tokenizer, PATTERN, [(text, 0)], len(ids) - 3)
    assert truncated == 1 and len({*short.ids_BxL[0]} - {*ids}) == 0
    cut = short.ids_BxL[0].tolist()
    size = next(i for i, (one, other) in enumerate(zip(ids, cut, strict=False)) if one != other)
    assert cut == ids[:size] + ids[size + 3 :] and cut[short.position_B[0]] == MASK


@pytest.mark.parametrize("name", NAMES)
def test_a_verbalizer_is_the_entry_that_stands_in_the_text(folders, name):
    tokenizer = load(folders, name)
    ids, spans = tokenizer.encode_with_offsets(PATTERN.replace("{text}", ".").replace("[MASK]", "bread"))
    there = [i for i, (start, end) in zip(ids, spans, strict=True) if start < 21 and end > 16]
    if len(there) == 1 and there[0] != UNK:
        assert prompts.encode_verbalizers(tokenizer, PATTERN, {"0": "bread"}).tolist() == there
    else:
        with pytest.raises(errors.ConfigError, match="verbalizer of label 0 = 'bread'"):
            prompts.encode_verbalizers(tokenizer, PATTERN, {"0": "bread"})
