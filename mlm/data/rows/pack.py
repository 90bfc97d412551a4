"""Packs documents once into examples of a fixed length, which are memory-mapped from then on."""

import operator
import time
from importlib import metadata
from typing import Any

import numpy as np
from absl import logging

from mlm.base import buckets, config, errors, files, types, warnings_
from mlm.base.derived_fields import DerivedField
from mlm.data.language import translation
from mlm.data.rows import columns, labelled, parallel_text, store, tokenization
from mlm.data.rows.columns import ColumnSpec, PackedDataset
from mlm.data.rows.packing import PACKERS, build_columns
from mlm.data.tasks import splits, tasks
from mlm.data.text import corpus
from mlm.data.text import parallel_text as pairs
from mlm.data.tokenizers import kinds
from mlm.data.tokenizers.tokenizer import Tokenizer

FORMAT = 3  # of the cached files; a change of their content must raise it
TEXT_FORMAT = 4  # of the examples of all text but the built-in language's


def _is_generated(data: config.Data) -> bool:
    return data.corpus == "language" or pairs.is_generated(data)


def _learns_vocabulary(cfg: config.Config) -> bool:
    return cfg.data.corpus != "task" and not cfg.tokenizer.path


DERIVED_FIELDS = (
    DerivedField(
        "data.language.max_words",
        ("data.corpus", "data.parallel_path", "pack.seq_len"),
        # [CLS] and [SEP] need two tokens.
        lambda cfg: translation.MAX_WORDS if cfg.data.corpus == "parallel" else cfg.pack.seq_len - 2,
        lambda cfg: _is_generated(cfg.data),
    ),
    DerivedField(
        "tokenizer.kind",
        ("data.corpus", "data.parallel_path", "tokenizer.path"),
        lambda cfg: "words" if _is_generated(cfg.data) else "unigram",
        _learns_vocabulary,
    ),
    DerivedField(
        "tokenizer.vocab_size",
        ("tokenizer.kind", "tokenizer.path", "data.corpus", "data.parallel_path"),
        lambda cfg: 0 if _is_generated(cfg.data) or cfg.tokenizer.kind == "characters" else 8192,
        _learns_vocabulary,
    ),
    DerivedField(
        "pack.source_len",
        ("pack.seq_len", "data.corpus"),
        lambda cfg: cfg.pack.seq_len,
        lambda cfg: cfg.data.corpus == "parallel",
    ),
    DerivedField(
        "pack.mode",
        ("data.corpus",),
        lambda cfg: "doc_sentences" if cfg.data.corpus == "language" else "full_sentences",
        lambda cfg: cfg.data.corpus not in ("task", "parallel"),
    ),
)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a vocabulary that cannot be learned or examples that cannot be packed."""
    files.check_folder("config.data.cache_dir", cfg.data.cache_dir, writable=False, schemes=tuple(buckets.LIBRARIES))
    if cfg.data.corpus == "task":
        tasks.check(cfg)
        return
    name = cfg.data.corpus
    if name == "parallel":
        for num_beams in cfg.eval.beams:
            is_whole = num_beams == int(num_beams)
            errors.require(is_whole, "config.eval.beams", num_beams, f"an integer from 1 to {config.MAX_BEAMS}")
    elif name != "text":
        errors.require(
            cfg.pack.mode != "stream", "config.pack.mode", "stream", f"another, since {name} is no running text"
        )
    if not _is_generated(cfg.data):
        return
    reason = f"since config.data.corpus = {name} is text of the built-in language; leave the field out"
    allowed = {"tokenizer.path": "", "tokenizer.kind": "words", "tokenizer.vocab_size": 0}
    allowed |= {"pack.mode": "doc_sentences"} if name == "language" else {}
    for field, value in allowed.items():
        actual = operator.attrgetter(field)(cfg)
        errors.require(actual == value, f"config.{field}", actual, f"{value or 'none'}, {reason}")
    if name == "parallel":
        translation.check(cfg.data.language, min(cfg.pack.seq_len, cfg.pack.source_len))
        return
    errors.require_number("config.data.language.max_words", cfg.data.language.max_words, 8, cfg.pack.seq_len - 2)


def load_dataset(cfg: config.Config) -> PackedDataset:
    """The examples of both splits, packed first if cfg.data.cache_dir does not have them.

    The cache depends on the content of the corpus, on the tokenizer and on config.pack. A changed file is noticed, and
    the examples are packed again. Raises ConfigError as corpus.read_documents and kinds.train_tokenizer do.
    """
    if cfg.data.corpus == "task":
        return labelled.load_dataset(cfg)
    content = corpus.compute_fingerprint(cfg.data)
    tokenizer = get_or_train_tokenizer(cfg, content)
    if cfg.data.corpus == "parallel":
        return parallel_text.load_dataset(cfg, tokenizer)
    masks_words = {cfg.mask.unit, cfg.eval.mask_unit} != {"token"}
    word_starts = tokenizer.pack_word_bounds() if masks_words else b""
    isolate_documents = cfg.pack.isolate_documents and cfg.pack.mode == "full_sentences"
    data_format = FORMAT if _is_generated(cfg.data) else TEXT_FORMAT
    inputs = {"format": data_format, "corpus": content, "mode": cfg.pack.mode, "isolate": isolate_documents}
    options = {}
    if cfg.pack.short_seq_prob:
        inputs["short_share"] = options["short_seq_prob"] = cfg.pack.short_seq_prob

    def write(split, writer, folder):
        is_stream, description = cfg.pack.mode == "stream", f"packing {split}"
        texts = corpus.read_running_text(cfg.data, split) if is_stream else corpus.read_documents(cfg.data, split)
        tokenize = tokenization.tokenize_stream if is_stream else tokenization.tokenize_documents
        batches = tokenize(_log_progress(texts, description), tokenizer)
        for packed in PACKERS[cfg.pack.mode](batches, cfg.pack.seq_len, **options):
            writer.write_examples(build_columns(packed, cfg.pack.seq_len, isolate_documents))
        expected = f"a corpus with an example for the {split} split"
        errors.require(writer.num_examples > 0, "config.pack.mode", cfg.pack.mode, expected)
        return {}

    def describe(unigram_V, manifest):
        return build_dataset_info(cfg, tokenizer.vocab_size, unigram_V)._replace(word_starts=word_starts)

    is_pairs = cfg.pack.mode == "segment_pair"
    pair_columns = columns.TYPE_COLUMNS | {"next": ColumnSpec(np.uint8, "N")} if is_pairs else {}
    packed = columns.load_dataset(
        cfg,
        tokenizer,
        inputs,
        columns.make_text_columns(tokenizer.vocab_size) | pair_columns,
        corpus.SPLITS,
        write,
        describe,
        seq_len=cfg.pack.seq_len,
    )
    _report_statistics(cfg, packed)
    return packed


def read_examples(cfg: config.Config, packed: PackedDataset, split: str) -> list[dict[str, Any]]:
    """The records of a split's examples, with fields by name.

    Only tasks have them, and held-out splits of parallel text; for others the list is empty.
    """
    if cfg.data.corpus == "parallel" and split != "train":
        return parallel_text.read_examples(packed, split)
    return labelled.read_examples(packed, split) if cfg.data.corpus == "task" else []


def build_dataset_info(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray | None = None) -> types.DatasetInfo:
    """What a program must know of a config's dataset; unigram_V: counts of the tokens, all equal where None.

    Classes of a task that the config does not list are read from the task's files.
    """
    unigram_V = np.ones(vocab_size, np.int64) if unigram_V is None else unigram_V
    if cfg.data.corpus == "task":
        return labelled.describe_classes(cfg, vocab_size, unigram_V, splits.open_task(cfg).get_classes())
    if cfg.data.corpus == "parallel":
        return parallel_text.build_dataset_info(cfg, vocab_size, unigram_V)
    labels = ("next_B",) if cfg.pack.mode == "segment_pair" else ()
    return types.DatasetInfo(vocab_size, cfg.pack.seq_len, labels, unigram_V.tobytes())


def get_or_train_tokenizer(cfg: config.Config, content: str) -> Tokenizer:
    """The tokenizer of config.tokenizer.path, or else the one for the corpus, trained if the cache does not have it.

    content: the corpus's (`corpus.compute_fingerprint`). Raises ConfigError if the tokenizer must be trained and the
    corpus has changed since.
    """
    if cfg.tokenizer.path:
        return kinds.load_tokenizer_folder("config.tokenizer.path", cfg.tokenizer.path)

    def make(folder):
        if cfg.data.corpus != "language":
            logging.info("learning a vocabulary (%s)", cfg.tokenizer.kind)
        if corpus.compute_fingerprint(cfg.data) != content:
            raise errors.ConfigError(
                f"config.data.cache_dir = {cfg.data.cache_dir!r}: expected the folder with the tokenizer, since the "
                "corpus from which it was learned has changed"
            )
        texts = corpus.read_running_text(cfg.data, "train") if is_stream else corpus.read_vocabulary_texts(cfg.data)
        tokenizer = kinds.train_tokenizer(cfg.tokenizer, _log_progress(texts, "reading for the vocabulary"))
        return {"file": tokenizer.save(folder).name}

    is_stream = cfg.pack.mode == "stream"
    inputs = {"format": FORMAT, "corpus": content, "kind": cfg.tokenizer.kind, "size": cfg.tokenizer.vocab_size}
    inputs |= {"mode": cfg.pack.mode} if is_stream else {}
    if cfg.tokenizer.kind == "unigram":  # each version may learn another vocabulary
        inputs["sentencepiece"] = metadata.version("sentencepiece")
    folder, manifest = store.get_or_make_folder(cfg.data.cache_dir, "tokenizer", inputs, make)
    return kinds.load_tokenizer(folder / manifest["file"])


def _log_progress(texts, description):
    start = last_report = time.monotonic()
    num_characters = 0
    for text in texts:
        yield text
        num_characters += len(text)
        if (now := time.monotonic()) - last_report > 5:
            last_report = now
            millions = num_characters / 1e6
            logging.info("%s: %.1f million characters, %.2f a second", description, millions, millions / (now - start))


def _report_statistics(cfg, packed):
    """Logs the fraction of held-out tokens, and of words that are unknown to the vocabulary."""
    if cfg.data.corpus != "language":
        held_out, rest = (packed.manifest[split]["tokens"] for split in ("validation", "train"))
        selection = "the end of the text" if cfg.pack.mode == "stream" else "a random sample of documents"
        name = "search_fraction" if cfg.data.search_fraction else "validation_fraction"
        has_own_files = cfg.data.validation_path and not cfg.data.search_fraction
        setting = "" if has_own_files else f", {selection} (config.data.{name} = {getattr(cfg.data, name):g})"
        total = held_out + rest
        warnings_.log_once(f"held out: {held_out:,} of {total:,} tokens, {held_out / total:.1%}{setting}")
    for split in corpus.SPLITS:
        remedy = "; a larger config.tokenizer.vocab_size, or another kind, knows more"
        columns.report_unknown(split, packed.manifest[split], packed.tokenizer.kind, remedy)
