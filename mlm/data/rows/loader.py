"""Batches of packed rows: the batch of a training step is a pure function of the seed and the step."""
from collections.abc import Iterator

import grain
import numpy as np

from mlm.base import errors, types
from mlm.data.rows import pack


def train_batches(rows: pack.Rows, *, seed: int, batch_size: int, start_step: int, process: int = 0,
                  processes: int = 1) -> Iterator[types.Batch]:
    """This process's share of the batches of step start_step, start_step + 1, ... without end.

    Every epoch is a new permutation of all rows. A global batch is the same however many processes there are: process i
    takes its i-th block of batch_size // processes rows, and index_B is a row's slot in the global batch. row_B is its
    number in the split, epoch_B the number of its permutation. Arrays are int32. Raises errors.ConfigError where
    processes does not divide batch_size.
    """
    share = _share(batch_size, processes, "config.train.batch_size")
    # Only row numbers pass through the shuffled chain; rows are read a batch at a time.
    numbers = grain.MapDataset.range(len(rows)).seed(seed).shuffle().repeat().batch(share)
    mine = numbers[start_step * processes + process::processes]
    slots_B = np.arange(process * share, (process + 1) * share, dtype=np.int32)

    def batch(number, rows_B):
        epoch_B = ((start_step + number) * batch_size + slots_B.astype(np.int64)) // len(rows)
        return read(rows, rows_B, slots_B)._replace(row_B=rows_B.astype(np.int32), epoch_B=epoch_B.astype(np.int32))

    batches = mine.map_with_index(batch)
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)))


def eval_batches(rows: pack.Rows, *, batch_size: int, max_rows: int = 0, process: int = 0,
                 processes: int = 1) -> Iterator[types.Batch]:
    """This process's share of every row once, in order; index_B is the row's number in the split.

    max_rows: the first so many rows; 0 for all. The last batch is filled up with rows that hold padding only.
    Raises errors.ConfigError where processes does not divide batch_size.
    """
    share = _share(batch_size, processes, "config.eval.batch_size")
    count = min(len(rows), max_rows or len(rows))
    for first in range(process * share, -(-count // batch_size) * batch_size, batch_size):
        numbers_B = np.arange(first, first + share, dtype=np.int32)
        batch = read(rows, np.minimum(numbers_B, count - 1), numbers_B)
        real_B = numbers_B < count
        yield types.Batch(*(np.where(real_B.reshape(-1, *[1] * (a.ndim - 1)), a, 0) for a in batch[:5]), numbers_B)


def _share(batch_size, processes, field):
    errors.expect(batch_size % processes == 0, field, batch_size, f"a multiple of the {processes} processes")
    return batch_size // processes


def read(rows: pack.Rows, rows_B: np.ndarray, index_B: np.ndarray) -> types.Batch:
    """Rows rows_B of a split as a batch of int32 arrays of its own."""
    def take(array):
        return array[rows_B].astype(np.int32)
    return types.Batch(take(rows.ids_NxL), take(rows.segments_NxL), take(rows.positions_NxL), take(rows.types_NxL),
                       take(rows.label_N), index_B)
