"""Documents packed once into rows of a fixed length, memory-mapped from then on."""
import contextlib
import hashlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from absl import logging

from mlm import config
from mlm.data import corpus, store, tokenizer
from mlm.data.tokenizer import CLS, NUM_SPECIAL, PAD, SEP

FORMAT = 1            # of the files: a change of what they hold must change this number
BLOCK = 4096          # rows written at a time
BATCH = 2 ** 20       # characters tokenized at a time
WINDOW = 2 ** 20      # tokens of documents among which segment_pair draws the second segment
Document = list[list[int]]  # token ids of its sentences


@dataclass(frozen=True)
class Rows:
    """The packed rows of one split. N rows, L tokens a row, V entries of the vocabulary; PAD fills the end of a row."""

    ids_NxL: np.ndarray        # uint16, or uint32 where the vocabulary asks for it
    segments_NxL: np.ndarray   # uint16: tokens see each other where this is equal; from 1, 0 on padding
    positions_NxL: np.ndarray  # uint16: of a token in its segment, from 0
    types_NxL: np.ndarray      # uint8: 1 in the second segment of a pair
    label_N: np.ndarray        # uint8: 1 where the second segment is the true next one
    unigram_V: np.ndarray      # int64: counts of the tokens in the rows of the train split, 0 for the special ones
    tokenizer: tokenizer.Tokenizer
    manifest: dict             # "inputs", "sha256" of each file, and counts of each split

    def __len__(self) -> int:
        return len(self.ids_NxL)


def load(knobs: config.Config, split: str) -> Rows:
    """The rows of one split ("train" or "validation"), made where they are not yet under knobs.data.cache.

    Made once for a corpus (by content), a tokenizer and a config.pack, both splits together; a file that changed since
    is noticed and made again. Raises config.ConfigError as corpus.documents and tokenizer.train do.
    """
    config.one_of("split", split, corpus.SPLITS)
    config.one_of("config.pack.mode", knobs.pack.mode, list(MODES))
    content = corpus.fingerprint(knobs.data)
    words = _vocabulary(knobs, content)
    isolate = knobs.pack.isolate and knobs.pack.mode == "full_sentences"  # elsewhere rows hold one document or pair
    inputs = {"format": FORMAT, "corpus": content, "kind": words.kind,
              "tokenizer": hashlib.sha256(words.model).hexdigest(),
              "mode": knobs.pack.mode, "length": knobs.pack.length, "isolate": isolate}

    def make(folder):
        counts = {}
        for part in corpus.SPLITS:
            unigram_V = np.zeros(words.vocab_size, np.int64)
            rows = MODES[knobs.pack.mode](_tokenize(knobs.data, part, words), knobs.pack.length)
            counts[part] = _write(folder, part, rows, knobs.pack, isolate, unigram_V)
            config.expect(counts[part]["rows"] > 0, "config.pack.mode", knobs.pack.mode,
                          f"a corpus that fills a row of the {part} split")
            logging.info("packed %s: %d rows, %d tokens, %.1f%% padding", part, counts[part]["rows"],
                         counts[part]["tokens"], 100 * counts[part]["padding"])
            if part == "train":
                unigram_V[:NUM_SPECIAL] = 0
                unigram_V.tofile(folder / "unigram.bin")
        return counts

    folder, manifest = store.made(knobs.data.cache, "rows", inputs, make, parts=(split, "unigram"))
    shape = (manifest[split]["rows"], knobs.pack.length)
    arrays = {"types": np.broadcast_to(np.uint8(0), shape), "label": np.broadcast_to(np.uint8(0), shape[:1])}
    for name, (dtype, wide) in _dtypes(knobs.pack.mode, words.vocab_size).items():
        arrays[name] = np.memmap(folder / f"{split}.{name}.bin", dtype, "r", shape=shape if wide else shape[:1])
    return Rows(arrays["ids"], arrays["segments"], arrays["positions"], arrays["types"], arrays["label"],
                np.fromfile(folder / "unigram.bin", np.int64), words, manifest)



def _vocabulary(knobs, content):
    def make(folder):
        words = tokenizer.train(knobs.tokenizer, _progress(corpus.to_learn(knobs.data), "reading for the vocabulary"))
        return {"file": words.save(folder).name}

    inputs = {"format": FORMAT, "corpus": content, "kind": knobs.tokenizer.kind, "size": knobs.tokenizer.vocab_size}
    folder, manifest = store.made(knobs.data.cache, "tokenizer", inputs, make)
    return tokenizer.load(folder / manifest["file"])


def _progress(texts, what):
    start = told = time.monotonic()
    done = 0
    for text in texts:
        yield text
        done += len(text)
        if (now := time.monotonic()) - told > 5:
            told = now
            logging.info("%s: %.1f million characters, %.2f a second", what, done / 1e6, done / 1e6 / (now - start))


def _tokenize(data, split, words) -> Iterator[Document]:
    """The split's documents as token ids, many sentences at a time: that is faster than one by one."""
    batch, ends, size = [], [], 0
    for text in _progress(corpus.documents(data, split), f"packing {split}"):
        batch.extend(corpus.sentences(text))
        ends.append(len(batch))
        size += len(text)
        if size > BATCH:
            yield from _encode(words, batch, ends)
            batch, ends, size = [], [], 0
    yield from _encode(words, batch, ends)


def _encode(words, batch, ends):
    ids = words.encode_batch(batch)
    for first, last in zip([0, *ends], ends, strict=False):
        if document := [sentence for sentence in ids[first:last] if sentence]:
            yield document


# -------------------------------------------------------------------------------------------------------- three modes
class Row(NamedTuple):
    ids: list[int]         # without padding
    pieces: list[int]      # their lengths: one a document
    second: int            # where the second segment of a pair starts, or the end of the row
    label: int


def full_sentences(documents: Iterator[Document], length: int) -> Iterator[Row]:
    """Rows filled with whole sentences across documents, [SEP] after each document (RoBERTa, arXiv:1907.11692, 4.2)."""
    return _fill(documents, length, across=True)


def doc_sentences(documents: Iterator[Document], length: int) -> Iterator[Row]:
    """Rows filled with whole sentences of one document (RoBERTa, arXiv:1907.11692, 4.2)."""
    return _fill(documents, length, across=False)


def _fill(documents, length, across):
    """No token is lost: a sentence too long for any row is cut where rows end, the others at no place."""
    ids, pieces, start = [CLS], [], 0

    def close():  # the document's part in this row; there is always room for its [SEP]
        nonlocal start
        if len(ids) > max(start, 1):
            ids.append(SEP)
            pieces.append(len(ids) - start)
            start = len(ids)

    def flush():
        nonlocal ids, pieces, start
        close()
        if pieces:
            yield Row(ids, pieces, len(ids), 0)
        ids, pieces, start = [CLS], [], 0

    for document in documents:
        for sentence in document:
            fits_a_row = len(sentence) <= length - 2
            if len(ids) + len(sentence) >= length and (fits_a_row or len(ids) == length - 1):
                yield from flush()
            while len(ids) + len(sentence) >= length:
                room = length - 1 - len(ids)
                ids.extend(sentence[:room])
                sentence = sentence[room:]
                yield from flush()
            ids.extend(sentence)
        close()
        if not across or len(ids) >= length - 1:
            yield from flush()
    yield from flush()


def segment_pair(documents: Iterator[Document], length: int) -> Iterator[Row]:
    """[CLS] A [SEP] B [SEP], where B follows A in half of the rows (BERT, arXiv:1810.04805, 3.1 and A.2).

    A and B are runs of sentences that fill the row together. Otherwise B comes from another of the documents read
    about the same time, where there is another, and the sentences that followed A start the next row.
    """
    draw = random.Random(0)
    owed = [0]  # true pairs that were wished for where nothing followed A
    for window, others in _windows(documents, length):
        for document in window:
            yield from _pairs(document, others, length - 3, draw, owed)


def _windows(documents, length):
    """Documents in groups of about WINDOW tokens, each with all those that B may come from: its own and the last."""
    last, window, size = [], [], 0
    for document in documents:
        # A sentence takes at most half of a row, so that something else always fits beside it.
        half = (length - 3) // 2
        window.append([s[i:i + half] for s in document for i in range(0, len(s), half)])
        size += sum(map(len, document))
        if size > WINDOW and len(window) > 1:
            yield window, last + window
            last, window, size = window, [], 0
    if window:
        yield window, last + window


def _pairs(document, others, target, draw, owed):
    first = 0
    while first < len(document):
        end, size = first, 0
        while end < len(document) and size < target:
            size += len(document[end])
            end += 1
        follows = draw.random() < 0.5
        if end - first == 1:  # the last sentence: nothing follows it
            owed[0] += follows
            follows = False
        elif not follows and owed[0]:
            owed[0] -= 1
            follows = True
        middle = draw.randint(first + 1, max(first + 1, end - 1))
        a = [i for sentence in document[first:middle] for i in sentence]
        if follows:
            b = [i for sentence in document[middle:end] for i in sentence]
            first = end
        else:
            b = _elsewhere(document, others, target - len(a), draw)
            first = middle
        if b:
            a, b = _truncate(a, b, target, draw)
            ids = [CLS, *a, SEP, *b, SEP]
            yield Row(ids, [len(ids)], len(a) + 2, int(follows))


def _elsewhere(document, others, wanted, draw):
    """At least `wanted` tokens, where there are, from a random place of another document."""
    other = draw.choice(others)
    while other is document and len(others) > 1:
        other = draw.choice(others)
    ids = []
    for sentence in other[draw.randrange(len(other)):]:
        if len(ids) >= wanted:
            break
        ids.extend(sentence)
    return ids


def _truncate(a, b, target, draw):
    """Shortens the longer of both, then both alike, each at both ends at random, until they fit."""
    short = min(len(a), len(b), target // 2)
    keep_a = short if len(a) <= len(b) else min(len(a), target - short)
    keep_b = min(len(b), target - keep_a)
    cut_a, cut_b = draw.randint(0, len(a) - keep_a), draw.randint(0, len(b) - keep_b)
    return a[cut_a:cut_a + keep_a], b[cut_b:cut_b + keep_b]


MODES = {"full_sentences": full_sentences, "doc_sentences": doc_sentences, "segment_pair": segment_pair}


# -------------------------------------------------------------------------------------------------------------- files
def _dtypes(mode, vocab_size):
    """File -> (type, whether it holds a value a token). Pairs alone have sentence kinds and labels."""
    ids = np.uint16 if vocab_size <= 2 ** 16 else np.uint32
    files = {"ids": (ids, True), "segments": (np.uint16, True), "positions": (np.uint16, True)}
    return files | ({"types": (np.uint8, True), "label": (np.uint8, False)} if mode == "segment_pair" else {})


def _write(folder, split, rows, knobs, isolate, unigram_V) -> dict:
    """Writes a split's rows block by block, adds their tokens to unigram_V, and returns the counts."""
    length, count, tokens = knobs.length, 0, 0
    dtypes = _dtypes(knobs.mode, len(unigram_V))
    block = {name: np.zeros((BLOCK, length) if wide else BLOCK, dtype) for name, (dtype, wide) in dtypes.items()}
    block["ids"].fill(PAD)
    filled = 0
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(folder / f"{split}.{name}.bin", "wb")) for name in dtypes}

        def flush():
            ids = block["ids"][:filled]
            unigram_V[:] += np.bincount(ids.ravel(), minlength=len(unigram_V))
            for name, file in files.items():
                file.write(block[name][:filled].tobytes())
                block[name].fill(PAD if name == "ids" else 0)

        for row in rows:
            used = len(row.ids)
            block["ids"][filled, :used] = row.ids
            pieces = row.pieces if isolate else [used]
            end = 0
            for segment, piece in enumerate(pieces, 1):
                start, end = end, end + piece
                block["segments"][filled, start:end] = segment
                block["positions"][filled, start:end] = np.arange(piece)
            if knobs.mode == "segment_pair":
                block["types"][filled, row.second:used] = 1
                block["label"][filled] = row.label
            filled, count, tokens = filled + 1, count + 1, tokens + used
            if filled == BLOCK:
                flush()
                filled = 0
        flush()
    return {"rows": count, "tokens": tokens, "padding": 1 - tokens / max(1, count * length)}
