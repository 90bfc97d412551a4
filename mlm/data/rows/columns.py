"""The examples of a split as files, one per column: written part by part, then memory-mapped.

Where an example is full of tokens up to its padding, its segments and positions are no files: they follow from how many
tokens it has and where segments begin, and are made when they are read.
"""

import contextlib
import functools
import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from absl import logging

from mlm.base import types, warnings_
from mlm.base.special import NUM_SPECIAL, PAD, UNK
from mlm.data.rows import loader, store
from mlm.data.tokenizers.tokenizer import Tokenizer

WARN_FRACTION = 0.01  # fraction of unknown words, or of truncated examples, that causes a warning

COPY_BYTES = 2**24  # that are copied at once
LAYOUT = 2  # of the files; raise it when they hold the same examples in another way


class ColumnSpec(NamedTuple):
    """The type and shape of a column."""

    dtype: type
    dims: str  # the shape, with the letters of types.py: "NxL" or "N"; S: the length of a source; P: any number
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
    folders: tuple[Path, ...] = ()  # of the files; one of each source
    sources: tuple[loader.Source, ...] = ()  # of data.sources, in the order of their examples

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of all splits."""
        return ("train", "validation", *self.other_splits)

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
# The files of examples without padding between tokens, beside ids; segment pairs have SECOND_STARTS, too.
DENSE_COLUMNS = {
    "lengths": ColumnSpec(np.uint16, "N"),  # tokens of each example
    "breaks": ColumnSpec(np.uint16, "P"),  # where in their examples segments begin, without the first ones
    "break_ends": ColumnSpec(np.int64, "N"),  # how many breaks there are up to the end of each example
}
SECOND_STARTS = {"second_starts": ColumnSpec(np.uint16, "N")}  # where the second part of a pair begins


class LazyColumn(np.lib.mixins.NDArrayOperatorsMixin):
    """A column whose rows are made when they are read: an array by its shape, its dtype and indexing."""

    def __init__(self, shape: tuple[int, ...], dtype: type, make_rows: Callable[[np.ndarray], np.ndarray]):
        self.shape, self.ndim, self.dtype, self._make_rows = shape, len(shape), np.dtype(dtype), make_rows

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, key):
        rows, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        made = self._make_rows(np.where(rows < 0, rows + len(self), rows).ravel()).astype(self.dtype)
        return made.reshape(*rows.shape, *self.shape[1:])[(*(slice(None),) * rows.ndim, *rest)]

    def __iter__(self):
        return iter(self[:])

    def __array__(self, dtype=None, copy=None):
        return self[:].astype(dtype or self.dtype, copy=False)

    def __array_ufunc__(self, function, method, *inputs, **options):
        inputs = (np.asarray(value) if isinstance(value, LazyColumn) else value for value in inputs)
        return getattr(function, method)(*inputs, **options)


def expand_columns(dense: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The columns of a PackedDataset from ids and DENSE_COLUMNS."""
    ids, lengths = dense["ids"], dense["lengths"]
    index_L = np.arange(ids.shape[1])

    def mark_breaks(rows_R):
        end_R, begin_R = dense["break_ends"][rows_R], dense["break_ends"][rows_R - 1] * (rows_R > 0)
        count_R = end_R - begin_R
        row_P = np.repeat(np.arange(len(rows_R)), count_R)
        place_P = np.arange(len(row_P)) - np.repeat(np.cumsum(count_R) - count_R - begin_R, count_R)
        marks_RxL = np.zeros((len(rows_R), len(index_L)), bool)
        marks_RxL[row_P, dense["breaks"][place_P]] = True
        return marks_RxL

    def is_token(rows_R):
        return index_L < lengths[rows_R][:, None]

    def make_segments(rows_R):
        return (1 + mark_breaks(rows_R).cumsum(1)) * is_token(rows_R)

    def make_positions(rows_R):
        start_RxL = np.maximum.accumulate(mark_breaks(rows_R) * index_L, axis=1)
        return (index_L - start_RxL) * is_token(rows_R)

    def make_types(rows_R):
        return is_token(rows_R) & (index_L >= dense["second_starts"][rows_R][:, None])

    lazy = functools.partial(LazyColumn, ids.shape)
    expanded = {"ids": ids, "segments": lazy(np.uint16, make_segments), "positions": lazy(np.uint16, make_positions)}
    if "second_starts" in dense:
        expanded["types"] = lazy(np.uint8, make_types)
    stored = {*DENSE_COLUMNS, *SECOND_STARTS}
    return expanded | {name: column for name, column in dense.items() if name not in stored}


class Layout(NamedTuple):
    """What files hold the examples of a dataset."""

    columns: Mapping[str, ColumnSpec]
    splits: tuple[str, ...]
    vocab_size: int
    seq_len: int  # tokens of an example
    source_len: int = 0  # tokens of its source; 0: it has none


class SplitWriter:
    """Writes the examples of a split to its files, by column."""

    def __init__(self, files: Mapping[str, BinaryIO], layout: Layout):
        self.seq_len, self.source_len, self.num_examples, self.num_tokens = layout.seq_len, layout.source_len, 0, 0
        self.unigram_V = np.zeros(layout.vocab_size, np.int64)  # counts of each id in the examples, padding included
        self._files, self._layout = files, layout

    def make_examples(self, count: int) -> dict[str, np.ndarray]:
        """Arrays of all columns for so many examples, which are empty."""
        return {
            name: np.full(_compute_shape(column, self._layout, count), column.fill_value, column.dtype)
            for name, column in self._layout.columns.items()
        }

    def write_examples(self, examples: Mapping[str, np.ndarray]) -> None:
        """Writes examples: arrays of all columns."""
        columns = self._layout.columns
        arrays = {name: examples[name].astype(column.dtype, copy=False) for name, column in columns.items()}
        self.num_examples += len(arrays["ids"])
        dense = arrays.get("lengths")
        self.num_tokens += int(np.count_nonzero(arrays["segments"]) if dense is None else dense.sum())
        self.unigram_V += np.bincount(arrays["ids"].ravel(), minlength=len(self.unigram_V))
        for name, file in self._files.items():
            file.write(np.ascontiguousarray(arrays[name]).data)

    def count(self) -> dict[str, int]:
        """The numbers of examples, tokens, words and unknown words."""
        unknown = int(self.unigram_V[UNK])
        words = unknown + int(self.unigram_V[NUM_SPECIAL:].sum())
        return {"rows": self.num_examples, "tokens": self.num_tokens, "words": words, "unknown_words": unknown}


def write_text(
    arrays: Mapping[str, np.ndarray], index: int, ids: Sequence[int], start: int, segment: int, prefix: str = ""
) -> int:
    """Writes a text, which is a segment, into the columns of an example; returns where it ends.

    prefix: of the columns' names, where they are those of the source.
    """
    end = start + len(ids)
    arrays[f"{prefix}ids"][index, start:end] = ids
    arrays[f"{prefix}segments"][index, start:end] = segment
    arrays[f"{prefix}positions"][index, start:end] = np.arange(len(ids))
    return end


def write_splits(
    folder: Path, layout: Layout, write: Callable[[str, SplitWriter, Path], dict[str, Any]]
) -> dict[str, Any]:
    """Writes the files of all splits; returns for each the counts of `SplitWriter.count` and what `write` returns."""
    manifest = {}
    for split in layout.splits:
        with contextlib.ExitStack() as stack:
            paths = {name: _make_path(folder, split, name) for name in layout.columns}
            writer = SplitWriter({name: stack.enter_context(open(path, "wb")) for name, path in paths.items()}, layout)
            counts = write(split, writer, folder)
        manifest[split] = writer.count() | counts
        if split == "train":
            writer.unigram_V[PAD] = 0
            (folder / "unigram.bin").write_bytes(writer.unigram_V.tobytes())  # tofile hides why it failed
    return manifest


def join_shards(folder: Path, layout: Layout, shards: Sequence[tuple[Path, dict[str, Any]]]) -> dict[str, Any]:
    """Writes the files of all splits one after the other from those of shards; returns the sums of their counts."""
    unigram_V = sum(np.fromfile(shard / "unigram.bin", np.int64) for shard, _ in shards)
    (folder / "unigram.bin").write_bytes(np.asarray(unigram_V).tobytes())
    for split in layout.splits:
        for name in layout.columns:
            num_breaks = 0
            with open(_make_path(folder, split, name), "wb") as file:
                for shard, _ in shards:
                    with open(_make_path(shard, split, name), "rb") as part:
                        if name == "break_ends":
                            file.write((np.fromfile(part, np.int64) + num_breaks).data)
                            num_breaks += _make_path(shard, split, "breaks").stat().st_size // 2
                        else:
                            shutil.copyfileobj(part, file, COPY_BYTES)
    return {
        split: {name: sum(manifest[split][name] for _, manifest in shards) for name in shards[0][1][split]}
        for split in layout.splits
    }


def get_or_pack_dataset(
    cache_dir: str,
    tokenizer: Tokenizer,
    inputs: Mapping[str, Any],
    layout: Layout,
    make: Callable[[Path], dict[str, Any]],
    describe: Callable[[np.ndarray, dict[str, Any]], types.DatasetInfo],
    *,
    verify: bool = False,
) -> PackedDataset:
    """The examples of all splits, packed first if the cache does not have them.

    inputs: what the examples follow from, as `make_inputs` has it. make: writes the files into a folder, and returns
    what the manifest says, as `write_splits` does. describe(unigram_V of the train split, manifest): what a program
    must know of the dataset. verify: whether files are hashed whose size and time are as they were.
    """

    def make_and_log(folder):
        manifest = make(folder)
        for split in layout.splits:
            counts = manifest[split]
            counts["unknown"] = counts["unknown_words"] / max(1, counts["words"])
            counts["padding"] = 1 - counts["tokens"] / max(1, counts["rows"] * layout.seq_len)
            facts = split, counts["rows"], counts["tokens"], 100 * counts["padding"]
            logging.info("packed %s: %d examples, %d tokens, %.1f%% padding", *facts)
        return manifest

    folder, manifest = store.get_or_make_folder(
        cache_dir, "rows", dict(inputs), make_and_log, layout=LAYOUT, verify=verify
    )
    arrays = {split: _open_columns(folder, split, layout, manifest[split]["rows"]) for split in layout.splits}
    dataset_info = describe(np.fromfile(folder / "unigram.bin", np.int64), manifest)
    train, validation = arrays.pop("train"), arrays.pop("validation")
    return PackedDataset(train, validation, tokenizer, dataset_info, manifest, arrays, (folder,))


def make_inputs(inputs: Mapping[str, Any], tokenizer: Tokenizer, seq_len: int) -> dict[str, Any]:
    """What examples follow from: `inputs`, the tokenizer and the length."""
    digest = hashlib.sha256(tokenizer.model).hexdigest()
    return {**inputs, "kind": tokenizer.kind, "tokenizer": digest, "length": seq_len}


def report_unknown(split: str, statistics: Mapping[str, Any], kind: str, remedy: str = "") -> None:
    """Logs how much of a split's text is unknown to the vocabulary; warns, with a remedy, where it is much."""
    message = f"{split}: {statistics['unknown']:.2%} of the words and pieces are unknown to the vocabulary of {kind}"
    if statistics["unknown"] > WARN_FRACTION:
        warnings_.warn_once(message + remedy)
    else:
        warnings_.log_once(message)


def _open_columns(folder, split, layout, num_examples) -> dict[str, Any]:
    """The columns that a SplitWriter wrote, memory-mapped."""
    arrays = {}
    for name, column in layout.columns.items():
        path, shape = _make_path(folder, split, name), _compute_shape(column, layout, num_examples)
        if column.dims == "P":
            shape = (path.stat().st_size // np.dtype(column.dtype).itemsize,)
        is_empty = 0 in shape  # which cannot be mapped
        arrays[name] = np.zeros(shape, column.dtype) if is_empty else np.memmap(path, column.dtype, "r", shape=shape)
    return expand_columns(arrays) if "lengths" in arrays else arrays


def _make_path(folder, split, name):
    return folder / f"{split}.{name}.bin"


def _compute_shape(column, layout, num_examples):
    sizes = {"N": num_examples, "L": layout.seq_len, "S": layout.source_len, "P": 0}
    return tuple(sizes[dim] for dim in column.dims.split("x"))
