"""Sweeps as data: lists of points, each a dict of the fields it sets, combined by product, zip and chain.

A point may carry words of its name under "name"; combined points join theirs by "-", and `named` ends with a sweep.

    >>> rates = axis("mask.rate", 0.15, 0.4, name="rate{}")
    >>> seeds = axis("seed", 0, 1, name="seed{}")
    >>> named(product(rates, seeds))["rate0.4-seed1"]
    {'mask.rate': 0.4, 'seed': 1}
"""
import itertools
from collections.abc import Iterable
from typing import Any

from mlm.base.errors import ConfigError

Points = list[dict[str, Any]]


def axis(field: str, *values: Any, name: str = "") -> Points:
    """A point for each value of a field; name: a format for the value, or "" where the point's name is without it."""
    return [{field: value} | ({"name": name.format(value)} if name else {}) for value in values]


def product(*parts: Points) -> Points:
    """Every point of the first part with every one of the next, the last varying fastest."""
    return [merged(combination) for combination in itertools.product(*parts)]


def zipped(*parts: Points) -> Points:
    """The first points of all parts as one, the second ones, and so on; the parts are of one length."""
    return [merged(combination) for combination in zip(*parts, strict=True)]


def chain(*parts: Points) -> Points:
    """The points of all parts, one part after the other."""
    return list(itertools.chain(*parts))


def without(point: dict[str, Any], *fields: str) -> dict[str, Any]:
    """A point without what it sets of these fields, or of all below one, as a recipe of another corpus needs it."""
    return {name: value for name, value in point.items()
            if not any(name == field or name.startswith(f"{field}.") for field in fields)}


def merged(points: Iterable[dict]) -> dict:
    """One point that sets what all of them set. Raises ConfigError where two set a field to different values."""
    result, names = {}, []
    for point in points:
        names += [point["name"]] if "name" in point else []
        for field, value in point.items():
            if field != "name" and result.setdefault(field, value) != value:
                raise ConfigError(f"{field} = {value!r}: another part of the sweep sets it to {result[field]!r}")
    return result | ({"name": "-".join(names)} if names else {})


def named(points: Points) -> dict[str, dict]:
    """The points by name, as an experiment's sweep() returns them. Raises ConfigError where two have the same name."""
    result = {}
    for point in points:
        point = dict(point)
        name = point.pop("name", "")
        if not name or name in result:
            raise ConfigError(f"point {point}: expected a name of its own, not {name!r}")
        result[name] = point
    return result
