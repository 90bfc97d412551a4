"""The tokenizer of a corpus, learnt once and kept in the cache."""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any

from absl import logging

from mlm.base import config, errors
from mlm.data.rows import store
from mlm.data.text import corpus
from mlm.data.tokenizers import kinds
from mlm.data.tokenizers.tokenizer import Tokenizer

FORMAT = 3  # of the tokenizers; a change of their content must raise it
SAMPLED_BYTES = 4  # of a divided corpus that are read for a character that is learnt from
SECONDS = 5  # between two lines of progress


def get_or_train_tokenizer(cfg: config.Config, content: str, shard_mb: float = 0) -> Tokenizer:
    """The tokenizer of config.tokenizer.path, or else the one for the corpus, trained if the cache does not have it.

    Args:
        cfg: a resolved config; with pack.mode=stream it learns from the running text, of which no white space is lost.
        content: the corpus's (`corpus.compute_fingerprint`).
        shard_mb: MB of a shard of a divided corpus, where it learns from a few shards alone; 0: from all text.

    Raises:
        ConfigError: the tokenizer must be trained and the corpus has changed since.
    """
    data, tokenizer, is_stream = cfg.data, cfg.tokenizer, cfg.pack.mode == "stream"
    keep_space = tokenizer.kind == "characters" and not is_stream  # white space has entries there
    source = kinds.load_tokenizer_folder("config.tokenizer.path", tokenizer.path) if tokenizer.path else None
    if source and not tokenizer.new_words:
        return source

    def make(folder):
        if data.corpus != "language":
            logging.info("learning a vocabulary (%s)", tokenizer.kind or f"words for {tokenizer.path}")
        expected = "the folder with the tokenizer, since the corpus from which it was learned has changed"
        is_same = corpus.compute_fingerprint(data) == content
        errors.require(is_same, "config.data.cache_dir", data.cache_dir, expected)
        shards: Sequence[corpus.Shard | None] = [None]
        if shard_mb:
            shards = corpus.plan_shards(data, int(shard_mb * 1e6))
            enough = math.ceil(tokenizer.sample_characters * SAMPLED_BYTES / (shard_mb * 1e6))
            shards = shards[:: max(1, len(shards) // enough)]
        read = corpus.read_vocabulary_texts
        texts = corpus.read_running_text(data, "train") if is_stream else read(data, shards, keep_space)
        texts = log_progress(texts, "reading for the vocabulary")
        trained = kinds.extend_by_text(source, tokenizer, texts) if source else kinds.train_tokenizer(tokenizer, texts)
        return {"file": trained.save(folder).name}

    inputs = {"format": FORMAT, "corpus": content, "kind": tokenizer.kind, "size": tokenizer.vocab_size}
    inputs |= {"source": hashlib.sha256(source.model).hexdigest(), "size": tokenizer.new_words} if source else {}
    inputs |= {"mode": "stream"} if is_stream else {"space": True} if keep_space else {}
    if tokenizer.sample_characters != config.Tokenizer().sample_characters:
        inputs["sample"] = tokenizer.sample_characters
    inputs |= corpus.identify_shards(data, shard_mb)
    if tokenizer.kind == "unigram":  # each version may learn another vocabulary
        inputs["sentencepiece"] = metadata.version("sentencepiece")
    folder, manifest = store.get_or_make_folder(data.cache_dir, "tokenizer", inputs, make)
    return kinds.load_tokenizer(folder / manifest["file"])


def log_progress(
    items: Iterable[Any], description: str, num_bytes: int = 0, measure: Callable[[Any], int] = len
) -> Iterator[Any]:
    """The items; logs now and then how much has been read, how fast, and of num_bytes how long the rest takes.

    measure: an item -> its bytes, about.
    """
    start = last_report = time.monotonic()
    size = 0
    for item in items:
        yield item
        size += measure(item)
        if (now := time.monotonic()) - last_report > SECONDS:
            last_report, rate = now, size / (now - start)
            left = f", {(num_bytes - size) / rate:.0f} s left" if num_bytes > size else ""
            logging.info(f"{description}: {size / 1e6:.1f} MB, {rate / 1e6:.2f} MB/s{left}")
