"""The examples of a split as files, one per column: written block by block, then memory-mapped."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from mlm.base import config, types, warnings_
from mlm.base.special import NUM_SPECIAL, PAD, UNK
from mlm.data.rows import draws, store
from mlm.data.tokenizers.tokenizer import Tokenizer

WARN_FRACTION = 0.01  # fraction of unknown words, or of truncated examples, that causes a warning

BLOCK_EXAMPLES = 4096  # examples that are written at once


class ColumnSpec(NamedTuple):
    """The type and shape of a column."""

    dtype: type
    dims: str  # the shape, with the letters of types.py: "NxL" or "N"; S is the length of a source
    fill_value: int = 0  # the value of an entry that is not written


class PackedDataset(NamedTuple):
    """The packed examples of all splits by column: N examples of L tokens each; PAD fills the end of an example.

    Every example has ids_NxL, segments_NxL and positions_NxL. Tokens see each other if they have the same segment, a
    number from 1; padding has segment 0. Positions count from 0 in each segment. BERT's pairs (pack.mode=segment_pair)
    are one segment each; types_NxL is 1 in the second part, and the label next_N is 1 if that follows the first.
    Examples of a task have the labels that preprocessors.PREPROCESSORS lists for the objective, and used_NxE, which is
    in no file: the number of tokens of each of the E sequences of an example. Parallel text also has the sources:
    source_ids_NxS and so on.
    """

    train: dict[str, np.ndarray]
    validation: dict[str, np.ndarray]
    tokenizer: Tokenizer
    dataset_info: types.DatasetInfo
    manifest: dict[str, Any]  # "inputs", "sha256" of each file, and the statistics of each split
    other_splits: Mapping[str, dict[str, np.ndarray]] = MappingProxyType({})  # by name: a task's "test"
    folder: Path = Path()  # the folder of the files
    sources: tuple[draws.Source, ...] = ()  # of data.sources, in the order of their examples

    def get_split(self, name: str) -> dict[str, np.ndarray]:
        """The columns of "train", "validation" or one of `other_splits`. Raises KeyError for any other name."""
        return {"train": self.train, "validation": self.validation, **self.other_splits}[name]


def make_text_columns(vocab_size: int) -> dict[str, ColumnSpec]:
    """The columns that every example has; segment pairs have TYPE_COLUMNS, too."""
    ids = np.uint16 if vocab_size <= 2**16 else np.uint32
    return {
        "ids": ColumnSpec(ids, "NxL", PAD),
        "segments": ColumnSpec(np.uint16, "NxL"),
        "positions": ColumnSpec(np.uint16, "NxL"),
    }


TYPE_COLUMNS = {"types": ColumnSpec(np.uint8, "NxL")}


class SplitWriter:
    """A context manager that writes the examples of a split to its files; the files are complete when it exits."""

    def __init__(
        self,
        folder: Path,
        split: str,
        columns: Mapping[str, ColumnSpec],
        seq_len: int,
        vocab_size: int,
        source_len: int = 0,
    ):
        self.seq_len, self.source_len, self.num_examples, self.num_tokens = seq_len, source_len, 0, 0
        self.unigram_V = np.zeros(vocab_size, np.int64)  # counts of each id in the examples, padding included
        self._columns, self._block_size, sizes = columns, 0, (BLOCK_EXAMPLES, seq_len, source_len)
        self._block = {
            name: np.full(_compute_shape(column, *sizes), column.fill_value, column.dtype)
            for name, column in columns.items()
        }
        self._paths = {name: _make_path(folder, split, name) for name in columns}

    def __enter__(self) -> "SplitWriter":
        with contextlib.ExitStack() as stack:
            self._files = {name: stack.enter_context(open(path, "wb")) for name, path in self._paths.items()}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, error_type, error, traceback) -> None:
        with self._stack:
            if error_type is None:
                self._flush()

    def add_example(self) -> tuple[dict[str, np.ndarray], int]:
        """Adds an empty example. Returns arrays by column and the example's index in them, for the caller to fill."""
        if self._block_size == BLOCK_EXAMPLES:
            self._flush()
        self._block_size += 1
        return self._block, self._block_size - 1

    def write_examples(self, examples: Mapping[str, np.ndarray]) -> None:
        """Writes examples: arrays of all columns."""
        self._write({name: examples[name].astype(column.dtype, copy=False) for name, column in self._columns.items()})

    def compute_statistics(self) -> dict[str, Any]:
        """The numbers of examples and of tokens, and the fractions of padding and of unknown words."""
        num_words = self.unigram_V[UNK] + self.unigram_V[NUM_SPECIAL:].sum()
        return {
            "rows": self.num_examples,
            "tokens": self.num_tokens,
            "unknown": float(self.unigram_V[UNK] / max(1, num_words)),
            "padding": 1 - self.num_tokens / max(1, self.num_examples * self.seq_len),
        }

    def _flush(self):
        self._write({name: block[: self._block_size] for name, block in self._block.items()})
        for name, column in self._columns.items():
            self._block[name].fill(column.fill_value)
        self._block_size = 0

    def _write(self, arrays):
        self.num_examples += len(arrays["ids"])
        self.num_tokens += int(np.count_nonzero(arrays["segments"]))
        self.unigram_V += np.bincount(arrays["ids"].ravel(), minlength=len(self.unigram_V))
        for name, file in self._files.items():
            file.write(np.ascontiguousarray(arrays[name]).data)


def load_dataset(
    cfg: config.Config,
    tokenizer: Tokenizer,
    inputs: Mapping[str, Any],
    specs: Mapping[str, ColumnSpec],
    splits: Iterable[str],
    write: Callable[[str, SplitWriter, Path], dict[str, Any]],
    describe: Callable[[np.ndarray, dict[str, Any]], types.DatasetInfo],
    *,
    seq_len: int,
    source_len: int = 0,
    summarize: Callable[[], dict[str, Any]] = dict,
) -> PackedDataset:
    """The examples of all splits, packed first if cfg.data.cache_dir does not have them.

    inputs: what the examples follow from besides the tokenizer and config.pack.seq_len. write(split, writer, folder)
    writes a split's examples, and returns what the manifest says of it beside SplitWriter.compute_statistics.
    describe(unigram_V of the train split, manifest): what a program must know of the dataset. seq_len, source_len: the
    tokens of an example and of its source; 0: it has none. summarize: what else the manifest has in the end.
    """

    def make(folder):
        manifest = {}
        for split in splits:
            with SplitWriter(folder, split, specs, seq_len, tokenizer.vocab_size, source_len) as writer:
                counts = write(split, writer, folder)
            manifest[split] = statistics = writer.compute_statistics() | counts
            facts = split, statistics["rows"], statistics["tokens"], 100 * statistics["padding"]
            logging.info("packed %s: %d examples, %d tokens, %.1f%% padding", *facts)
            if split == "train":
                writer.unigram_V[PAD] = 0
                (folder / "unigram.bin").write_bytes(writer.unigram_V.tobytes())  # tofile hides why it failed
        return manifest | summarize()

    digest = hashlib.sha256(tokenizer.model).hexdigest()
    inputs = {**inputs, "kind": tokenizer.kind, "tokenizer": digest, "length": cfg.pack.seq_len}
    folder, manifest = store.get_or_make_folder(cfg.data.cache_dir, "rows", inputs, make)
    arrays = {
        split: _open_columns(folder, split, specs, manifest[split]["rows"], seq_len, source_len) for split in splits
    }
    dataset_info = describe(np.fromfile(folder / "unigram.bin", np.int64), manifest)
    train, validation = arrays.pop("train"), arrays.pop("validation")
    return PackedDataset(train, validation, tokenizer, dataset_info, manifest, arrays, folder)


def report_unknown(split: str, statistics: Mapping[str, Any], kind: str, remedy: str = "") -> None:
    """Logs how much of a split's text is unknown to the vocabulary; warns, with a remedy, where it is much."""
    message = f"{split}: {statistics['unknown']:.2%} of the words and pieces are unknown to the vocabulary of {kind}"
    if statistics["unknown"] > WARN_FRACTION:
        warnings_.warn_once(message + remedy)
    else:
        warnings_.log_once(message)


def _open_columns(folder, split, columns, *sizes) -> dict[str, np.ndarray]:
    """The columns that a SplitWriter wrote, memory-mapped."""
    return {
        name: np.memmap(_make_path(folder, split, name), column.dtype, "r", shape=_compute_shape(column, *sizes))
        for name, column in columns.items()
    }


def _make_path(folder, split, name):
    return folder / f"{split}.{name}.bin"


def _compute_shape(column, num_examples, seq_len, source_len):
    sizes = {"N": num_examples, "L": seq_len, "S": source_len}
    return tuple(sizes[dim] for dim in column.dims.split("x"))
