"""The rows of a split as files, one a column: written a block at a time, memory-mapped from then on."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mlm.base import types
from mlm.base.special import NUM_SPECIAL, PAD, UNK
from mlm.data.tokenizers.tokenizer import Tokenizer

WRITE_BLOCK = 4096  # rows written at a time


class ColumnSpec(NamedTuple):
    """What a file of a split holds of each row."""

    dtype: type
    letters: str  # of its shape, as in types.py: "NxL" or "N"; S for the length of a source
    fill: int = 0  # what it holds where nothing is written


class PackedDataset(NamedTuple):
    """The rows of all splits, by column: N rows, L tokens a row; PAD fills the end of a row.

    ids_NxL; segments_NxL: tokens see each other where this is equal, from 1, 0 on padding; positions_NxL: of a token in
    its segment, from 0. Of pairs also types_NxL, 1 in the second segment, and the label next_N, 1 where that is the
    true next one. Of a task's rows the labels that makers.MAKERS has for the objective, and, in no file, used_NxE, the
    tokens of each of a row's stretches. Of aligned text the source beside each row, source_ids_NxS and so on.
    """

    train: dict[str, np.ndarray]
    validation: dict[str, np.ndarray]
    tokenizer: Tokenizer
    about: types.DatasetInfo
    manifest: dict  # "inputs", "sha256" of each file, and counts of each split
    others: Mapping[str, dict[str, np.ndarray]] = MappingProxyType({})  # further splits by name: "test" of a task
    folder: Path = Path()  # of the files

    def split(self, name: str) -> dict[str, np.ndarray]:
        return {"train": self.train, "validation": self.validation, **self.others}[name]


def text_columns(vocab_size: int) -> dict[str, ColumnSpec]:
    """The columns of a row of text; pairs have TYPES beside them."""
    ids = np.uint16 if vocab_size <= 2**16 else np.uint32
    return {
        "ids": ColumnSpec(ids, "NxL", PAD),
        "segments": ColumnSpec(np.uint16, "NxL"),
        "positions": ColumnSpec(np.uint16, "NxL"),
    }


TYPE_COLUMNS = {"types": ColumnSpec(np.uint8, "NxL")}


class SplitWriter:
    """A split's rows on their way to its files, which are whole when the block that it is used in ends."""

    def __init__(
        self,
        folder: Path,
        split: str,
        columns: Mapping[str, ColumnSpec],
        length: int,
        vocab_size: int,
        source_length: int = 0,
    ):
        self.length, self.source_length, self.rows, self.tokens = length, source_length, 0, 0
        self.unigram_V = np.zeros(vocab_size, np.int64)  # how often each entry stands in the rows, padding included
        self._columns, self._filled = columns, 0
        self._block = {
            name: np.full(_compute_shape(column, WRITE_BLOCK, length, source_length), column.fill, column.dtype)
            for name, column in columns.items()
        }
        self._paths = {name: _make_path(folder, split, name) for name in columns}

    def __enter__(self) -> "SplitWriter":
        with contextlib.ExitStack() as stack:
            self._files = {name: stack.enter_context(open(path, "wb")) for name, path in self._paths.items()}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind, error, trace) -> None:
        with self._stack:
            if kind is None:
                self._flush()

    def place(self) -> tuple[dict[str, np.ndarray], int]:
        """Arrays by column and the number in them at which the next row, still empty, is to be written."""
        if self._filled == WRITE_BLOCK:
            self._flush()
        self._filled += 1
        return self._block, self._filled - 1

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Writes whole rows, all columns of them."""
        self._put({name: rows[name].astype(column.dtype, copy=False) for name, column in self._columns.items()})

    def counts(self) -> dict[str, Any]:
        """Of the rows written: how many, their tokens, and the shares of padding and of unknown words."""
        words = self.unigram_V[UNK] + self.unigram_V[NUM_SPECIAL:].sum()
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "unknown": float(self.unigram_V[UNK] / max(1, words)),
            "padding": 1 - self.tokens / max(1, self.rows * self.length),
        }

    def _flush(self):
        self._put({name: block[: self._filled] for name, block in self._block.items()})
        for name, column in self._columns.items():
            self._block[name].fill(column.fill)
        self._filled = 0

    def _put(self, rows):
        self.rows += len(rows["ids"])
        self.tokens += int(np.count_nonzero(rows["segments"]))
        self.unigram_V += np.bincount(rows["ids"].ravel(), minlength=len(self.unigram_V))
        for name, file in self._files.items():
            file.write(np.ascontiguousarray(rows[name]).data)


def open_columns(
    folder: Path, split: str, columns: Mapping[str, ColumnSpec], num_examples: int, seq_len: int, source_len: int = 0
) -> dict[str, np.ndarray]:
    """The columns that a Writer wrote, memory-mapped."""
    return {
        name: np.memmap(
            _make_path(folder, split, name),
            column.dtype,
            "r",
            shape=tuple(_compute_shape(column, num_examples, seq_len, source_len)),
        )
        for name, column in columns.items()
    }


def _make_path(folder, split, name):
    return folder / f"{split}.{name}.bin"


def _compute_shape(column, num_examples, seq_len, source_len):
    sizes = {"N": num_examples, "L": seq_len, "S": source_len}
    return [sizes[axis] for axis in column.letters.split("x")]
