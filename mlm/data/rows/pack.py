"""Documents packed once into rows of a fixed length, memory-mapped from then on."""
import contextlib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from absl import logging

from mlm.base import config, errors
from mlm.base.special import NUM_SPECIAL, PAD
from mlm.data.rows import store
from mlm.data.rows.fill import MODES, Document
from mlm.data.text import corpus
from mlm.data.tokenizers import kinds, tokenizer

FORMAT = 1            # of the files: a change of what they hold must change this number
BLOCK = 4096          # rows written at a time
BATCH = 2 ** 20       # characters tokenized at a time


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
    is noticed and made again. Raises errors.ConfigError as corpus.documents and kinds.train do.
    """
    errors.one_of("split", split, corpus.SPLITS)
    errors.one_of("config.pack.mode", knobs.pack.mode, list(MODES))
    content = corpus.fingerprint(knobs.data)
    words = vocabulary(knobs, content)
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
            errors.expect(counts[part]["rows"] > 0, "config.pack.mode", knobs.pack.mode,
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


def vocabulary(knobs: config.Config, content: str) -> tokenizer.Tokenizer:
    """The tokenizer learnt from the corpus of this content (`corpus.fingerprint`), made where the cache lacks it.

    Raises ConfigError where it would have to be made and the corpus holds something else by now.
    """
    def make(folder):
        if corpus.fingerprint(knobs.data) != content:
            raise errors.ConfigError(f"config.data.cache = {knobs.data.cache!r}: expected the folder that holds the "
                                     "tokenizer, since the corpus that it was learnt from has changed")
        words = kinds.train(knobs.tokenizer, _progress(corpus.to_learn(knobs.data), "reading for the vocabulary"))
        return {"file": words.save(folder).name}

    inputs = {"format": FORMAT, "corpus": content, "kind": knobs.tokenizer.kind, "size": knobs.tokenizer.vocab_size}
    folder, manifest = store.made(knobs.data.cache, "tokenizer", inputs, make)
    return kinds.load(folder / manifest["file"])


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
