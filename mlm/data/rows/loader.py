"""Batches of packed rows: the batch of a training step is a pure function of the seed and the step.

Rows with the column NUM_TOKENS are cut to the longest of their global batch, and may be grouped by length.

Which example each row is follows from the row's number alone. The rows of a phase, in order, go to the sources so that
after every row each source has its share of them, exact to one row. A row is then the next of its source's own
permutation. Letters in array names: S sources, M rows of a period, W rows of a window.
"""

import fractions
import functools
import heapq
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mlm.base import types

Columns = Mapping[str, np.ndarray]  # a split of columns.PackedDataset, by column
TOKEN_COLUMNS = ("ids", "segments", "positions", "types")
SOURCE_PREFIX = "source_"  # before these, in the names of columns that hold the source beside a row
NUM_TOKENS = "used"  # the column of how many tokens each stretch of a row holds, NxE: all of E stretches are as long
GROUP_BATCHES = 8  # batches whose rows are sorted by length among them, where they are
IGNORED_LABELS = {"tag_BxL": -1}  # the label of a place that is not predicted; 0 where no other value is given
MAX_PARTS = 2**16  # rows of a period, about: shares are multiples of one part of it

Draw = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # numbers of rows -> examples in the split, their epochs


class Source(NamedTuple):
    """The examples of one source, which lie one after the other in each split."""

    name: str
    num_train: int
    num_validation: int
    parts: tuple[int, ...]  # in each phase: its own rows of a period, which has as many as all sources' parts
    num_words: int = 0  # of its training examples; 0: not counted
    max_epochs: float = math.inf


def divide(weights: Sequence[float]) -> tuple[int, ...]:
    """Integers in proportion to the weights: exact where their sum is at most MAX_PARTS, else rounded, at least 1."""
    exact = [fractions.Fraction(str(weight)) for weight in weights]
    unit = math.lcm(*(weight.denominator for weight in exact))
    parts = [int(weight * unit) for weight in exact]
    parts = [part // math.gcd(*parts) for part in parts]
    if (total := sum(parts)) > MAX_PARTS:
        parts = [part and max(1, round(fractions.Fraction(part * MAX_PARTS, total))) for part in parts]
    return tuple(parts)


@functools.lru_cache(maxsize=32)
def interleave(parts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Of the rows of a period the source_M, and rank_M among the period's rows of that source.

    The j-th row of a source with p of M parts is due between rows j M / p and (j + 1) M / p; the earliest deadline goes
    first. Then each source has, after every row, its share of the rows so far, rounded up or down (Tijdeman 1980, The
    chairman assignment problem).
    """
    period, waiting = sum(parts), list[tuple[int, int, int]]()
    source_M, rank_M = np.zeros(period, np.int64), np.zeros(period, np.int64)
    releases = sorted((j * period // part, s, j) for s, part in enumerate(parts) for j in range(part))[::-1]
    for at in range(period):
        while releases and releases[-1][0] <= at:
            _, s, j = releases.pop()
            heapq.heappush(waiting, (-(-(j + 1) * period // parts[s]), s, j))
        _, source_M[at], rank_M[at] = heapq.heappop(waiting)
    return source_M, rank_M


def count_rows(parts: tuple[int, ...], num_rows: int) -> np.ndarray:
    """How many of the first rows of a phase are of each source: count_S."""
    periods, rest = divmod(num_rows, sum(parts))
    return periods * np.array(parts, np.int64) + np.bincount(interleave(parts)[0][:rest], minlength=len(parts))


def draw_from_sources(sources: Sequence[Source], phase: int, seed: int, offset_S: np.ndarray | None = None) -> Draw:
    """Draws for a phase, whose rows are counted from 0.

    offset_S: how many rows earlier phases have drawn from each source; None: none.
    """
    import grain  # here, since it takes a second, for which a process that packs does not wait

    parts = tuple(source.parts[phase] for source in sources)
    source_M, rank_M = interleave(parts)
    size_S = np.array([source.num_train for source in sources])
    first_S, part_S = np.cumsum(size_S) - size_S, np.array(parts)
    start_S = np.zeros(len(parts), np.int64) if offset_S is None else offset_S
    shuffled = [grain.MapDataset.range(source.num_train).seed(seed).shuffle().repeat() for source in sources]

    def draw(row_B):
        period_B, at_B = np.divmod(row_B, len(source_M))
        source_B = source_M[at_B]
        number_B = start_S[source_B] + period_B * part_S[source_B] + rank_M[at_B]
        example_B = np.array([shuffled[s][n] for s, n in zip(source_B.tolist(), number_B.tolist(), strict=True)])
        return example_B + first_S[source_B], number_B // size_S[source_B]

    return draw


def iterate_train_batches(
    rows: Columns,
    *,
    seed: int,
    batch_size: int,
    start_step: int,
    process: int = 0,
    processes: int = 1,
    grouped: bool = False,
    cut: bool = True,
    draw: Draw | None = None,
    first_step: int = 0,
) -> Iterator[types.Batch]:
    """This process's share of the batches of step start_step, start_step + 1, ... without end.

    Every epoch is a new permutation of all rows; draw: another choice of them, by the number of a row that the batches
    have since first_step. A global batch is the same however many processes there are: process i
    takes its i-th block of batch_size // processes rows, and index_B is a row's slot in the global batch. split_index_B
    is its number in the split, epoch_B the number of its permutation. grouped: rows with the column NUM_TOKENS are
    sorted by length within GROUP_BATCHES batches of one epoch and dealt out again, and these batches are shuffled. cut:
    whether a batch is as long as its longest example, not as all. batch_size: a multiple of processes.
    """
    import grain

    share = batch_size // processes
    draw = draw or draw_from_sources([Source("", len(rows["ids"]), 0, (1,))], 0, seed)
    slots_B = np.arange(process * share, (process + 1) * share, dtype=np.int32)
    group = GROUP_BATCHES if grouped else 1

    @functools.lru_cache(maxsize=4)  # of the threads below
    def window(number):
        size = group * batch_size
        rows_W, epoch_W = draw(number * size + np.arange(size))
        if not grouped:
            return rows_W, epoch_W
        length_W = rows[NUM_TOKENS][rows_W].max(1)
        order_W = np.lexsort((length_W, epoch_W))  # in each epoch: no row meets its copies
        order_W = np.random.default_rng([seed, number]).permutation(order_W.reshape(group, -1)).reshape(-1)
        return rows_W[order_W], epoch_W[order_W]

    def batch(step):
        if NUM_TOKENS not in rows:
            return make_batch(*draw(step * batch_size + slots_B.astype(np.int64)), None)
        place = step % group * batch_size
        rows_B, epoch_B = (of_W[place : place + batch_size] for of_W in window(step // group))
        return make_batch(rows_B[slots_B], epoch_B[slots_B], find_bucket_length(rows, rows_B) if cut else None)

    def make_batch(rows_B, epoch_B, length):
        split_index_B, epoch_B = rows_B.astype(np.int32), epoch_B.astype(np.int32)
        return read_batch(rows, rows_B, slots_B, length)._replace(split_index_B=split_index_B, epoch_B=epoch_B)

    steps = grain.MapDataset.range(start_step - first_step, sys.maxsize).map(batch)
    return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)))


def iterate_eval_batches(
    rows: Columns,
    *,
    batch_size: int,
    max_rows: int = 0,
    order_N: np.ndarray | None = None,
    process: int = 0,
    processes: int = 1,
) -> Iterator[types.Batch]:
    """This process's share of every row once, in order; index_B is the row's number in the split.

    max_rows: the first so many rows; 0 for all. order_N: the numbers of those rows in the order in which they are read,
    as `sort_by_length` gives them; batches are then cut as those of training are. The last batch is filled up with rows
    that hold padding only, and ask nothing. batch_size: a multiple of processes.
    """
    share = batch_size // processes
    count = count_eval_examples(rows, max_rows)
    for start in range(0, count, batch_size):
        first = start + process * share
        places_B = np.arange(first, first + share, dtype=np.int32)
        rows_B, length = np.minimum(places_B, count - 1), None
        if order_N is not None:
            length = find_bucket_length(rows, order_N[start : start + batch_size])
            rows_B = order_N[rows_B]
            places_B = np.where(places_B < count, rows_B, places_B).astype(np.int32)
        batch = read_batch(rows, rows_B, places_B, length)
        source = batch.source._asdict() if batch.source else {}
        for name, column in (*batch.text._asdict().items(), *source.items(), *batch.labels.items()):
            column[max(0, count - first) :] = IGNORED_LABELS.get(name, 0)
        yield batch


def list_bucket_lengths(longest: int) -> list[int]:
    """What rows are padded to: 16, 24, 32, 48, 64, 96, ... and `longest`; from 24 on less than a third is padding."""
    steps = [step << doubled for doubled in range(longest.bit_length()) for step in (16, 24)]
    return [*(length for length in steps if length < longest), longest]


def find_bucket_length(rows: Columns, rows_B: np.ndarray) -> int | None:
    """Tokens to which these examples are cut: one of `list_bucket_lengths`, since each is compiled; None: no cut."""
    if NUM_TOKENS not in rows:
        return None
    lengths = list_bucket_lengths(rows["ids"].shape[1] // rows[NUM_TOKENS].shape[1])
    used = rows[NUM_TOKENS][rows_B].max()
    return next(length for length in lengths if used <= length)


def sort_by_length(rows: Columns, max_rows: int = 0) -> np.ndarray:
    """order_N of the rows that an evaluation reads: the longest first, where they bring how long they are."""
    count = count_eval_examples(rows, max_rows)
    if NUM_TOKENS not in rows:
        return np.arange(count)
    return np.argsort(-rows[NUM_TOKENS][:count].max(1).astype(np.int64), kind="stable")


def count_eval_examples(rows: Columns, max_rows: int) -> int:
    """How many rows an evaluation reads: the first max_rows, and what else an example has that is in several rows."""
    count = min(len(rows["ids"]), max_rows or len(rows["ids"]))
    if "example" not in rows or not count:
        return count
    return int(np.searchsorted(rows["example"], rows["example"][count - 1], "right"))


def read_batch(rows: Columns, rows_B: np.ndarray, index_B: np.ndarray, length: int | None = None) -> types.Batch:
    """Rows rows_B of a split as a batch of arrays of its own. What is no part of text and source is a label.

    Numbers with a fraction are float32, all others int32. length: tokens that each stretch of a row is cut to.
    """

    def cut(column):
        if length is None or column.ndim == 1:
            return column
        return column.reshape(len(column), rows[NUM_TOKENS].shape[1], -1)[:, :, :length].reshape(len(column), -1)

    there = {
        name: cut(column[rows_B]).astype(np.float32 if column.dtype.kind == "f" else np.int32)
        for name, column in rows.items()
        if name != NUM_TOKENS
    }

    def text(prefix):
        missing = {f"{prefix}types": np.zeros_like(there[f"{prefix}ids"])}
        return types.Tokens(*((missing | there)[f"{prefix}{name}"] for name in TOKEN_COLUMNS))

    labels = {
        f"{name}_{'x'.join('BL'[: column.ndim])}": column
        for name, column in there.items()
        if name.removeprefix(SOURCE_PREFIX) not in TOKEN_COLUMNS
    }
    return types.Batch(text(""), labels, index_B, text(SOURCE_PREFIX) if f"{SOURCE_PREFIX}ids" in there else None)
