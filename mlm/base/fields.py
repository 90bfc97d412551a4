"""The fields of a config by dotted name: all of them, some of them changed, and what a run is known by."""
import dataclasses
import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mlm.base.config import Config
from mlm.base.errors import ConfigError, require
from mlm.base.rng_versions import RNG_VERSIONS

LEAST, MOST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # float32's normal numbers; NumPy would take longer than all --help


def flatten(config, prefix: str = "", *, results_only: bool = False) -> dict[str, Any]:
    """All leaves by dotted name, in the order of their definition; results_only leaves out the settings."""
    flat = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten(value, f"{prefix}{field.name}.", results_only=results_only)
        elif not results_only or field.metadata.get("affects_result", True):
            flat[prefix + field.name] = value
    return flat


DEFAULT = flatten(Config())


def check_name(name: str) -> None:
    """Raises ConfigError with the nearest right name unless name is a field, dotted, of Config."""
    names = list(DEFAULT)
    if name not in names:
        require(type(name) is str and len(name) < 100, "field", name, "the dotted name of a field of config")
        leaf = name.rpartition(".")[2]
        near = (difflib.get_close_matches(name, names, n=1, cutoff=0.6)
                or [full for full in names if full.rpartition(".")[2] == leaf][:1])
        hint = f"; did you mean config.{near[0]}?" if near else ""
        raise ConfigError(f"config.{' '.join(name.split())}: no such field{hint}")


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """A copy of config with the leaves of `changes`, keyed by dotted name, replaced.

    Raises ConfigError for an unknown name and for a value that is not of the field's type.
    """
    for name, value in changes.items():
        check_name(name)
        *parents, leaf = name.split(".")
        owners = [config]
        for parent in parents:
            owners.append(getattr(owners[-1], parent))
        kind = type(getattr(owners[-1], leaf))
        if kind is float:
            value = _with_point(value)
        elif kind is tuple and type(value) is tuple and int not in map(type, DEFAULT[name]):
            value = tuple(map(_with_point, value))
        require(type(value) is kind, f"config.{name}", value, f"a value of type {kind.__name__}")
        for field, owner in zip((leaf, *reversed(parents)), reversed(owners), strict=True):
            value = dataclasses.replace(owner, **{field: value})
        config = value
    return config


def _with_point(value):
    return float(value) if type(value) is int and abs(value) < 2**1000 else value


def check_values(config: Config) -> None:
    """Raises ConfigError for a value that no array, file or random draw could take, whatever its field is.

    Numbers: those of float32 and int32, which they reach; seeds: uint32. Text: one line.
    """
    def number(name, value):
        if type(value) is float:
            require(value == 0 or LEAST <= abs(value) <= MOST, name, value,
                   f"a finite number that float32 holds (0, or {LEAST:.2g} to {MOST:.2g} in size)")
        elif type(value) is int:
            seed = name.rpartition(".")[2] == "seed"
            least, most = (0, 2**32 - 1) if seed else (-2**31, 2**31 - 1)
            require(least <= value <= most, name, value, f"{least} <= value <= {most}")

    flat = flatten(config)
    for name, value in DEFAULT.items():
        kind = type(value).__name__
        require(type(flat.get(name)) is type(value), f"config.{name}", flat.get(name), f"a value of type {kind}")
    for name, value in flat.items():
        if type(value) is tuple:
            whole = int in map(type, DEFAULT[name])
            for part in value:
                require(type(part) is (int if whole else float), f"config.{name}", value,
                       "whole numbers" if whole else "numbers with a decimal point")
                number(f"config.{name}", part)
        elif type(value) is str:
            control = any(ord(letter) < 32 and letter != "\t" for letter in value)
            require(not control, f"config.{name}", value, "text without line ends and control characters")
        else:
            number(f"config.{name}", value)


def fingerprint(config: Config) -> str:
    """Twelve hexadecimal digits that name a resolved config by the fields and the draws that can change its result.

    Fields at their default do not enter: one that is added, its default being what was before, renames no run.
    """
    said = {name: value for name, value in flatten(config, results_only=True).items() if value != DEFAULT[name]}
    return hashlib.sha256(json.dumps([said, RNG_VERSIONS], sort_keys=True).encode()).hexdigest()[:12]


def identity(config: Config, data: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's files keep to be known by; data: the identity of the packed rows."""
    return {"config": flatten(config), "data": data, "drawn": RNG_VERSIONS}


def drawn_otherwise(saved: Mapping[str, Any]) -> str:
    """What chance decided otherwise for a run of this identity than it would now, "" where nothing is."""
    drawn = saved.get("drawn", {})
    return "; ".join(f"{name} {drawn.get(name)}, now {now}" for name,
                     now in RNG_VERSIONS.items() if drawn.get(name) != now)


def check_same(cfg: Config, data: Mapping[str, Any], saved: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError, naming what differs, unless `saved`, an `identity`, would give the same result.

    A field that it lacks, since it was added later, has its default.
    """
    default, want = (json.loads(json.dumps(flatten(one, results_only=True))) for one in (Config(), cfg))
    have = default | saved["config"]  # tuples are lists there
    differing = [f"config.{name} = {value!r}, there {have[name]!r}"
                 for name, value in want.items() if have[name] != value]
    if differing:
        raise ConfigError(f"{where} belongs to another config: {'; '.join(differing)}; choose another config.workdir")
    other = drawn_otherwise(saved)
    if other:
        raise ConfigError(f"{where} is another version's, which drew otherwise ({other}): keep it and "
                          "choose another config.workdir, or remove it to have it made again")
    changed = [name for name in data if saved["data"].get(name) != data[name]]
    if changed:
        raise ConfigError(f"{where} was trained on other rows: {', '.join(changed)} changed since; "
                          "choose another config.workdir")
