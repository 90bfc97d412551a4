"""Which example each row of the batches is: arithmetic on the row's number, without the state of an iterator.

The rows of a phase, in order, go to the sources so that after every row each source has its share of them, exact to one
row. A row is then the next of its source's own permutation. Letters in array names: S sources, M rows of a period.
"""

import fractions
import functools
import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import grain
import numpy as np

MAX_PARTS = 2**16  # rows of a period, about: shares are multiples of one part of it

Draw = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # numbers of rows -> examples in the split, their epochs


class Source(NamedTuple):
    """The examples of one source, which lie one after the other in each split."""

    name: str
    num_train: int
    num_validation: int
    parts: tuple[int, ...]  # in each phase: its own rows of a period, which has as many as all sources' parts
    num_words: int = 0  # of its training examples, where it is one of several
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
