"""The points of a sweep as checked configs: an experiment's points are user input, as is the command line."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlm.base import config, errors, fields
from mlm.base.errors import ConfigError
from mlm.training.run import resolution


def resolve_points(
    base: config.Config, sweep: Mapping[str, Mapping], overrides: Mapping[str, Any]
) -> dict[str, config.Config]:
    """The checked config of each point: the base, then the point's own fields, then the overrides.

    An override is left out for points that do not read its field. Raises ConfigError, naming the point, for a name that
    no folder can have, for a point's wrong fields, and for an override that no point reads.
    """
    errors.require(isinstance(sweep, Mapping) and len(sweep) > 0, "what sweep() returns", sweep, "points by name")
    configs, unread_by_all = {}, dict.fromkeys(overrides, "")
    for name, point in sweep.items():
        check_point_name(name)
        with errors.name_place(f"point {name}"):
            errors.require(isinstance(point, Mapping), "it", point, "a dict of the fields it sets")
            resolved = resolution.resolve_layers(resolution.make_layers(base, point, overrides), drop_unread=True)
        unread_by_all = {field: resolved.dropped[field] for field in unread_by_all if field in resolved.dropped}
        configs[name] = resolved.config
    for field, reason in unread_by_all.items():
        raise ConfigError(f"config.{field} = {overrides[field]!r}: no point reads it, since {reason}; leave it out")
    return configs


def find_origins(
    cfg: config.Config, base: fields.Layer, point: fields.Layer, overrides: fields.Layer
) -> dict[str, str]:
    """Where the value of each field comes from, by dotted name; cfg: the point as the sweep trains it."""
    resolved = resolution.resolve_layers([base, point, overrides], drop_unread=True)
    flat, own = fields.flatten(cfg), fields.flatten(resolved.config)
    return {name: origin if flat[name] == own[name] else "the sweep" for name, origin in resolved.origins.items()}


def check_groups(configs: Mapping[str, config.Config], group: Callable[[dict], str]) -> str:
    """Raises ConfigError unless the points of a group, a row of the table, differ in their seed alone.

    Returns a line about points of different groups that differ in their seed alone, "" if there are none. configs: by
    the names of their points; group: the name of a result's group, as `series.group_name` gives it.
    """
    flat_configs = {name: {**fields.flatten(cfg), "workdir": ""} for name, cfg in configs.items()}
    first_points: dict[str, str] = {}  # of each group
    recipes: dict[str, tuple[str, str]] = {}  # config without the seed -> its first point, and that point's group
    for name, flat in flat_configs.items():
        group_name = group({"config": flat | {"workdir": f"{name}-000000"}})
        first = first_points.setdefault(group_name, name)
        names = (field for field, value in flat.items() if value != flat_configs[first][field])
        if differences := [field for field in names if field != "seed"]:
            raise ConfigError(
                f"points {first} and {name}: expected one recipe with two seeds, since their names differ in -seedN "
                f"alone; they differ in {', '.join(differences)}"
            )
        twin, twin_group = recipes.setdefault(repr({**flat, "seed": 0}), (name, group_name))
        if twin_group != group_name:
            return (
                f"points {twin} and {name} are one recipe with two seeds, but two rows of the table: let their names "
                "be the same but for -seedN at the end"
            )
    return ""


def point_name(cfg: config.Config) -> str:
    """The experiment's name of a point, with which the name of its folder begins."""
    return Path(cfg.workdir).name.rpartition("-")[0]


def select_points(configs: Sequence[config.Config], patterns: Sequence[str]) -> list[config.Config]:
    """The points that match a name or pattern; all without patterns. Raises ConfigError for one that matches none."""
    names = [point_name(cfg) for cfg in configs]
    selected = set()
    for pattern in patterns:
        matches = {pattern} & set(names) or set(fnmatch.filter(names, pattern))
        hint = errors.format_hint(pattern, names)
        expected = f"the name of a point, or a pattern such as '*-seed0'{hint}"
        errors.require(bool(matches), "--points", pattern, expected)
        selected |= matches
    return [cfg for cfg, name in zip(configs, names, strict=True) if not patterns or name in selected]


def check_point_name(name: Any) -> None:
    """Raises ConfigError for a point's name that cannot be a part of a folder's name."""
    errors.require(type(name) is str, "a point's name", name, "text")
    valid = name.isprintable() and not set("/\\") & set(name) and not name.startswith(".") and name == name.strip()
    fits = valid and 0 < len(name.encode("utf-8", "replace")) <= 200
    expected = "letters for a folder's name, at most 200 bytes, without / and not beginning with a full stop"
    errors.require(fits, "a point's name", name, expected)
