"""The points of a sweep as checked configs: what an experiment returns is a user's, and so is the command line."""
import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlm.base import config, errors, fields
from mlm.base.errors import ConfigError
from mlm.train import resolution
from mlm.train.run import initialization


def resolved(base: config.Config, sweep: Mapping[str, Mapping], asked: Mapping[str, Any]) -> dict[str, config.Config]:
    """The checked config of each of a sweep's points: the base, what the point sets, what is asked of all of them.

    What is asked is left out for points that do not read it. Raises ConfigError, naming the point, for a name that no
    folder can have, for what a point sets wrongly, and for what is asked though no point reads it.
    """
    errors.require(isinstance(sweep, Mapping) and len(sweep) > 0, "what sweep() returns", sweep, "points by name")
    configs, moot = {}, dict.fromkeys(asked, "")
    for name, point in sweep.items():
        check_name(name)
        try:
            errors.require(isinstance(point, Mapping), "it", point, "a dict of the fields it sets")
            said = fields.override(fields.override(base, initialization.given(base, point, asked)), point)
            unread = resolution.unread(fields.override(said, asked))
            mine = {field: value for field, value in asked.items() if field not in unread}
            moot = {field: unread[field] for field in moot if field in unread}
            configs[name] = initialization.resolve(base, point, mine)
            resolution.check(configs[name])
        except ConfigError as error:
            raise ConfigError(f"point {name}: {error}") from None
    for field, why in moot.items():
        raise ConfigError(f"config.{field} = {asked[field]!r}: no point reads it, since {why}; leave it out")
    return configs


def name(cfg: config.Config) -> str:
    """What the experiment calls a point, with which the name of its folder begins."""
    return Path(cfg.workdir).name.rpartition("-")[0]


def chosen(configs: Sequence[config.Config], wanted: Sequence[str]) -> list[config.Config]:
    """The points of these names, or that match one as a pattern such as *-seed0; all, where nothing is wanted.

    Raises ConfigError for a name that is no point's.
    """
    names = [name(cfg) for cfg in configs]
    found = set()
    for one in wanted:
        matches = {one} & set(names) or set(fnmatch.filter(names, one))
        near = difflib.get_close_matches(one[:100], names, n=1, cutoff=0.5)
        errors.require(bool(matches), "--points", one, "the name of a point, or a pattern such as '*-seed0'"
                      + (f"; did you mean {near[0]!r}?" if near else ""))
        found |= matches
    return [cfg for cfg, name in zip(configs, names, strict=True) if not wanted or name in found]


def check_name(name: Any) -> None:
    """Raises ConfigError for a point's name that cannot be a part of a folder's name."""
    errors.require(type(name) is str, "a point's name", name, "text")
    fit = name.isprintable() and not set("/\\") & set(name) and not name.startswith(".") and name == name.strip()
    errors.require(bool(name) and fit and len(name.encode("utf-8", "replace")) <= 200, "a point's name", name,
                  "letters for a folder's name, at most 200 bytes, without / and not beginning with a full stop")
