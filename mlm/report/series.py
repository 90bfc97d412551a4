"""What figures show of a sweep: lines and matrices, each value with its interval over a group of seeds.

A run is its result.json, as a dict; a group is the runs that differ in their seed alone.
"""
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm.base import files
from mlm.base.estimates import Estimate, estimate


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


def folder(root: Path, result: dict) -> Path:
    """The run's directory inside its sweep's, wherever that was moved to."""
    return Path(root) / Path(result["config"]["workdir"]).name


def name_of(result: dict) -> str:
    """The group of a run by its directory's name: what stands before "-seed", or else before the fingerprint."""
    return re.sub(r"(-seed\d+)?(-[0-9a-f]{6})?$", "", Path(result["config"]["workdir"]).name)


def groups(results: Sequence[dict], group: Callable[[dict], str] = name_of) -> dict[str, list[dict]]:
    """Runs by the name of their group, in the order they come."""
    members = {}
    for result in results:
        members.setdefault(group(result), []).append(result)
    return members


def judged(values: Sequence[float], errors: Sequence[float]) -> Estimate:
    """Mean and 95% interval: Student's over seeds, or that over held-out rows where there is one seed only."""
    if len(values) > 1:
        return estimate(values)
    return Estimate(values[0], values[0] - 1.96 * errors[0], values[0] + 1.96 * errors[0])


def shown(values: Sequence[float], errors: Sequence[float]) -> Estimate:
    """As `judged`, but over seeds the lowest and highest: Student's interval of two would cross the whole figure."""
    return Estimate(float(np.mean(values)), min(values), max(values)) if len(values) > 1 else judged(values, errors)


def histories(root: Path, results: Sequence[dict], group=name_of) -> dict[str, list[dict[int, dict]]]:
    """What the runs of each group logged: for each seed all records of a step as one, by step."""
    return {name: [by_step(files.read(folder(root, member) / "metrics.jsonl")) for member in members]
            for name, members in groups(results, group).items()}


def by_step(records: Sequence[dict]) -> dict[int, dict]:
    at = {}
    for record in records:
        at.setdefault(record["step"], {}).update(record)
    return at


def curves(histories: dict[str, list[dict[int, dict]]], x: str = "step", y: str = "eval_loss") -> list[Series]:
    """A line a group: the mean of `y` over seeds, and the lowest and highest seed, at the steps that all seeds have.

    x: "step", or a running total of metrics.jsonl such as "tokens", averaged over seeds. y: a name in metrics.jsonl.
    The range is shown, not Student's interval: with two or three seeds that is far wider than the figure.
    """
    lines = []
    for name, seeds in histories.items():
        steps = sorted(set.intersection(*({step for step, record in seed.items() if x in record and y in record}
                                          for seed in seeds)))
        if steps:
            x_NxS, y_NxS = (np.array([[seed[step][axis] for step in steps] for seed in seeds]) for axis in (x, y))
            bounds = zip(y_NxS.min(0).tolist(), y_NxS.max(0).tolist(), strict=True)
            lines.append(Series(name, x_NxS.mean(0).tolist(),
                                [Estimate(mean, *(bound if len(seeds) > 1 else (None, None)))
                                 for mean, bound in zip(y_NxS.mean(0).tolist(), bounds, strict=True)]))
    return lines


def by_class(results: Sequence[dict], probe: str, by: str = "distance", group=name_of) -> tuple[list[Series], Series]:
    """Accuracy on a probe ("agreement", "recall") by distance or by attractors: a line a group, and the optimum's.

    Classes are named by their bounds, the last by "≥"; runs without the probe are left out. Bounds: see `shown`.
    """
    have = [result for result in results if by in result.get("probes", {}).get(probe, {})]
    classes = have[0]["probes"][probe][by] if have else []
    names = [span(one["low"], one["high"]) for one in classes]
    lines = []
    for name, members in groups(have, group).items():
        columns = zip(*(member["probes"][probe][by] for member in members), strict=True)
        lines.append(Series(name, names, [shown([one["accuracy"] for one in column],
                                                [one["accuracy_se"] for one in column]) for column in columns]))
    return lines, Series("optimum", names, [Estimate(one["optimum"], None, None) for one in classes])


def span(low: int, high: int | None) -> str:
    if high is None:
        return f"≥{low}"
    return str(low) if low == high else f"{low}\N{EN DASH}{high}"


def matrix(results: Sequence[dict], value: str = "loss", group=name_of) -> Matrix:
    """`value` ("loss", "accuracy" or "gap") of each group at each evaluation rate that all runs were asked for."""
    have = [result for result in results if value in result.get("rates", [{}])[0]]
    asked = [{one["rate"]: one for one in result["rates"]} for result in have]
    rates = sorted(set.intersection(*map(set, asked))) if asked else []
    members = groups(list(zip(have, asked, strict=True)), lambda pair: group(pair[0]))
    return Matrix(list(members), rates, [[judged([at[rate][value] for _, at in seeds],
                                                 [at[rate][f"{value}_se"] for _, at in seeds]) for rate in rates]
                                         for seeds in members.values()])


def by_rate(results: Sequence[dict], value: str = "loss", group=name_of) -> tuple[list[Series], Series | None]:
    """`matrix` as a line a group by the evaluation's masking rate in per cent; and the floor's loss where known."""
    found = matrix(results, value, group)
    per_cent = [100 * rate for rate in found.rates]
    lines = [Series(name, per_cent, values) for name, values in zip(found.groups, found.value_GxR, strict=True)]
    floors = {one["rate"]: one["floor"] for result in results for one in result.get("rates", []) if "floor" in one}
    if value != "loss" or not lines or not floors.keys() >= set(found.rates):
        return lines, None
    return lines, Series("floor", per_cent, [Estimate(floors[rate], None, None) for rate in found.rates])
