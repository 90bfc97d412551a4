"""Packs a corpus of text: as a whole, or in shards by several processes, which are then joined.

A finished shard stays in the cache until all are there: whoever packs the corpus next, on any machine, goes on from it.
"""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import pickle
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from mlm.base import config, errors, files, types, warnings_
from mlm.data.language import grammar
from mlm.data.rows import columns, store, tokenization, vocabulary
from mlm.data.rows.columns import ColumnSpec, PackedDataset
from mlm.data.rows.packing import PACKERS, build_columns
from mlm.data.text import corpus
from mlm.data.tokenizers import kinds
from mlm.data.tokenizers.tokenizer import Tokenizer

FORMAT = 3  # of the built-in language's examples; a change of their content must raise it
TEXT_FORMAT = 4  # of the examples of all other text
MAX_WHOLE_MB, SHARD_MB = 1024, 256  # where config.pack.shard_mb is 0: the largest corpus of one shard, else its shards


class Packer(NamedTuple):
    """What the examples of a corpus follow from. It can be sent to another process."""

    data: config.Data
    pack: config.Pack
    tokenizer_kind: str
    tokenizer_model: bytes
    inputs: dict[str, Any]  # of the cached files
    layout: columns.Layout
    shard_mb: float  # MB of a shard; 0: the corpus is packed as a whole

    @property
    def shards(self) -> list[corpus.Shard]:
        """The shards; none where the corpus is packed as a whole."""
        return _plan_shards(self.data, self.shard_mb, self.inputs["corpus"]) if self.shard_mb else []

    def make_dataset(self, folder: Path, processes: int = 1) -> dict[str, Any]:
        """Writes the files of all splits; returns their counts. Raises ConfigError for a split without examples."""
        if self.shard_mb:
            counts = columns.join_shards(folder, self.layout, self.make_shards(range(len(self.shards)), processes))
        else:
            counts = self.write_splits(folder)
        for split in corpus.SPLITS:
            expected = f"a corpus with an example for the {split} split"
            errors.require(counts[split]["rows"] > 0, "config.pack.mode", self.pack.mode, expected)
        return counts

    def make_shards(self, numbers: Sequence[int], processes: int) -> list[tuple[Path, dict[str, Any]]]:
        """The folder of each of these shards with its counts; packs those that the cache lacks, several at once."""
        shards = [self.shards[number] for number in numbers]
        sizes = [sum(part.num_bytes for part in shard.parts) for shard in shards]
        processes = min(processes, len(shards))
        if num_made := len(self.shards) - len(self.list_missing_shards()):
            logging.info("%d of %d shards are packed already", num_made, len(self.shards))
        if processes <= 1:
            return _list_with_progress(map(self.get_or_make_shard, numbers, shards), sizes)
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of JAX's threads
        with concurrent.futures.ProcessPoolExecutor(processes, context, _end_with_parent) as pool:
            return _list_with_progress(pool.map(self.get_or_make_shard, numbers, shards), sizes)

    def get_or_make_shard(self, number: int, shard: corpus.Shard) -> tuple[Path, dict[str, Any]]:
        """The folder of a shard and its counts."""
        make = functools.partial(self.write_splits, shard=shard)
        inputs = self.inputs | {"shard": number}
        return store.get_or_make_folder(self.data.cache_dir, "shard", inputs, make, layout=columns.LAYOUT, verify=False)

    def list_missing_shards(self) -> list[int]:
        """The numbers of the shards that the cache lacks; none once they are joined."""
        joined = store.make_name("rows", self.inputs, columns.LAYOUT)
        if files.make_path(self.data.cache_dir, joined, store.MANIFEST).exists():
            return []
        paths = [files.make_path(self.data.cache_dir, name, store.MANIFEST) for name in self.name_shards()]
        return [number for number, path in enumerate(paths) if not path.exists()]

    def name_shards(self) -> list[str]:
        """The names of the shards in the cache."""
        inputs = (self.inputs | {"shard": number} for number in range(len(self.shards)))
        return [store.make_name("shard", one, columns.LAYOUT) for one in inputs]

    def write_splits(self, folder: Path, shard: corpus.Shard | None = None) -> dict[str, Any]:
        """Packs a shard, or the whole corpus; returns the counts of each split."""
        options = {"short_seq_prob": self.pack.short_seq_prob} if self.pack.short_seq_prob else {}
        counts = Counter()

        def write(split, writer, _):
            num_breaks = 0
            for packed in PACKERS[self.pack.mode](batches[split], writer.seq_len, **options):
                arrays = build_columns(packed, writer.seq_len, _isolates(self.pack))
                arrays["break_ends"] += num_breaks
                num_breaks += len(arrays["breaks"])
                writer.write_examples(arrays)
            return {"documents": counts[split]}

        with tempfile.TemporaryFile(dir=folder) as held_out:
            batches = self._tokenize_splits(shard, counts, held_out)
            manifest = columns.write_splits(folder, self.layout, write)
        if self.data.corpus == "text" and corpus.compute_fingerprint(self.data) != self.inputs["corpus"]:
            expected = "files that stay as they are while they are packed; start again"
            raise errors.ConfigError(f"config.data.path = {self.data.path!r}: expected {expected}")
        return manifest

    def _tokenize_splits(self, shard, counts, held_out):
        """The batches of each split: one pass over the documents yields those of train and stores the others."""
        tokenizer = _build_tokenizer(self.tokenizer_kind, self.tokenizer_model)
        num_bytes = 0 if shard else corpus.count_bytes(self.data)
        if self.pack.mode == "stream":
            batches = {}
            for split in corpus.SPLITS:
                lines = _count(corpus.read_running_text(self.data, split), split, counts)
                lines = vocabulary.log_progress(lines, f"packing {split}", num_bytes)
                batches[split] = tokenization.tokenize_stream(lines, tokenizer)
            return batches
        documents = corpus.read_splits(self.data, shard)
        if not shard:
            documents = vocabulary.log_progress(documents, "packing", num_bytes, lambda pair: len(pair[1]))
        train = _set_aside(tokenization.tokenize_documents(documents, tokenizer), held_out, counts)
        return {"train": train, "validation": iter(lambda: pickle.load(held_out), None)}


def make_packer(cfg: config.Config, tokenizer: Tokenizer | None = None) -> tuple[Packer, Tokenizer]:
    """The packer of a corpus and its tokenizer, which is trained if the cache does not have it.

    tokenizer: in place of the corpus's own. Raises ConfigError as corpus.read_documents and kinds.train_tokenizer do.
    """
    data, pack = cfg.data, cfg.pack
    with contextlib.suppress(OSError):  # a cache that is only read
        files.local_folder(files.make_path(data.cache_dir)).mkdir(parents=True, exist_ok=True)  # for digests
    if pack.mode == "stream":
        corpus.check_running_text(data)
    content = corpus.compute_fingerprint(data)
    shard_mb = find_shard_mb(data, pack)
    tokenizer = tokenizer or vocabulary.get_or_train_tokenizer(cfg, content, shard_mb)
    data_format = FORMAT if data.corpus == "language" else TEXT_FORMAT
    inputs = {"format": data_format, "corpus": content, "mode": pack.mode, "isolate": _isolates(pack)}
    inputs |= {"short_share": pack.short_seq_prob} if pack.short_seq_prob else {}
    inputs |= corpus.identify_shards(data, shard_mb)
    inputs = columns.make_inputs(inputs, tokenizer, pack.seq_len)
    specs = {"ids": columns.make_text_columns(tokenizer.vocab_size)["ids"], **columns.DENSE_COLUMNS}
    if pack.mode == "segment_pair":
        specs |= columns.SECOND_STARTS | {"next": ColumnSpec(np.uint8, "N")}
    layout = columns.Layout(specs, corpus.SPLITS, tokenizer.vocab_size, pack.seq_len)
    return Packer(data, pack, tokenizer.kind, tokenizer.model, inputs, layout, shard_mb), tokenizer


def load_text(
    cfg: config.Config, tokenizer: Tokenizer | None = None, *, processes: int = 1, verify: bool = False
) -> PackedDataset:
    """The examples of both splits; arguments as of pack.load_dataset. Raises ConfigError as `make_packer` does."""
    packer, tokenizer = make_packer(cfg, tokenizer)
    is_made = False

    def make(folder):
        nonlocal is_made
        is_made = True
        return packer.make_dataset(folder, processes)

    masks_words = {cfg.mask.unit, cfg.eval.mask_unit} != {"token"}
    more: dict[str, Any] = {"word_starts": tokenizer.pack_word_bounds()} if masks_words else {}
    if cfg.distillation.teacher == "posterior":
        language, ids_V = grammar.build_grammar(cfg.data.language), np.arange(tokenizer.vocab_size)
        words_V = grammar.convert_ids_to_words(language, tokenizer.pieces, ids_V)
        more |= {"language": cfg.data.language, "language_words": words_V.astype(np.int32).tobytes()}
    packed = columns.get_or_pack_dataset(
        cfg.data.cache_dir,
        tokenizer,
        packer.inputs,
        packer.layout,
        make,
        lambda unigram_V, _: build_dataset_info(cfg, len(unigram_V), unigram_V)._replace(**more),
        verify=verify,
    )
    for name in packer.name_shards() if is_made else ():  # which are joined
        store.remove_folder(cfg.data.cache_dir, name)
    _report_statistics(packed, cfg)
    return packed


def build_dataset_info(cfg: config.Config, vocab_size: int, unigram_V: np.ndarray) -> types.DatasetInfo:
    """What a program must know of the dataset; unigram_V: counts of the tokens."""
    labels = ("next_B",) if cfg.pack.mode == "segment_pair" else ()
    return types.DatasetInfo(vocab_size, cfg.pack.seq_len, labels, unigram_V.tobytes())


def find_shard_mb(data: config.Data, pack: config.Pack) -> float:
    """MB of a shard of a corpus; 0: the corpus is packed as a whole."""
    num_bytes = corpus.count_bytes(data) if pack.mode != "stream" else 0
    if pack.shard_mb:
        return pack.shard_mb if num_bytes > pack.shard_mb * corpus.MEGABYTE else 0
    return SHARD_MB if num_bytes > MAX_WHOLE_MB * corpus.MEGABYTE else 0


@functools.lru_cache(4)
def _plan_shards(data, shard_mb, content):  # content: of the files, which another plan follows from
    return corpus.plan_shards(data, int(shard_mb * corpus.MEGABYTE))


@functools.lru_cache(2)
def _build_tokenizer(kind, model):
    return kinds.BUILDERS[kind](model)


def _end_with_parent():
    """In a process of a pool: ends it when its parent has ended, by a kill too. Ctrl-C is the parent's."""
    os.setpgid(0, 0)

    def wait():
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _isolates(pack):
    return pack.isolate_documents and pack.mode == "full_sentences"


def _count(texts, split, counts):
    for text in texts:
        counts[split] += 1
        yield text


def _set_aside(labelled, held_out, counts):
    """The batches of train; writes those of validation into a file, and None after them. Counts the documents."""
    for split, batch in labelled:
        counts[split] += int(batch.ends_document_S.sum())
        if split == "train":
            yield batch
        else:
            pickle.dump(batch, held_out)
    pickle.dump(None, held_out)
    held_out.seek(0)


def _list_with_progress(shards: Iterable, sizes: Sequence[int]) -> list:
    remaining = iter(sizes)
    return list(vocabulary.log_progress(shards, "packing", sum(sizes), lambda _: next(remaining)))


def _report_statistics(packed, cfg):
    """Logs the fraction of held-out tokens, and of words that are unknown to the vocabulary."""
    data, is_stream = cfg.data, cfg.pack.mode == "stream"
    if data.corpus != "language":
        held_out, rest = (packed.manifest[split]["tokens"] for split in ("validation", "train"))
        selection = "the end of the text" if is_stream else "a random sample of documents"
        name = "search_fraction" if data.search_fraction else "validation_fraction"
        has_own_files = data.validation_path and not data.search_fraction
        setting = "" if has_own_files else f", {selection} (config.data.{name} = {getattr(data, name):g})"
        total = held_out + rest
        message = f"held out: {held_out:,} of {total:,} tokens, {held_out / total:.1%}{setting}"
        if setting and held_out > 3 * getattr(data, name) * total:
            warnings_.warn_once(
                f"{message}; of few documents, or ids, chance is coarse: name a config.data.validation_path"
            )
        else:
            warnings_.log_once(message)
    for split in corpus.SPLITS:
        remedy = "; a larger config.tokenizer.vocab_size, or another kind, knows more"
        columns.report_unknown(split, packed.manifest[split], packed.tokenizer.kind, remedy)
