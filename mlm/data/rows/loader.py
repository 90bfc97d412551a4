"""Batches of packed rows: the batch of a training step is a pure function of the seed and the step."""
from collections.abc import Iterator, Mapping

import grain
import numpy as np

from mlm.base import errors, types

Rows = Mapping[str, np.ndarray]  # a split of pack.Packed, by column
TEXT = ("ids", "segments", "positions", "types")
SOURCE = "source_"  # before these, in the names of columns that hold the source beside a row
NOTHING = {"tag_BxL": -1}  # what a label holds where nothing is asked; 0 where no other value is given


def train_batches(rows: Rows, *, seed: int, batch_size: int, start_step: int, process: int = 0, processes: int = 1
                  ) -> Iterator[types.Batch]:
    """This process's share of the batches of step start_step, start_step + 1, ... without end.

    Every epoch is a new permutation of all rows. A global batch is the same however many processes there are: process i
    takes its i-th block of batch_size // processes rows, and index_B is a row's slot in the global batch. row_B is its
    number in the split, epoch_B the number of its permutation. Raises ConfigError where processes does not divide
    batch_size.
    """
    share, count = _share(batch_size, processes, "config.train.batch_size"), len(rows["ids"])
    # Only row numbers pass through the shuffled chain; rows are read a batch at a time.
    numbers = grain.MapDataset.range(count).seed(seed).shuffle().repeat().batch(share)
    mine = numbers[start_step * processes + process::processes]
    slots_B = np.arange(process * share, (process + 1) * share, dtype=np.int32)

    def batch(number, rows_B):
        epoch_B = ((start_step + number) * batch_size + slots_B.astype(np.int64)) // count
        return read(rows, rows_B, slots_B)._replace(row_B=rows_B.astype(np.int32), epoch_B=epoch_B.astype(np.int32))

    batches = mine.map_with_index(batch)
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)))


def eval_batches(rows: Rows, *, batch_size: int, max_rows: int = 0, process: int = 0, processes: int = 1
                 ) -> Iterator[types.Batch]:
    """This process's share of every row once, in order; index_B is the row's number in the split.

    max_rows: the first so many rows; 0 for all. The last batch is filled up with rows that hold padding only, and ask
    nothing. Raises ConfigError where processes does not divide batch_size.
    """
    share, count = _share(batch_size, processes, "config.eval.batch_size"), judged_rows(rows, max_rows)
    for first in range(process * share, -(-count // batch_size) * batch_size, batch_size):
        numbers_B = np.arange(first, first + share, dtype=np.int32)
        batch = read(rows, np.minimum(numbers_B, count - 1), numbers_B)
        source = batch.source._asdict() if batch.source else {}
        for name, column in (*batch.text._asdict().items(), *source.items(), *batch.labels.items()):
            column[max(0, count - first):] = NOTHING.get(name, 0)
        yield batch


def judged_rows(rows: Rows, max_rows: int) -> int:
    """How many rows an evaluation reads."""
    return min(len(rows["ids"]), max_rows or len(rows["ids"]))


def _share(batch_size, processes, field):
    errors.expect(batch_size % processes == 0, field, batch_size, f"a multiple of the {processes} processes")
    return batch_size // processes


def read(rows: Rows, rows_B: np.ndarray, index_B: np.ndarray) -> types.Batch:
    """Rows rows_B of a split as a batch of arrays of its own. What is no part of text and source is a label.

    Numbers with a fraction are float32, all others int32.
    """
    there = {name: column[rows_B].astype(np.float32 if column.dtype.kind == "f" else np.int32)
             for name, column in rows.items()}

    def text(prefix):
        missing = {f"{prefix}types": np.zeros_like(there[f"{prefix}ids"])}
        return types.Text(*((missing | there)[f"{prefix}{name}"] for name in TEXT))

    labels = {f"{name}_{'x'.join('BL'[:column.ndim])}": column for name, column in there.items()
              if name.removeprefix(SOURCE) not in TEXT}
    return types.Batch(text(""), labels, index_B, text(SOURCE) if f"{SOURCE}ids" in there else None)
