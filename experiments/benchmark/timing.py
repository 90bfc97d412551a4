"""Sides timed in turns, and the rows of the table: a ratio is the median over rounds of the ratio within each round."""
import math
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from mlm.report.table import Column

WARM = 1.0    # seconds of a call that is warm after one
LEAST = 7     # rounds where a round takes seconds; parts that time whole starts and compilations say fewer
MOST = 21     # rounds
TURN = 0.25   # seconds of a side's turn at least, so that the grain of clock and scheduler does not show

COLUMNS = (Column("part", "part"), Column("case", "case"), Column("ours", "ours", ",.2f"),
           Column("peer", "peer", ",.2f"), Column("peer_name", "peer_name"), Column("unit", "unit"),
           Column("ratio", "ratio", ".2f"))
TIMES = {"s": 1.0, "ms": 1e3}  # units that count a second's parts: less is better, as it is for memory


def measure(sides: Mapping[str, Callable[[], object]], seconds: float, *, least: int = LEAST,
            warm_up: int = 2) -> dict[str, np.ndarray]:
    """Seconds a call of each side, one number a round; a side returns when its work is done.

    Sides take turns, and every round starts with another one: what the machine does beside falls on all alike. Rounds
    go on for `seconds`, but are at least `least` and at most MOST. warm_up: calls of each side before, one of a side
    that takes longer than WARM; the last says how many calls make a turn, which is one where there is none.
    """
    cost = {}
    for _ in range(warm_up):
        cost |= {name: clock(side) for name, side in sides.items() if cost.get(name, 0) < WARM}
    calls = {name: math.ceil(TURN / cost[name]) if cost else 1 for name in sides}
    names, times = list(sides), {name: [] for name in sides}
    start = time.perf_counter()
    for number in range(MOST):
        if number >= least and time.perf_counter() - start > seconds:
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(clock(sides[name], calls[name]))
    return {name: np.array(of_side) for name, of_side in times.items()}


def clock(side: Callable[[], object], calls: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        side()
    return (time.perf_counter() - start) / calls


def ratio(ours_R, peer_R) -> float:
    """How many times faster ours is: the median of the rounds' ratios, not the ratio of the medians."""
    return float(np.median(np.asarray(peer_R) / np.asarray(ours_R)))


def row(case: str, unit: str, ours_R, peer_R=None, peer_name: str = "", *, work: float = 1.0) -> dict:
    """A row of the table from seconds a call. unit "s" or "ms" shows the time itself; any other, such as "tokens/s",
    shows `work`, what one call does, over the time. A ratio above 1 says that ours is better."""
    def shown(side_R):
        return float(np.median(side_R)) * TIMES[unit] if unit in TIMES else work / float(np.median(side_R))

    there = peer_R is not None
    return {"case": case, "ours": shown(ours_R), "peer": shown(peer_R) if there else None,
            "peer_name": peer_name, "unit": unit, "ratio": ratio(ours_R, peer_R) if there else None}


def size_row(case: str, unit: str, ours: float, peer: float | None = None, peer_name: str = "") -> dict:
    """A row of what is not a time: memory, of which less is better, or a figure without a peer."""
    return {"case": case, "ours": float(ours), "peer": peer, "peer_name": peer_name, "unit": unit,
            "ratio": peer / ours if peer is not None else None}


def against(case: str, unit: str, times: Mapping[str, np.ndarray], *, work: float = 1.0) -> Iterator[dict]:
    """The rows of side "ours" against every other side, which gives its name; one without a peer where it is alone."""
    peers = [name for name in times if name != "ours"]
    for name in peers:
        yield row(case, unit, times["ours"], times[name], name, work=work)
    if not peers:
        yield row(case, unit, times["ours"], work=work)
