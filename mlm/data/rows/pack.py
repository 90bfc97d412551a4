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
from mlm.data.rows import columns, labelled, parallel_text, store
from mlm.data.rows.columns import ColumnSpec, PackedDataset
from mlm.data.rows.packing import MODES, SentenceBatch, build_columns
from mlm.data.tasks import tasks
from mlm.data.text import corpus, stream, warnings_
from mlm.data.text import parallel_text as pairs
from mlm.data.tokenizers import encoding_cache, kinds
from mlm.data.tokenizers.tokenizer import Tokenizer

FORMAT = 3  # of the files: a change of what they hold must change this number
FIELD_CONDITIONS = (
    FieldCondition(
        ("pack.mode", "pack.isolate_documents", "pack.short_seq_prob"),
        "data.corpus",
        excluded_values=("task", "parallel"),
    ),
    FieldCondition(("pack.source_len",), "data.corpus", ("parallel",)),
    FieldCondition(("data.document_boundary",), "pack.mode", excluded_values=("stream",)),
    FieldCondition(
        ("pack.isolate_documents",), "pack.mode", ("full_sentences",)
    ),  # elsewhere rows hold one document or pair
    FieldCondition(("pack.short_seq_prob",), "pack.mode", ("segment_pair",)),
    FieldCondition(("tokenizer.kind", "tokenizer.vocab_size"), "tokenizer.path", ("",)),
)
BATCH_CHARACTERS = 2**18  # characters tokenized at a time, and the rest of a document
BATCH_LINES = 2**12  # lines of a running text tokenized at a time
WARN_SHARE = 0.01  # share of unknown words above which a warning says so


def resolve(cfg: config.Config) -> config.Config:
    """With the corpus, its vocabulary and how its documents fill rows, where nothing is said."""
    data, knobs, pack = cfg.data, cfg.tokenizer, cfg.pack
    if data.corpus == "auto":
        found = "task" if data.task else "parallel" if data.parallel_path else "text" if data.path else "language"
        data = dataclasses.replace(data, corpus=found)
    if data.corpus == "task":
        return tasks.resolve(dataclasses.replace(cfg, data=data))
    drawn = data.corpus == "language" or pairs.is_generated(data)
    if drawn:
        most = translation.MAX_WORDS if pairs.is_generated(data) else pack.seq_len - 2  # beside [CLS] and [SEP]
        data = dataclasses.replace(
            data, language=dataclasses.replace(data.language, max_words=data.language.max_words or most)
        )
    if not knobs.path:
        knobs = dataclasses.replace(
            knobs,
            kind=knobs.kind or ("words" if drawn else "unigram"),
            vocab_size=knobs.vocab_size or (0 if drawn or knobs.kind == "characters" else 8192),
        )
    if data.corpus == "parallel":
        pack = dataclasses.replace(pack, source_len=pack.source_len or pack.seq_len)
    else:
        pack = dataclasses.replace(pack, mode=pack.mode or ("doc_sentences" if drawn else "full_sentences"))
    return dataclasses.replace(cfg, data=data, tokenizer=knobs, pack=pack)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a vocabulary and rows that could not be made."""
    files.check_folder("config.data.cache", cfg.data.cache, writable=False, schemes=tuple(buckets.LIBRARIES))
    errors.require_number(
        "config.pack.seq_len", cfg.pack.seq_len, 8, 2**16 - 1
    )  # segments and positions are kept as uint16
    if cfg.data.corpus == "task":
        tasks.check(cfg)
        return
    if cfg.data.corpus == "parallel":
        errors.require_number("config.pack.source_len", cfg.pack.source_len, 8, 2**16 - 1)
        for width in cfg.eval.beams:
            errors.require(width >= 1 and width == int(width), "config.eval.beams", width, "a whole number, 1 or more")
    else:
        errors.require_one_of("config.pack.mode", cfg.pack.mode, list(MODES))
        errors.require_number("config.pack.short_seq_prob", cfg.pack.short_seq_prob, 0, 1)
        errors.require(
            cfg.pack.mode != "stream" or cfg.data.corpus == "text",
            "config.pack.mode",
            cfg.pack.mode,
            f"another, since config.data.corpus is {cfg.data.corpus}, no running text",
        )
    if not cfg.tokenizer.path:
        errors.require_one_of("config.tokenizer.kind", cfg.tokenizer.kind, list(kinds.KINDS))
    if cfg.data.corpus != "language" and not pairs.is_generated(cfg.data):
        if not cfg.tokenizer.path and (cfg.tokenizer.vocab_size or cfg.tokenizer.kind != "characters"):
            errors.require_at_least(6, "config.tokenizer.vocab_size", cfg.tokenizer.vocab_size)
        return
    for name, value, only in (
        ("tokenizer.path", cfg.tokenizer.path, ""),
        ("tokenizer.kind", cfg.tokenizer.kind, "words"),
        ("tokenizer.vocab_size", cfg.tokenizer.vocab_size, 0),
        ("pack.mode", cfg.pack.mode, "doc_sentences"),
    ):
        if name != "pack.mode" or not pairs.is_generated(cfg.data):
            errors.require(
                value == only,
                f"config.{name}",
                value,
                f"{only or 'none'}, since config.data.corpus is "
                f"{cfg.data.corpus}, of the built-in language; leave it out to have that",
            )
    if pairs.is_generated(cfg.data):
        translation.check(cfg.data.language, min(cfg.pack.seq_len, cfg.pack.source_len))
        return
    errors.require_number("config.data.language.max_words", cfg.data.language.max_words, 8, cfg.pack.seq_len - 2)


def load(cfg: config.Config) -> PackedDataset:
    """The rows of both splits, made where they are not yet under cfg.data.cache.

    Made once for a corpus (by content), a tokenizer and a config.pack; a file that changed since is noticed and made
    again. Raises ConfigError as corpus.documents and kinds.train do.
    """
    if cfg.data.corpus == "task":
        return labelled.load(cfg)
    content = corpus.compute_fingerprint(cfg.data)
    tokenizer = get_or_train_tokenizer(cfg, content)
    if cfg.data.corpus == "parallel":
        return parallel_text.load(cfg, tokenizer)
    isolate = cfg.pack.isolate_documents and cfg.pack.mode == "full_sentences"
    inputs = {
        "format": FORMAT,
        "corpus": content,
        "kind": tokenizer.kind,
        "tokenizer": hashlib.sha256(tokenizer.model).hexdigest(),
        "mode": cfg.pack.mode,
        "length": cfg.pack.seq_len,
        "isolate": isolate,
    }
    short = {"short_share": cfg.pack.short_seq_prob} if cfg.pack.short_seq_prob else {}
    inputs |= short

    def make(folder):
        counts = {}
        # White space around a line of running text is of it: its ids are not those of its words.
        encode = encoding_cache.Memo(tokenizer._replace(tied="") if cfg.pack.mode == "stream" else tokenizer)
        for split in corpus.SPLITS:
            there = _list_columns(cfg.pack.mode, tokenizer.vocab_size)
            with columns.SplitWriter(folder, split, there, cfg.pack.seq_len, tokenizer.vocab_size) as writer:
                for filled in MODES[cfg.pack.mode](_tokenize(cfg, split, encode), cfg.pack.seq_len, **short):
                    writer.add(build_columns(filled, cfg.pack.seq_len, isolate))
            counts[split] = writer.counts()
            errors.require(
                counts[split]["rows"] > 0,
                "config.pack.mode",
                cfg.pack.mode,
                f"a corpus that fills a row of the {split} split",
            )
            logging.info(
                "packed %s: %d rows, %d tokens, %.1f%% padding",
                split,
                counts[split]["rows"],
                counts[split]["tokens"],
                100 * counts[split]["padding"],
            )
            if split == "train":
                writer.unigram_V[PAD] = 0
                (folder / "unigram.bin").write_bytes(writer.unigram_V.tobytes())  # tofile hides why it failed
        return counts

    folder, manifest = store.get_or_make_folder(cfg.data.cache, "rows", inputs, make)
    _report_statistics(cfg, tokenizer, manifest)
    about = build_dataset_info(cfg, tokenizer.vocab_size, np.fromfile(folder / "unigram.bin", np.int64))
    if cfg.mask.unit != "token":
        about = about._replace(word_starts=tokenizer.starts_word_V.tobytes())
    files_of = _list_columns(cfg.pack.mode, tokenizer.vocab_size)
    train, validation = (
        columns.open_columns(folder, split, files_of, manifest[split]["rows"], cfg.pack.seq_len)
        for split in corpus.SPLITS
    )
    return PackedDataset(train, validation, tokenizer, about, manifest, folder=folder)


def read_examples(cfg: config.Config, packed: PackedDataset, split: str) -> list[dict]:
    """The examples of a split by the names of their fields; none of rows that are text alone, and of aligned text those
    of held-out splits.
    """
    if cfg.data.corpus == "parallel" and split != "train":
        return parallel_text.read_examples(packed, split)
    return labelled.read_examples(packed, split) if cfg.data.corpus == "task" else []


def build_dataset_info(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray | None = None) -> types.DatasetInfo:
    """What a program must know of a config's rows; unigram_V: of their tokens, where they are at hand.

    The classes of a task are read from its files where the config does not name them.
    """
    if cfg.data.corpus == "task":
        return labelled.build_dataset_info(cfg, vocab_size, unigram_V)
    if cfg.data.corpus == "parallel":
        return parallel_text.build_dataset_info(cfg, vocab_size, unigram_V)
    unigram_V = np.ones(vocab_size, np.int64) if unigram_V is None else unigram_V
    return types.DatasetInfo(
        vocab_size, cfg.pack.seq_len, ("next_B",) if cfg.pack.mode == "segment_pair" else (), unigram_V.tobytes()
    )


def get_or_train_tokenizer(cfg: config.Config, content: str) -> Tokenizer:
    """The tokenizer learnt from the corpus of this content (`corpus.fingerprint`), made where the cache lacks it.

    That of config.tokenizer.path where it is set. Raises ConfigError where it would have to be made and the corpus
    holds something else by now.
    """
    if cfg.tokenizer.path:
        return kinds.given("config.tokenizer.path", cfg.tokenizer.path)

    def make(folder):
        if corpus.compute_fingerprint(cfg.data) != content:
            raise errors.ConfigError(
                f"config.data.cache = {cfg.data.cache!r}: expected the folder that holds the "
                "tokenizer, since the corpus that it was learnt from has changed"
            )
        texts = stream.read_running_text(cfg.data, "train") if running else corpus.read_vocabulary_texts(cfg.data)
        tokenizer = kinds.train(cfg.tokenizer, _log_progress(texts, "reading for the vocabulary"))
        return {"file": tokenizer.save(folder).name}

    running = cfg.pack.mode == "stream"
    inputs = {"format": FORMAT, "corpus": content, "kind": cfg.tokenizer.kind, "size": cfg.tokenizer.vocab_size}
    inputs |= {"mode": cfg.pack.mode} if running else {}
    folder, manifest = store.get_or_make_folder(cfg.data.cache, "tokenizer", inputs, make)
    return kinds.load(folder / manifest["file"])


def _log_progress(texts, what):
    start = told = time.monotonic()
    done = 0
    for text in texts:
        yield text
        done += len(text)
        if (now := time.monotonic()) - told > 5:
            told = now
            logging.info("%s: %.1f million characters, %.2f a second", what, done / 1e6, done / 1e6 / (now - start))


def _tokenize(cfg, split, encode) -> Iterator[SentenceBatch]:
    """The split's text as token ids, many sentences at a time: that is faster than one by one."""
    batches = _batch_lines(cfg, split) if cfg.pack.mode == "stream" else _batch_sentences(cfg, split)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # text is read while the one before is tokenized
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            texts, last_S = batch
            ids_T, length_S = encode(texts)
            yield SentenceBatch(ids_T, length_S, last_S)


def _batch_lines(cfg, split):
    parts = _log_progress(stream.read_running_text(cfg.data, split), f"packing {split}")
    while batch := list(itertools.islice(parts, BATCH_LINES)):
        yield batch, np.zeros(len(batch), bool)


def _batch_sentences(cfg, split):
    """(sentences, last_S) of about BATCH characters, last_S: its document ends with it."""
    batch, ends, size = [], [], 0
    long = corpus.make_long_sentence_counter()
    for text in _log_progress(corpus.read_documents(cfg.data, split), f"packing {split}"):
        batch += corpus.split_sentences(text, long)
        ends.append(len(batch) - 1)
        size += len(text)
        if size > BATCH_CHARACTERS:
            yield batch, _make_mask(ends, len(batch))
            batch, ends, size = [], [], 0
    yield batch, _make_mask(ends, len(batch))
    long.report()


def _make_mask(numbers, count):
    marked_S = np.zeros(count, bool)
    marked_S[numbers] = True
    return marked_S


def _report_statistics(cfg, tokenizer, manifest):
    """Says what share was held out, and what share of the words the vocabulary does not know."""
    if cfg.data.corpus != "language":
        held, rest = (manifest[split]["tokens"] for split in ("validation", "train"))
        which = "its end" if cfg.pack.mode == "stream" else "of documents by chance"
        asked = (
            ""
            if cfg.data.validation_path
            else f", {which} (config.data.validation_fraction = {cfg.data.validation_fraction:g})"
        )
        warnings_.log_once(f"held out: {held:,} of {held + rest:,} tokens, {held / (held + rest):.1%}{asked}")
    for split in corpus.SPLITS:
        share = manifest[split]["unknown"]
        known = f"{split}: {share:.2%} of the words and pieces are unknown to the vocabulary of {tokenizer.kind}"
        if share > WARN_SHARE:
            warnings_.warn_once(f"{known}; a larger config.tokenizer.vocab_size, or another kind, knows more")
        else:
            warnings_.log_once(known)


def _list_columns(mode, vocab_size) -> dict[str, ColumnSpec]:
    """The files of a split. Pairs alone have sentence kinds and labels."""
    pair = columns.TYPE_COLUMNS | {"next": ColumnSpec(np.uint8, "N")} if mode == "segment_pair" else {}
    return columns.text_columns(vocab_size) | pair
