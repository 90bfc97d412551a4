"""The flags of `mlm evaluate`, by evaluation: plain data, so that help and a wrong flag need no JAX."""

import argparse
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlm.base import errors
from mlm.base.flag import Flag

KINDS = {"int": int, "float": float}  # of a list's parts, beside text


def parse_flags(tables: Mapping[str, Any]) -> dict[str, tuple[str, tuple[Flag, ...]]]:
    """The tables of flags.toml: evaluation -> the title above its flags in the help, and its flags."""
    return {
        evaluation: (table["title"], tuple(_make_flag(name, **row) for name, row in table["flags"].items()))
        for evaluation, table in tables.items()
    }


def _make_flag(name, default, kind="", **row) -> Flag:
    return Flag(name, tuple(default) if isinstance(default, list) else default, kind=KINDS.get(kind, str), **row)


FLAGS = parse_flags(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")))


def make_arguments(options: Mapping[str, Any]) -> argparse.Namespace:
    """The values of all flags, of which keyword arguments set some. Raises ConfigError for a wrong name or value."""
    known = {flag.name: flag for _, flags in FLAGS.values() for flag in flags}
    values: dict[str, Any] = {name: flag.default for name, flag in known.items()}
    for name, value in options.items():
        errors.require_one_of("option", name, known)
        try:
            values[name] = convert_value(known[name], value)
        except (TypeError, ValueError):
            kind = type(known[name].default).__name__
            errors.require(False, name, value, f"{kind}, as --{name} of mlm evaluate takes it (mlm evaluate --help)")
    return argparse.Namespace(**values)


def convert_value(flag: Flag, value: Any) -> Any:
    """A keyword argument as the flag's parser would give it. Raises TypeError or ValueError for a wrong one."""
    kind = type(flag.default)
    if kind is tuple:
        return tuple(map(flag.kind, value.split(",") if isinstance(value, str) else value))
    if kind is str:
        return os.path.expanduser(os.fspath(value))
    if not isinstance(value, int | float) or not isinstance(value, kind) or value < flag.low:
        raise ValueError(value)
    return value


def find_evaluations(args: argparse.Namespace) -> list[str]:
    """The evaluations that the flags ask for. Raises ConfigError for a flag without the one that it needs."""
    named = {}
    for name, (_, flags) in FLAGS.items():
        for flag in flags:
            value = getattr(args, flag.name)
            if value != flag.default:
                needed = flag.needs.lstrip("-").partition("=")[0]
                shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
                errors.require(not needed or getattr(args, needed), f"--{flag.name}", shown, f"{flag.needs} with it")
                named[name] = None
    return [*named]
