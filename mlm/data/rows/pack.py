"""Documents packed once into rows of a fixed length, memory-mapped from then on."""
import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from absl import logging

from mlm.base import config, errors, files, types
from mlm.base.reads import Rule
from mlm.base.special import NUM_SPECIAL, PAD, UNK
from mlm.data.rows import store
from mlm.data.rows.fill import MODES, Document
from mlm.data.text import corpus, trouble
from mlm.data.tokenizers import kinds
from mlm.data.tokenizers.tokenizer import Tokenizer

FORMAT = 3            # of the files: a change of what they hold must change this number
READ = (Rule(("pack.isolate",), "pack.mode", ("full_sentences",)),  # elsewhere rows hold one document or pair
        Rule(("pack.short_share",), "pack.mode", ("segment_pair",)))
BLOCK = 4096          # rows written at a time
BATCH = 2 ** 20       # characters tokenized at a time
UNKNOWN = 0.01        # share of unknown words above which a warning says so


class Column(NamedTuple):
    """What a file of a split holds of each row."""

    dtype: type
    letters: str          # of its shape, as in types.py: "NxL" or "N"


class Packed(NamedTuple):
    """The rows of both splits, by column: N rows, L tokens a row; PAD fills the end of a row.

    ids_NxL; segments_NxL: tokens see each other where this is equal, from 1, 0 on padding; positions_NxL: of a token in
    its segment, from 0. Of pairs also types_NxL, 1 in the second segment, and the label next_N, 1 where that is the
    true next one.
    """

    train: dict[str, np.ndarray]
    validation: dict[str, np.ndarray]
    tokenizer: Tokenizer
    about: types.About
    manifest: dict             # "inputs", "sha256" of each file, and counts of each split


def resolve(cfg: config.Config) -> config.Config:
    """With the corpus, its vocabulary and how its documents fill rows, where nothing is said."""
    data, knobs, pack = cfg.data, cfg.tokenizer, cfg.pack
    if data.corpus == "auto":
        data = dataclasses.replace(data, corpus="text" if data.path else "language")
    drawn = data.corpus == "language"
    if drawn:
        room = pack.length - 2  # beside [CLS] and [SEP]
        data = dataclasses.replace(data, language=dataclasses.replace(data.language, words=data.language.words or room))
    knobs = dataclasses.replace(knobs, kind=knobs.kind or ("words" if drawn else "unigram"),
                                vocab_size=knobs.vocab_size or (0 if drawn else 8192))
    pack = dataclasses.replace(pack, mode=pack.mode or ("doc_sentences" if drawn else "full_sentences"))
    return dataclasses.replace(cfg, data=data, tokenizer=knobs, pack=pack)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a vocabulary and rows that could not be made."""
    files.check_folder("config.data.cache", cfg.data.cache, writing=False)
    errors.one_of("config.tokenizer.kind", cfg.tokenizer.kind, list(kinds.KINDS))
    errors.one_of("config.pack.mode", cfg.pack.mode, list(MODES))
    errors.number("config.pack.length", cfg.pack.length, 8, 2**16 - 1)  # segments and positions are kept as uint16
    errors.number("config.pack.short_share", cfg.pack.short_share, 0, 1)
    if cfg.data.corpus != "language":
        errors.at_least(6, "config.tokenizer.vocab_size", cfg.tokenizer.vocab_size)
        return
    for name, value, only in (("tokenizer.kind", cfg.tokenizer.kind, "words"),
                              ("tokenizer.vocab_size", cfg.tokenizer.vocab_size, 0),
                              ("pack.mode", cfg.pack.mode, "doc_sentences")):
        errors.expect(value == only, f"config.{name}", value,
                      f"{only}, since config.data.corpus is language; leave it out to have that")
    errors.number("config.data.language.words", cfg.data.language.words, 8, cfg.pack.length - 2)


def load(cfg: config.Config) -> Packed:
    """The rows of both splits, made where they are not yet under cfg.data.cache.

    Made once for a corpus (by content), a tokenizer and a config.pack; a file that changed since is noticed and made
    again. Raises ConfigError as corpus.documents and kinds.train do.
    """
    content = corpus.fingerprint(cfg.data)
    tokenizer = vocabulary(cfg, content)
    isolate = cfg.pack.isolate and cfg.pack.mode == "full_sentences"
    inputs = {"format": FORMAT, "corpus": content, "kind": tokenizer.kind,
              "tokenizer": hashlib.sha256(tokenizer.model).hexdigest(),
              "mode": cfg.pack.mode, "length": cfg.pack.length, "isolate": isolate}
    short = {"short_share": cfg.pack.short_share} if cfg.pack.short_share else {}
    inputs |= short

    def make(folder):
        counts = {}
        for split in corpus.SPLITS:
            unigram_V = np.zeros(tokenizer.vocab_size, np.int64)
            rows = MODES[cfg.pack.mode](_tokenize(cfg.data, split, tokenizer), cfg.pack.length, **short)
            counts[split] = _write(folder, split, rows, cfg.pack, isolate, unigram_V)
            errors.expect(counts[split]["rows"] > 0, "config.pack.mode", cfg.pack.mode,
                          f"a corpus that fills a row of the {split} split")
            logging.info("packed %s: %d rows, %d tokens, %.1f%% padding", split, counts[split]["rows"],
                         counts[split]["tokens"], 100 * counts[split]["padding"])
            if split == "train":
                unigram_V[PAD] = 0
                (folder / "unigram.bin").write_bytes(unigram_V.tobytes())  # tofile hides why it failed
        return counts

    folder, manifest = store.made(cfg.data.cache, "rows", inputs, make)
    _tell(cfg, manifest)

    def split_of(split):
        size = {"N": manifest[split]["rows"], "L": cfg.pack.length}
        return {name: np.memmap(folder / f"{split}.{name}.bin", column.dtype, "r",
                                shape=tuple(size[letter] for letter in column.letters.split("x")))
                for name, column in _columns(cfg.pack.mode, tokenizer.vocab_size).items()}

    about = shape(cfg, tokenizer.vocab_size, np.fromfile(folder / "unigram.bin", np.int64))
    return Packed(*map(split_of, corpus.SPLITS), tokenizer, about, manifest)


def shape(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray | None = None) -> types.About:
    """What a program must know of a config's rows; unigram_V: of their tokens, where they are at hand."""
    unigram_V = np.ones(vocab_size, np.int64) if unigram_V is None else unigram_V
    return types.About(vocab_size, cfg.pack.length, ("next_B",) if cfg.pack.mode == "segment_pair" else (),
                       unigram_V.tobytes())


def vocabulary(cfg: config.Config, content: str) -> Tokenizer:
    """The tokenizer learnt from the corpus of this content (`corpus.fingerprint`), made where the cache lacks it.

    Raises ConfigError where it would have to be made and the corpus holds something else by now.
    """
    def make(folder):
        if corpus.fingerprint(cfg.data) != content:
            raise errors.ConfigError(f"config.data.cache = {cfg.data.cache!r}: expected the folder that holds the "
                                     "tokenizer, since the corpus that it was learnt from has changed")
        tokenizer = kinds.train(cfg.tokenizer, _progress(corpus.to_learn(cfg.data), "reading for the vocabulary"))
        return {"file": tokenizer.save(folder).name}

    inputs = {"format": FORMAT, "corpus": content, "kind": cfg.tokenizer.kind, "size": cfg.tokenizer.vocab_size}
    folder, manifest = store.made(cfg.data.cache, "tokenizer", inputs, make)
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


def _tokenize(data, split, tokenizer) -> Iterator[Document]:
    """The split's documents as token ids, many sentences at a time: that is faster than one by one."""
    batch, ends, size = [], [], 0  # sentences, how many there were when a document ended, characters
    begun: Document = []           # what is already encoded of the document that the batch begins in
    long = corpus.too_long()

    def encoded():
        nonlocal begun, size
        ids, first = tokenizer.encode_batch(batch), 0
        for end in ends:
            document, begun = begun + [sentence for sentence in ids[first:end] if sentence], []
            first = end
            if document:
                yield document
        begun += [sentence for sentence in ids[first:] if sentence]
        batch.clear()
        ends.clear()
        size = 0

    for text in _progress(corpus.documents(data, split), f"packing {split}"):
        for sentence in corpus.sentences(text, long):
            batch.append(sentence)
            size += len(sentence)
            if size > BATCH:
                yield from encoded()
        ends.append(len(batch))
    yield from encoded()
    long.report()


def _tell(cfg, manifest):
    """Says what share was held out, and what share of the words the vocabulary does not know."""
    if cfg.data.corpus != "language":
        held, rest = (manifest[split]["tokens"] for split in ("validation", "train"))
        asked = "" if cfg.data.validation_path else \
            f", of documents by chance (config.data.validation_fraction = {cfg.data.validation_fraction:g})"
        trouble.tell(f"held out: {held:,} of {held + rest:,} tokens, {held / (held + rest):.1%}{asked}")
    for split in corpus.SPLITS:
        share = manifest[split]["unknown"]
        say = trouble.warn if share > UNKNOWN else trouble.tell
        say(f"{split}: {share:.2%} of the words and pieces are unknown to the vocabulary of {cfg.tokenizer.kind}"
            + ("; a larger config.tokenizer.vocab_size, or another kind, knows more" if share > UNKNOWN else ""))


def _columns(mode, vocab_size) -> dict[str, Column]:
    """The files of a split. Pairs alone have sentence kinds and labels."""
    ids = np.uint16 if vocab_size <= 2 ** 16 else np.uint32
    columns = {"ids": Column(ids, "NxL"), "segments": Column(np.uint16, "NxL"), "positions": Column(np.uint16, "NxL")}
    return columns | ({"types": Column(np.uint8, "NxL"), "next": Column(np.uint8, "N")} if mode == "segment_pair"
                      else {})


def _write(folder, split, rows, knobs, isolate, unigram_V) -> dict:
    """Writes a split's rows block by block, adds their tokens to unigram_V, and returns the counts."""
    length, count, tokens = knobs.length, 0, 0
    size = {"N": BLOCK, "L": length}
    block = {name: np.zeros([size[letter] for letter in column.letters.split("x")], column.dtype)
             for name, column in _columns(knobs.mode, len(unigram_V)).items()}
    block["ids"].fill(PAD)
    filled = 0
    with contextlib.ExitStack() as stack:
        columns = {name: stack.enter_context(open(folder / f"{split}.{name}.bin", "wb")) for name in block}

        def flush():
            ids = block["ids"][:filled]
            unigram_V[:] += np.bincount(ids.ravel(), minlength=len(unigram_V))
            for name, file in columns.items():
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
                block["next"][filled] = row.label
            filled, count, tokens = filled + 1, count + 1, tokens + used
            if filled == BLOCK:
                flush()
                filled = 0
        flush()
    unknown = unigram_V[UNK] / max(1, unigram_V[UNK] + unigram_V[NUM_SPECIAL:].sum())
    return {"rows": count, "tokens": tokens, "padding": 1 - tokens / max(1, count * length), "unknown": float(unknown)}
