"""Timing of sides in turns, and the rows of the table. A ratio is the median over rounds of each round's ratio."""

import math
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from mlm.report.table import Column

WARM_CALL_SECONDS = 1.0  # a call that takes longer needs one warm-up call only
MIN_ROUNDS = 7  # parts that time starts or compilations use fewer
MAX_ROUNDS = 21
MIN_TURN_SECONDS = 0.25  # so that the resolution of clock and scheduler does not matter

COLUMNS = (
    Column("part", "part"),
    Column("case", "case"),
    Column("ours", "ours", ",.2f"),
    Column("peer", "peer", ",.2f"),
    Column("peer_name", "peer_name"),
    Column("unit", "unit"),
    Column("ratio", "ratio", ".2f"),
)
TIME_UNITS = {"s": 1.0, "ms": 1e3}  # unit -> units in a second; less is better


def measure_times(
    sides: Mapping[str, Callable[[], object]], seconds: float, *, min_rounds: int = MIN_ROUNDS, warm_up: int = 2
) -> dict[str, np.ndarray]:
    """Seconds per call of each side, one number per round. A side must return when its work is done.

    Sides take turns and every round starts with another side, so that other load on the machine affects all alike.

    Args:
        sides: Functions by name.
        seconds: Rounds go on for this time, between `min_rounds` and MAX_ROUNDS rounds.
        min_rounds: Minimum number of rounds.
        warm_up: Untimed calls of each side, one if it takes longer than WARM_CALL_SECONDS. The last one determines the
            number of calls in a turn; without warm-up it is 1.
    """
    seconds_by_side = {}
    for _ in range(warm_up):
        seconds_by_side |= {
            name: time_calls(side) for name, side in sides.items() if seconds_by_side.get(name, 0) < WARM_CALL_SECONDS
        }
    calls = {name: math.ceil(MIN_TURN_SECONDS / seconds_by_side[name]) if seconds_by_side else 1 for name in sides}
    names, times = list(sides), {name: [] for name in sides}
    start = time.perf_counter()
    for number in range(MAX_ROUNDS):
        if number >= min_rounds and time.perf_counter() - start > seconds:
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(time_calls(sides[name], calls[name]))
    return {name: np.array(times_R) for name, times_R in times.items()}


def time_calls(side: Callable[[], object], calls: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        side()
    return (time.perf_counter() - start) / calls


def compute_ratio(ours_R, peer_R) -> float:
    """How many times faster ours is: the median of the rounds' ratios."""
    return float(np.median(np.asarray(peer_R) / np.asarray(ours_R)))


def make_row(case: str, unit: str, ours_R, peer_R=None, peer_name: str = "", *, work: float = 1.0) -> dict:
    """A row of the table from seconds per call; a ratio above 1 means that ours is faster.

    unit: "s" and "ms" show the time; any other, such as "tokens/s", shows `work`, that of one call, over the time.
    """

    def format_times(side_R):
        return float(np.median(side_R)) * TIME_UNITS[unit] if unit in TIME_UNITS else work / float(np.median(side_R))

    has_peer = peer_R is not None
    return {
        "case": case,
        "ours": format_times(ours_R),
        "peer": format_times(peer_R) if has_peer else None,
        "peer_name": peer_name,
        "unit": unit,
        "ratio": compute_ratio(ours_R, peer_R) if has_peer else None,
    }


def make_size_row(case: str, unit: str, ours: float, peer: float | None = None, peer_name: str = "") -> dict:
    """A row of a number that is no time: memory, of which less is better, or a number without a peer."""
    return {
        "case": case,
        "ours": float(ours),
        "peer": peer,
        "peer_name": peer_name,
        "unit": unit,
        "ratio": peer / ours if peer is not None else None,
    }


def make_peer_rows(case: str, unit: str, times: Mapping[str, np.ndarray], *, work: float = 1.0) -> Iterator[dict]:
    """A row of side "ours" beside each other side, or one row alone if there is no other."""
    peers = [name for name in times if name != "ours"]
    for name in peers:
        yield make_row(case, unit, times["ours"], times[name], name, work=work)
    if not peers:
        yield make_row(case, unit, times["ours"], work=work)
