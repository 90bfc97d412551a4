"""Text to rows in bulk: the same as a line, a word and a sentence at a time."""

import codecs
import itertools
import random
import tracemalloc

import numpy as np
import pytest
from small import small_config

from mlm.base import config
from mlm.base.special import CLS, SEP
from mlm.data.rows import columns, pack, packing, tokenization, vocabulary
from mlm.data.text import corpus, files
from mlm.data.tokenizers import kinds

ODD = [
    "\n",
    "\n\n",
    " \t\n",
    "\r\n",
    *"\r\x0b\x1c\x85\u2028\u00a0\u3000\ufeff ",
    "  ",
    ". ",
    ".\t",
    "! ",
    "? ",
    *".\u3002\uff1f#a",
    "word",
    "(it's",
    "e\u0301",
    "日本",
    "long" * 30,
]


def reference(documents, length, across):
    """Rows as lists of pieces, a sentence at a time."""
    rows, row, piece = [], [], []

    def count_used():
        return 1 + sum(len(one) + 1 for one in row) + len(piece)

    def close():
        nonlocal piece
        if piece:
            row.append(piece)
        piece = []

    def flush():
        nonlocal row
        close()
        if row:
            rows.append(row)
        row = []

    for document in documents:
        for sentence in document:
            if count_used() + len(sentence) >= length and (len(sentence) <= length - 2 or count_used() == length - 1):
                flush()
            while count_used() + len(sentence) >= length:
                room = length - 1 - count_used()
                piece, sentence = piece + sentence[:room], sentence[room:]
                flush()
            piece = piece + sentence
        close()
        if not across or count_used() >= length - 1:
            flush()
    flush()
    return rows


def batches(documents, draw):
    """The documents as fill takes them, cut anywhere between sentences."""
    flat = [(s, n == len(d) - 1) for d in documents for n, s in enumerate(d)]
    while flat:
        some, flat = flat[: (size := draw.randint(1, 9))], flat[size:]
        yield packing.SentenceBatch(
            np.array([i for s, _ in some for i in s], np.int32),
            np.array([len(s) for s, _ in some]),
            np.array([last for _, last in some]),
        )


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("mode", ["full_sentences", "doc_sentences"])
def test_rows_are_those_of_a_sentence_at_a_time(mode, isolate):
    for seed in range(30):
        draw = random.Random(seed)
        length, ids = draw.randint(8, 20), iter(range(5, 10**6))
        documents = [
            [
                [next(ids) for _ in range(draw.choice([0, 1, 2, 5, length - 3, length - 2, length - 1, 30]))]
                for _ in range(draw.randint(1, 5))
            ]
            for _ in range(draw.randint(1, 30))
        ]
        expected = reference(documents, length, across=mode == "full_sentences")
        rows = packing.PACKERS[mode](batches(documents, draw), length)
        blocks = [columns.expand_columns(packing.build_columns(filled, length, isolate)) for filled in rows]
        found = {
            name: np.concatenate([block[name] for block in blocks]) if blocks else []
            for name in ("ids", "segments", "positions")
        }
        assert len(found["ids"]) == len(expected), f"seed {seed}"
        for at, row in enumerate(expected):
            pieces = [([CLS] if n == 0 else []) + piece + [SEP] for n, piece in enumerate(row)]
            whole = list(itertools.chain.from_iterable(pieces))
            pieces = pieces if isolate else [whole]
            pad = [0] * (length - len(whole))
            assert found["ids"][at].tolist() == whole + pad, f"seed {seed}"
            assert found["segments"][at].tolist() == [n for n, one in enumerate(pieces, 1) for _ in one] + pad
            assert found["positions"][at].tolist() == [n for one in pieces for n in range(len(one))] + pad


@pytest.mark.parametrize(
    "kind, size", [("wordpiece", 300), ("bpe", 400), ("unigram", 120), ("words", 60), ("characters", 40)]
)
def test_texts_have_the_ids_of_each_alone(kind, size, monkeypatch):
    draw = random.Random(0)
    words = ["a", "word.", "(so)", "it's", "Words", "日本", "x-y", "é!"]
    usual = [
        " ".join(draw.choice(words) + str(draw.randrange(90)) for _ in range(draw.randint(1, 12))) for _ in range(300)
    ]
    odd = ["".join(draw.choice(ODD) for _ in range(draw.randint(1, 12))).strip() for _ in range(300)]
    tokenizer = kinds.train_tokenizer(config.Tokenizer(kind=kind, vocab_size=size), usual + odd)
    monkeypatch.setattr(tokenization, "MAX_CACHED_WORDS", 150)  # what is known is forgotten now and then
    monkeypatch.setattr(tokenization, "BATCH_CHARACTERS", 500)
    texts = [text for text in (*usual, *odd, *map("\n".join, zip(usual, odd, strict=True))) if text.strip()]
    if kind == "unigram":  # whose sums round otherwise in a sentence and in its document
        texts = [text for text in texts if len(list(corpus.split_sentences(text))) == 1]
    draw.shuffle(texts)
    _, batches = zip(*tokenization.tokenize_documents((("", text.strip()) for text in texts), tokenizer), strict=True)
    ids_T, size_S, ends_S = map(np.concatenate, zip(*batches, strict=True))
    ids = np.split(ids_T, np.cumsum(size_S)[ends_S])
    assert [list(part) for part in ids] == [*(list(tokenizer.encode(text.strip())) for text in texts), []]


def split_by_line(raw, starts):
    """The documents of a file's bytes, a line at a time."""
    found, document = [], ""
    for number, line in enumerate(raw.split(b"\n")):
        text = codecs.decode(line + b"\n", "utf-8", "replace").replace("\0", "").replace("\r\n", "\n")
        text = text.removeprefix("\ufeff") if number == 0 else text
        if starts(text):
            found.append(document)
            document = ""
        document += text
    return [text for text in map(str.strip, [*found, document]) if text]


@pytest.mark.parametrize("name", ["file", "line", "blank_line", "[#a].*"])
def test_documents_are_those_of_a_line_at_a_time(tmp_path, monkeypatch, name):
    boundary = files.make_boundary("", name)
    for seed in range(40):
        draw = random.Random(seed)
        monkeypatch.setattr(files, "LINE_PIECE_BYTES", draw.choice([200, 1000, 2**20]))
        bad = [*map(str.encode, ODD), *draw.choice([[], [b"\0", b"\xff", b"\xe6\x97"]])]
        raw = b"".join(draw.choice(bad) for _ in range(draw.randint(1, 900)))
        raw = b"\n".join(line[:199] for line in raw.split(b"\n"))  # longer ones come in pieces
        (tmp_path / "a.txt").write_bytes(raw)
        expected = split_by_line(raw, boundary)
        found = files.read_documents([str(tmp_path / "a.txt")], boundary)
        assert [one.text for one in found] == expected, f"seed {seed}"


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_text(tmp_path):
    peaks = []
    for count in (3000, 9000):
        draw = random.Random(0)
        path = tmp_path / f"{count}.txt"
        path.write_text("\n\n".join(" ".join(f"w{draw.randrange(10**6)}" for _ in range(80)) for _ in range(count)))
        cfg = small_config(
            data__path=str(path),
            data__document_boundary="blank_line",
            data__cache_dir=str(tmp_path / str(count)),
            tokenizer__kind="words",
            tokenizer__vocab_size=1000,
            pack__seq_len=64,
        )
        content = corpus.compute_fingerprint(cfg.data)
        vocabulary.get_or_train_tokenizer(cfg, content)
        tracemalloc.start()
        pack.load_dataset(cfg)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_sentences_are_those_that_the_expression_ends():
    draw = random.Random(0)
    for _ in range(2000):
        text = "".join(draw.choice(ODD) for _ in range(draw.randint(1, 12)))
        assert list(corpus.split_sentences(text)) == [
            s for part in corpus.SENTENCE_END.split(text) if (s := part.strip())
        ]
