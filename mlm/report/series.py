"""What figures show of a sweep: lines, points and matrices, each value with its interval over a group of seeds.

A run is its result.json, as a dict; a group is the runs that differ in their seed alone.
"""
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm import metrics
from mlm.report.table import Estimate, estimate


class Series(NamedTuple):
    """A line: its name, where it is known (numbers, or names of classes), and its value there."""

    name: str
    x: list
    y: list[Estimate]


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


def curves(root: Path, results: Sequence[dict], group=name_of, x: str = "step", y: str = "eval_loss") -> list[Series]:
    """A line a group: the mean of `y` over seeds, and the lowest and highest seed, at the steps that all seeds have.

    x: "step", or a running total of metrics.jsonl such as "tokens", averaged over seeds. y: a name in metrics.jsonl.
    The range is shown, not Student's interval: with two or three seeds that is far wider than the figure.
    """
    lines = []
    for name, members in groups(results, group).items():
        seeds = [points(metrics.read(folder(root, member) / "metrics.jsonl"), x, y) for member in members]
        steps = sorted(set.intersection(*map(set, seeds)))
        at_NxSx2 = np.array([[seed[step] for step in steps] for seed in seeds]).reshape(len(seeds), len(steps), 2)
        bounds = (at_NxSx2[..., 1].min(0), at_NxSx2[..., 1].max(0)) if len(seeds) > 1 else ([None] * len(steps),) * 2
        lines.append(Series(name, at_NxSx2[..., 0].mean(0).tolist(),
                            [Estimate(*map(plain, three)) for three in zip(at_NxSx2[..., 1].mean(0), *bounds,
                                                                           strict=True)]))
    return [line for line in lines if line.x]


def plain(value) -> float | None:
    return None if value is None else float(value)


def points(records: Sequence[dict], x: str, y: str) -> dict[int, tuple[float, float]]:
    """(x, y) by step, of the records that hold y; x may stand in another record of the same step."""
    at = {}
    for record in records:
        at.setdefault(record["step"], {}).update(record)
    return {step: (record[x], record[y]) for step, record in at.items() if x in record and y in record}


def by_class(results: Sequence[dict], probe: str, by: str = "distance", group=name_of) -> tuple[list[Series], Series]:
    """Accuracy on a probe ("agreement", "recall") by distance or by attractors: a line a group, and the optimum's.

    Classes are named by their bounds, the last by "≥"; those without items, and runs without the probe, are left out.
    """
    have = [result for result in results if by in result.get("probes", {}).get(probe, {})]
    if not have:
        return [], Series("optimum", [], [])
    classes = [i for i, one in enumerate(have[0]["probes"][probe][by]) if one["items"]]
    first = [have[0]["probes"][probe][by][i] for i in classes]
    names = [span(one["low"], one["high"]) for one in first]
    lines = []
    for name, members in groups(have, group).items():
        columns = [[member["probes"][probe][by][i] for member in members] for i in classes]
        lines.append(Series(name, names, [judged([one["accuracy"] for one in column],
                                                 [one["accuracy_se"] for one in column]) for column in columns]))
    return lines, Series("optimum", names, [Estimate(one["optimum"], None, None) for one in first])


def span(low: int, high: int | None) -> str:
    if high is None:
        return f"≥{low}"
    return str(low) if low == high else f"{low}\N{EN DASH}{high}"


def by_rate(results: Sequence[dict], value: str = "loss", group=name_of) -> tuple[list[Series], Series | None]:
    """`value` by the evaluation's masking rate in per cent, a line a group; and the floor's, where it is known.

    value: "loss", "accuracy" or "gap".
    """
    have = [result for result in results if result.get("rates") and value in result["rates"][0]]
    lines = []
    for name, members in groups(have, group).items():
        per_rate = [[member["rates"][i] for member in members] for i in range(len(members[0]["rates"]))]
        lines.append(Series(name, [100 * column[0]["rate"] for column in per_rate],
                            [judged([one[value] for one in column], [one[f"{value}_se"] for one in column])
                             for column in per_rate]))
    if value != "loss" or not have or any("floor" not in one for one in have[0]["rates"]):
        return lines, None
    rates = have[0]["rates"]
    return lines, Series("floor", [100 * one["rate"] for one in rates], [Estimate(one["floor"], None, None)
                                                                         for one in rates])
