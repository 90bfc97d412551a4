"""Sweeps as data: lists of points. A point is a dict of config fields, with its name under "name".

Functions combine lists; the name of a combined point joins the names of its parts by "-". `name_points` comes last.

    >>> rates = make_axis("mask.rate", 0.15, 0.4, name="rate{}")
    >>> name_points(cross_points(rates, make_seeds(2)))["rate0.4-seed1"]
    {'mask.rate': 0.4, 'seed': 1}
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from mlm.base.errors import ConfigError

Points = list[dict[str, Any]]


def make_axis(field: str, *values: Any, name: str = "") -> Points:
    """One point for each value of a field; name: format of the value in the point's name, "" to leave it out."""
    return [{field: value} | ({"name": name.format(value)} if name else {}) for value in values]


def make_seeds(count: int) -> Points:
    """One point for each seed from 0 on."""
    return make_axis("seed", *range(count), name="seed{}")


def cross_points(*groups: Points) -> Points:
    """All combinations of one point from each group; the last group varies fastest."""
    return [merge_points(combination) for combination in itertools.product(*groups)]


def zip_points(*groups: Points) -> Points:
    """Combines the first points of all groups, then the second ones, and so on; groups have equal lengths."""
    return [merge_points(combination) for combination in zip(*groups, strict=True)]


def chain_points(*groups: Points) -> Points:
    """The points of all groups, one group after the other."""
    return list(itertools.chain(*groups))


def drop_fields(point: dict[str, Any], *fields: str) -> dict[str, Any]:
    """The point without these fields, and without all fields below them ("mask" drops "mask.rate")."""
    return {
        name: value
        for name, value in point.items()
        if not any(name == field or name.startswith(f"{field}.") for field in fields)
    }


def merge_points(points: Iterable[dict]) -> dict:
    """One point with the fields of all. Raises ConfigError if two set a field to different values."""
    merged, names = {}, []
    for point in points:
        names += [point["name"]] if "name" in point else []
        for field, value in point.items():
            if field != "name" and merged.setdefault(field, value) != value:
                raise ConfigError(f"{field} = {value!r}: another group of the sweep sets it to {merged[field]!r}")
    return merged | ({"name": "-".join(names)} if names else {})


def name_points(points: Points, shared_fields: Mapping[str, Any] | None = None) -> dict[str, dict]:
    """The points by name, as sweep() returns them, with the fields all share. Raises ConfigError for a name twice."""
    named_points = {}
    for point in points:
        point = dict(point)
        name = point.pop("name", "")
        if not name or name in named_points:
            raise ConfigError(f"point {point}: expected a unique name, not {name!r}")
        named_points[name] = {**(shared_fields or {}), **point}
    return named_points
