"""Documents packed once into rows of a fixed length, memory-mapped from then on."""
import concurrent.futures
import dataclasses
import hashlib
import itertools
import time
from collections.abc import Iterator

import numpy as np
from absl import logging

from mlm.base import buckets, config, errors, files, types
from mlm.base.conditional_fields import FieldCondition
from mlm.base.special import PAD
from mlm.data.language import translation
from mlm.data.rows import aligned, columns, labelled, store
from mlm.data.rows.columns import Column, Packed
from mlm.data.rows.packing import MODES, Sentences, laid_out
from mlm.data.tasks import tasks
from mlm.data.text import aligned as pairs
from mlm.data.text import corpus, stream, warnings_
from mlm.data.tokenizers import kinds, memo
from mlm.data.tokenizers.tokenizer import Tokenizer

FORMAT = 3            # of the files: a change of what they hold must change this number
READ = (
    FieldCondition(
        ("pack.mode", "pack.isolate_documents", "pack.short_seq_prob"), "data.corpus", unless=("task", "aligned")
    ),
    FieldCondition(("pack.source_len",), "data.corpus", ("aligned",)),
    FieldCondition(("data.document_boundary",), "pack.mode", unless=("stream",)),
    FieldCondition(
        ("pack.isolate_documents",), "pack.mode", ("full_sentences",)
    ),  # elsewhere rows hold one document or pair
    FieldCondition(("pack.short_seq_prob",), "pack.mode", ("segment_pair",)),
    FieldCondition(("tokenizer.kind", "tokenizer.vocab_size"), "tokenizer.path", ("",)),
)
BATCH = 2 ** 18       # characters tokenized at a time, and the rest of a document
LINES = 2 ** 12       # lines of a running text tokenized at a time
UNKNOWN = 0.01        # share of unknown words above which a warning says so


def resolve(cfg: config.Config) -> config.Config:
    """With the corpus, its vocabulary and how its documents fill rows, where nothing is said."""
    data, knobs, pack = cfg.data, cfg.tokenizer, cfg.pack
    if data.corpus == "auto":
        found = "task" if data.task else "aligned" if data.parallel_path else "text" if data.path else "language"
        data = dataclasses.replace(data, corpus=found)
    if data.corpus == "task":
        return tasks.resolve(dataclasses.replace(cfg, data=data))
    drawn = data.corpus == "language" or pairs.drawn(data)
    if drawn:
        most = translation.WORDS if pairs.drawn(data) else pack.seq_len - 2  # beside [CLS] and [SEP]
        data = dataclasses.replace(data, language=dataclasses.replace(data.language,
                                                                      max_words=data.language.max_words or most))
    if not knobs.path:
        knobs = dataclasses.replace(knobs, kind=knobs.kind or ("words" if drawn else "unigram"),
                                    vocab_size=knobs.vocab_size or (0 if drawn or knobs.kind == "characters" else 8192))
    if data.corpus == "aligned":
        pack = dataclasses.replace(pack, source_len=pack.source_len or pack.seq_len)
    else:
        pack = dataclasses.replace(pack, mode=pack.mode or ("doc_sentences" if drawn else "full_sentences"))
    return dataclasses.replace(cfg, data=data, tokenizer=knobs, pack=pack)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a vocabulary and rows that could not be made."""
    files.check_folder("config.data.cache", cfg.data.cache, writing=False, schemes=tuple(buckets.LIBRARIES))
    errors.require_number(
        "config.pack.seq_len", cfg.pack.seq_len, 8, 2**16 - 1
    )  # segments and positions are kept as uint16
    if cfg.data.corpus == "task":
        tasks.check(cfg)
        return
    if cfg.data.corpus == "aligned":
        errors.require_number("config.pack.source_len", cfg.pack.source_len, 8, 2**16 - 1)
        for width in cfg.eval.beams:
            errors.require(width >= 1 and width == int(width), "config.eval.beams", width, "a whole number, 1 or more")
    else:
        errors.require_one_of("config.pack.mode", cfg.pack.mode, list(MODES))
        errors.require_number("config.pack.short_seq_prob", cfg.pack.short_seq_prob, 0, 1)
        errors.require(cfg.pack.mode != "stream" or cfg.data.corpus == "text", "config.pack.mode", cfg.pack.mode,
                      f"another, since config.data.corpus is {cfg.data.corpus}, no running text")
    if not cfg.tokenizer.path:
        errors.require_one_of("config.tokenizer.kind", cfg.tokenizer.kind, list(kinds.KINDS))
    if cfg.data.corpus != "language" and not pairs.drawn(cfg.data):
        if not cfg.tokenizer.path and (cfg.tokenizer.vocab_size or cfg.tokenizer.kind != "characters"):
            errors.require_at_least(6, "config.tokenizer.vocab_size", cfg.tokenizer.vocab_size)
        return
    for name, value, only in (("tokenizer.path", cfg.tokenizer.path, ""),
                              ("tokenizer.kind", cfg.tokenizer.kind, "words"),
                              ("tokenizer.vocab_size", cfg.tokenizer.vocab_size, 0),
                              ("pack.mode", cfg.pack.mode, "doc_sentences")):
        if name != "pack.mode" or not pairs.drawn(cfg.data):
            errors.require(value == only, f"config.{name}", value, f"{only or 'none'}, since config.data.corpus is "
                          f"{cfg.data.corpus}, of the built-in language; leave it out to have that")
    if pairs.drawn(cfg.data):
        translation.check(cfg.data.language, min(cfg.pack.seq_len, cfg.pack.source_len))
        return
    errors.require_number("config.data.language.max_words", cfg.data.language.max_words, 8, cfg.pack.seq_len - 2)


def load(cfg: config.Config) -> Packed:
    """The rows of both splits, made where they are not yet under cfg.data.cache.

    Made once for a corpus (by content), a tokenizer and a config.pack; a file that changed since is noticed and made
    again. Raises ConfigError as corpus.documents and kinds.train do.
    """
    if cfg.data.corpus == "task":
        return labelled.load(cfg)
    content = corpus.fingerprint(cfg.data)
    tokenizer = vocabulary(cfg, content)
    if cfg.data.corpus == "aligned":
        return aligned.load(cfg, tokenizer)
    isolate = cfg.pack.isolate_documents and cfg.pack.mode == "full_sentences"
    inputs = {"format": FORMAT, "corpus": content, "kind": tokenizer.kind,
              "tokenizer": hashlib.sha256(tokenizer.model).hexdigest(),
              "mode": cfg.pack.mode, "length": cfg.pack.seq_len, "isolate": isolate}
    short = {"short_share": cfg.pack.short_seq_prob} if cfg.pack.short_seq_prob else {}
    inputs |= short

    def make(folder):
        counts = {}
        # White space around a line of running text is of it: its ids are not those of its words.
        encode = memo.Memo(tokenizer._replace(tied="") if cfg.pack.mode == "stream" else tokenizer)
        for split in corpus.SPLITS:
            there = _columns(cfg.pack.mode, tokenizer.vocab_size)
            with columns.Writer(folder, split, there, cfg.pack.seq_len, tokenizer.vocab_size) as writer:
                for filled in MODES[cfg.pack.mode](_tokenize(cfg, split, encode), cfg.pack.seq_len, **short):
                    writer.add(laid_out(filled, cfg.pack.seq_len, isolate))
            counts[split] = writer.counts()
            errors.require(counts[split]["rows"] > 0, "config.pack.mode", cfg.pack.mode,
                          f"a corpus that fills a row of the {split} split")
            logging.info("packed %s: %d rows, %d tokens, %.1f%% padding", split, counts[split]["rows"],
                         counts[split]["tokens"], 100 * counts[split]["padding"])
            if split == "train":
                writer.unigram_V[PAD] = 0
                (folder / "unigram.bin").write_bytes(writer.unigram_V.tobytes())  # tofile hides why it failed
        return counts

    folder, manifest = store.made(cfg.data.cache, "rows", inputs, make)
    _tell(cfg, tokenizer, manifest)
    about = shape(cfg, tokenizer.vocab_size, np.fromfile(folder / "unigram.bin", np.int64))
    if cfg.mask.unit != "token":
        about = about._replace(starts=tokenizer.starts_word_V.tobytes())
    files_of = _columns(cfg.pack.mode, tokenizer.vocab_size)
    splits = (columns.opened(folder, split, files_of, manifest[split]["rows"], cfg.pack.seq_len)
              for split in corpus.SPLITS)
    return Packed(*splits, tokenizer, about, manifest, folder=folder)


def told(cfg: config.Config, packed: Packed, split: str) -> list[dict]:
    """The examples of a split by the names of their fields; none of rows that are text alone, and of aligned text those
    of held-out splits."""
    if cfg.data.corpus == "aligned" and split != "train":
        return aligned.examples(packed, split)
    return labelled.examples(packed, split) if cfg.data.corpus == "task" else []


def shape(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray | None = None) -> types.DatasetInfo:
    """What a program must know of a config's rows; unigram_V: of their tokens, where they are at hand.

    The classes of a task are read from its files where the config does not name them.
    """
    if cfg.data.corpus == "task":
        return labelled.shape(cfg, vocab_size, unigram_V)
    if cfg.data.corpus == "aligned":
        return aligned.shape(cfg, vocab_size, unigram_V)
    unigram_V = np.ones(vocab_size, np.int64) if unigram_V is None else unigram_V
    return types.DatasetInfo(vocab_size, cfg.pack.seq_len, ("next_B",) if cfg.pack.mode == "segment_pair" else (),
                       unigram_V.tobytes())


def vocabulary(cfg: config.Config, content: str) -> Tokenizer:
    """The tokenizer learnt from the corpus of this content (`corpus.fingerprint`), made where the cache lacks it.

    That of config.tokenizer.path where it is set. Raises ConfigError where it would have to be made and the corpus
    holds something else by now.
    """
    if cfg.tokenizer.path:
        return kinds.given("config.tokenizer.path", cfg.tokenizer.path)
    def make(folder):
        if corpus.fingerprint(cfg.data) != content:
            raise errors.ConfigError(f"config.data.cache = {cfg.data.cache!r}: expected the folder that holds the "
                                     "tokenizer, since the corpus that it was learnt from has changed")
        texts = stream.stretches(cfg.data, "train") if running else corpus.to_learn(cfg.data)
        tokenizer = kinds.train(cfg.tokenizer, _progress(texts, "reading for the vocabulary"))
        return {"file": tokenizer.save(folder).name}

    running = cfg.pack.mode == "stream"
    inputs = {"format": FORMAT, "corpus": content, "kind": cfg.tokenizer.kind, "size": cfg.tokenizer.vocab_size}
    inputs |= {"mode": cfg.pack.mode} if running else {}
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


def _tokenize(cfg, split, encode) -> Iterator[Sentences]:
    """The split's text as token ids, many sentences at a time: that is faster than one by one."""
    batches = _lines(cfg, split) if cfg.pack.mode == "stream" else _sentences(cfg, split)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # text is read while the one before is tokenized
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            texts, last_S = batch
            yield Sentences(*encode(texts), last_S)


def _lines(cfg, split):
    parts = _progress(stream.stretches(cfg.data, split), f"packing {split}")
    while batch := list(itertools.islice(parts, LINES)):
        yield batch, np.zeros(len(batch), bool)


def _sentences(cfg, split):
    """(sentences, last_S) of about BATCH characters, last_S: its document ends with it."""
    batch, ends, size = [], [], 0
    long = corpus.too_long()
    for text in _progress(corpus.documents(cfg.data, split), f"packing {split}"):
        batch += corpus.sentences(text, long)
        ends.append(len(batch) - 1)
        size += len(text)
        if size > BATCH:
            yield batch, _marked(ends, len(batch))
            batch, ends, size = [], [], 0
    yield batch, _marked(ends, len(batch))
    long.report()


def _marked(numbers, count):
    marked_S = np.zeros(count, bool)
    marked_S[numbers] = True
    return marked_S


def _tell(cfg, tokenizer, manifest):
    """Says what share was held out, and what share of the words the vocabulary does not know."""
    if cfg.data.corpus != "language":
        held, rest = (manifest[split]["tokens"] for split in ("validation", "train"))
        which = "its end" if cfg.pack.mode == "stream" else "of documents by chance"
        asked = "" if cfg.data.validation_path else \
            f", {which} (config.data.validation_fraction = {cfg.data.validation_fraction:g})"
        warnings_.tell(f"held out: {held:,} of {held + rest:,} tokens, {held / (held + rest):.1%}{asked}")
    for split in corpus.SPLITS:
        share = manifest[split]["unknown"]
        known = f"{split}: {share:.2%} of the words and pieces are unknown to the vocabulary of {tokenizer.kind}"
        if share > UNKNOWN:
            warnings_.warn(f"{known}; a larger config.tokenizer.vocab_size, or another kind, knows more")
        else:
            warnings_.tell(known)


def _columns(mode, vocab_size) -> dict[str, Column]:
    """The files of a split. Pairs alone have sentence kinds and labels."""
    pair = columns.TYPES | {"next": Column(np.uint8, "N")} if mode == "segment_pair" else {}
    return columns.text(vocab_size) | pair
