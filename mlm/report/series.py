"""What figures show of a sweep: lines and matrices, each value with its interval over a group of seeds.

A run is a dict: its result, with "answers" and "summary" (what it was asked since), "history" (the records of what it
logged) and "held_out" (columns by row, or None). A group is the runs that differ in their seed alone.
"""
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm.base.estimates import REAL, SHARE, Estimate, Score, clustered, estimate, scores_of, spread

EXCESS = "excess_nats"  # the column of a loss less the least that there can be


class Series(NamedTuple):
    """A line: its name, where it is known (numbers, or names of classes), and its value there."""

    name: str
    x: list
    y: list[Estimate]


class Matrix(NamedTuple):
    """A value for each group and evaluation rate (a fraction)."""

    groups: list[str]
    rates: list[float]
    value_GxR: list[list[Estimate]]


def name_of(result: dict) -> str:
    """The group of a run by its directory's name: what stands before "-seed", or else before the fingerprint."""
    return re.sub(r"(-seed\d+)?(-[0-9a-f]{6})?$", "", Path(result["config"]["workdir"]).name)


def groups(results: Sequence[dict], group: Callable[[dict], str] = name_of) -> dict[str, list[dict]]:
    """Runs by the name of their group, in the order they come."""
    members = {}
    for result in results:
        members.setdefault(group(result), []).append(result)
    return members


def scores(results: Sequence[dict]) -> list[Score]:
    """The scores that some run carries, in the order they come; units that differ stand side by side."""
    found = {}
    for result in results:
        for score in scores_of(result):
            first = found.get(score.name, score)
            units = dict.fromkeys([*first.unit.split(" or "), score.unit])
            found[score.name] = first._replace(unit=" or ".join(units))
    return list(found.values())


def judging(results: Sequence[dict]) -> Score:
    """The score that tables and charts prefer: the excess over the floor where all runs have it, else the first."""
    every = scores(results)
    there = [score for score in every if score.columns[0] == EXCESS and common(results, score)]
    return (there or every)[0]


def common(results: Sequence[dict], score: Score) -> bool:
    """Whether all runs have the score."""
    return all(score.name in result["evaluation"] for result in results)


def same(results: Sequence[dict], score: Score) -> float | None:
    """The value of a score that is the same in all runs, but for rounding; None where it is not, or not there."""
    values = [result["evaluation"].get(score.name, math.nan) for result in results]
    return values[0] if all(math.isclose(value, values[0], rel_tol=1e-6) for value in values) else None


def beside(results: Sequence[dict], name: str) -> list[Score]:
    """The references of the score of that name."""
    return [score for score in scores(results) if score.reference and score.beside == name]


def optimum(results: Sequence[dict], name: str) -> Score | None:
    """The reference of the score `name` that is of the best there can be: of whose loss the excess is counted from."""
    first, excess, found = scores(results)[0], judging(results), results[0]["evaluation"]
    if excess.columns[0] != EXCESS:
        return None
    floor = found[first.name] - found[excess.name]
    best = {score.reference for score in beside(results, first.name)
            if math.isclose(found.get(score.name, math.nan), floor, abs_tol=1e-6)}
    return next((score for score in beside(results, name) if score.reference in best), None)


def leaks(result: dict) -> list[Score]:
    """Of what a run's floors are known, that in which it is below by more than 3 of its rows' standard errors.

    No model can be, but by chance in one of 700, that has not seen what it was asked for.
    """
    found = result["evaluation"]
    return [score for score in scores_of(result) if score.columns[0].endswith(EXCESS) and score.name in found
            and found[score.name] < -3 * found[f"{score.name}_se"]]


def rates(result: dict) -> dict[float, dict]:
    """The evaluations at further masking rates, by rate."""
    return {one["rate"]: one for one in result["answers"].get("rates", {}).values()}


def probes(result: dict) -> dict[str, dict]:
    """The answers to the probes of the built-in language, by probe."""
    return result["answers"].get("probes", {})


def histories(results: Sequence[dict], group=name_of) -> dict[str, list[dict[int, dict]]]:
    """What the runs of each group logged: for each seed all records of a step as one, by step."""
    return {name: [by_step(member["history"]) for member in members]
            for name, members in groups(results, group).items()}


def by_step(records: Sequence[dict]) -> dict[int, dict]:
    at = {}
    for record in records:
        at.setdefault(record["step"], {}).update(record)
    return at


def curves(histories: dict[str, list[dict[int, dict]]], x: str, y: str) -> list[Series]:
    """A line a group: the mean of `y` over seeds, and the lowest and highest seed, at the steps that all seeds have.

    x: "step", or a running total of the history such as "tokens", averaged over seeds. y: a name in the history.
    The range is shown, not Student's interval: with two or three seeds that is far wider than the figure.
    """
    lines = []
    for name, seeds in histories.items():
        steps = sorted(set.intersection(*({step for step, record in seed.items() if x in record and y in record}
                                          for seed in seeds)))
        if steps:
            x_NxS, y_NxS = (np.array([[seed[step][axis] for step in steps] for seed in seeds]) for axis in (x, y))
            value = spread if len(seeds) > 1 else estimate
            lines.append(Series(name, x_NxS.mean(0).tolist(), [value(y_N) for y_N in y_NxS.T]))
    return lines


def by_class(results: Sequence[dict], probe: str, by: str = "distance", group=name_of) -> tuple[list[Series], Series]:
    """Accuracy on a probe ("agreement", "recall") by distance or by attractors: a line a group, and the optimum's.

    Classes are named by their bounds, the last by "≥"; runs without the probe are left out. Bounds: the lowest and the
    highest seed; where there is one of each group, the interval over items.
    """
    have = [result for result in results if by in probes(result).get(probe, {})]
    classes = probes(have[0])[probe][by] if have else []
    names = [span(one["low"], one["high"]) for one in classes]
    members = groups(have, group)
    value = over_items if all(len(runs) == 1 for runs in members.values()) else over_seeds
    lines = [Series(name, names, [value(column) for column in zip(*(probes(run)[probe][by] for run in runs),
                                                                  strict=True)]) for name, runs in members.items()]
    return lines, Series("optimum", names, [Estimate(one["optimum"], None, None) for one in classes])


def over_items(answers: Sequence[dict]) -> Estimate:
    one, = answers
    return clustered(one["accuracy"], one["accuracy_se"], one["items"])


def over_seeds(answers: Sequence[dict]) -> Estimate:
    values = [one["accuracy"] for one in answers]
    return spread(values) if len(values) > 1 else estimate(values)


def said(lines: Sequence[Series]) -> str:
    """What the bounds of some lines are."""
    return " or ".join(dict.fromkeys(value.of for line in lines for value in line.y if value.low is not None))


def within(score: Score) -> tuple[float, float]:
    """The bounds of what a score's values are."""
    return SHARE if score.share else REAL


def span(low: int, high: int | None) -> str:
    if high is None:
        return f"≥{low}"
    return str(low) if low == high else f"{low}\N{EN DASH}{high}"


def matrix(results: Sequence[dict], value: str, group=name_of) -> Matrix:
    """The score `value` of each group at each evaluation rate that all runs were asked for."""
    have = [result for result in results if any(value in one for one in rates(result).values())]
    shared = sorted(set.intersection(*(set(rates(result)) for result in have))) if have else []
    members = groups(have, group)
    inside = next((within(score) for score in scores(have) if score.name == value), REAL)
    return Matrix(list(members), shared, [[estimate((rates(one)[rate][value] for one in seeds), inside)
                                           for rate in shared] for seeds in members.values()])


def by_rate(results: Sequence[dict], value: str, group=name_of) -> tuple[list[Series], Series | None]:
    """`matrix` as a line a group by the evaluation's masking rate in per cent; and the optimum's where it is known."""
    found = matrix(results, value, group)
    per_cent = [100 * rate for rate in found.rates]
    lines = [Series(name, per_cent, values) for name, values in zip(found.groups, found.value_GxR, strict=True)]
    best = optimum(results, value)
    if best is None or not lines:
        return lines, None
    at = at_rates(results, best)
    if not at.keys() >= set(found.rates):
        return lines, None
    return lines, Series(best.reference, per_cent, [Estimate(at[rate], None, None) for rate in found.rates])


def at_rates(results: Sequence[dict], reference: Score) -> dict[float, float]:
    """A reference's value at each further rate, where it is the same in all runs that have it."""
    found: dict[float, list[float]] = {}
    for result in results:
        for rate, one in rates(result).items():
            if reference.name in one:
                found.setdefault(rate, []).append(one[reference.name])
    return {rate: values[0] for rate, values in found.items()
            if all(math.isclose(value, values[0], rel_tol=1e-6, abs_tol=1e-6) for value in values)}
