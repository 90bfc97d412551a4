"""A corpus file (TOML): sources of text with weights, and the phases of a run."""

import contextlib
import dataclasses
import functools
import math
import os
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from mlm.base import conditional_fields, config, errors, fields, files, phases, text_files
from mlm.data.tasks import examples

PATH_KEYS = ("path", "validation_path")
DATA_KEYS = (  # fields of config.data that a source may have of its own
    *("corpus", *PATH_KEYS, "text_column", "id_column", "word_separator", "document_boundary", "validation_fraction"),
    *("tfds_name", "tfds_dir", "tfds_field"),
)
SOURCE_KEYS = ("name", "weight", "max_epochs", *DATA_KEYS)
PHASE_KEYS = ("share", "weights", "alpha", *phases.PHASE_FIELDS)
FILE_KEYS = ("sources", "alpha", "phases")
CORPORA = ("text", "tfds", "docstrings")
WEIGHT = config.Bounds(0)


class Source(NamedTuple):
    """A source of a corpus file."""

    name: str
    data: Mapping[str, Any]  # fields of config.data
    weight: float | None  # of its examples among all, relative to the other sources'; None: none is given
    max_epochs: float


Weights = tuple[float, ...] | float  # of the sources in a phase, or the power alpha of their sizes


class CorpusFile(NamedTuple):
    """What a corpus file holds."""

    sources: tuple[Source, ...]
    weights: tuple[Weights, ...]  # of each phase
    phases: Mapping[str, tuple[Any, ...]]  # values by field of config.phases; {}: it has none


def read_corpus_file(path: str) -> CorpusFile:
    """Reads the file of config.data.sources. Its paths are seen from its own folder.

    Raises ConfigError, which names the file, the key and the nearest right key, for one that no run could use.
    """
    file = files.make_path(path)
    hint = errors.format_hint(file.name, [other.name for other in file.parent.glob("*.toml")])
    errors.require(file.is_file(), "config.data.sources", path, f"a corpus file (TOML){hint}")
    return _parse(path, files.read_bytes(file))


@functools.lru_cache(maxsize=8)
def _parse(path, content) -> CorpusFile:
    text = text_files.decode_utf8(content.removeprefix(text_files.BOM), path)
    with errors.explain(path, "TOML", tomllib.TOMLDecodeError, RecursionError):
        table = tomllib.loads(text)
    examples.require_keys(table, FILE_KEYS, path)
    numbered = enumerate(_read_rows(table, "sources", path, 1), 1)
    sources = tuple(_parse_source(row, number, path) for number, row in numbered)
    names = [source.name for source in sources]
    for name in names:
        errors.require(names.count(name) == 1, f"{path}: name", name, "a name of one source alone")
    rows = _read_rows(table, "phases", path, 0)
    values = {}
    for number, row in enumerate(rows, 1):
        where = f"{path}: phase {number}"
        examples.require_keys(row, PHASE_KEYS, where)
        for key, field in {"share": "shares", **{key: key for key in phases.PHASE_FIELDS}}.items():
            if key == "share" or any(key in other for other in rows):
                errors.require(key in row, f"{where}: {key}", None, "a value, as each phase needs")
                values.setdefault(field, []).append(_parse_field(row[key], f"phases.{field}", f"{where}: {key}"))
    total = math.fsum(values.get("shares", [1]))
    errors.require(abs(total - 1) < 1e-6, f"{path}: share", values.get("shares"), "shares that add up to 1")
    weights = tuple(_parse_weights(table, row, sources, path, number) for number, row in enumerate(rows or [{}], 1))
    return CorpusFile(sources, weights, {field: tuple(of_phases) for field, of_phases in values.items()})


def _read_rows(table, key, path, fewest) -> list[dict]:
    rows = table.get(key, [])
    is_list = isinstance(rows, list) and len(rows) >= fewest and all(isinstance(row, dict) for row in rows)
    errors.require(is_list, f"{path}: {key}", rows, f"tables [[{key}]]{', at least one' if fewest else ''}")
    return rows


def _parse_field(value, field, where):
    """A value for a field of the config, or for each element of one that is a tuple."""
    is_tuple = type(fields.DEFAULT[field]) is tuple
    try:
        fields.check_values(fields.override(config.Config(), {field: (value,) if is_tuple else value}))
    except errors.ConfigError as error:
        expected = str(error).rpartition("expected ")[2]
        raise errors.ConfigError(f"{where} = {errors.format_value(value)}: expected {expected}") from None
    return float(value) if fields.DECLARATIONS[field].number_type is float else value


def _parse_number(value, where, bounds: config.Bounds) -> float:
    is_number = type(value) in (int, float) and bounds.contains(value) and value < math.inf
    errors.require(is_number, where, value, f"a number, {bounds}")
    return float(value)


def _parse_source(row, number, path) -> Source:
    name = row.get("name", "")
    examples.require_name(name, f"{path}: source {number}: name")
    where = f"{path}: source {name!r}"
    examples.require_keys(row, SOURCE_KEYS, where)
    data = {"corpus": "text"} | {key: row[key] for key in DATA_KEYS if key in row}
    for key, value in data.items():
        data[key] = _parse_field(value, f"data.{key}", f"{where}: {key}")
    errors.require_one_of(f"{where}: corpus", data["corpus"], CORPORA)
    for key in PATH_KEYS:
        if data.get(key):
            folder = os.path.dirname(path)
            parts = text_files.split_paths(data[key])
            data[key] = ",".join(os.path.join(folder, os.path.expanduser(part)) for part in parts)
    flat = fields.flatten(fields.override(config.Config(), {f"data.{key}": value for key, value in data.items()}))
    unread = conditional_fields.find_unread_fields(conditional_fields.DECLARED, flat)
    for key, value in data.items():
        reason = unread.get(f"data.{key}", "").replace("config.data.", "")
        errors.require(not reason, f"{where}: {key}", value, f"no such key, since {reason}")
    weight, most = row.get("weight"), row.get("max_epochs", math.inf)
    if weight is not None:
        weight = _parse_number(weight, f"{where}: weight", WEIGHT)
    if most != math.inf:
        most = _parse_number(most, f"{where}: max_epochs", config.Bounds(0, low_open=True))
    return Source(name, data, weight, most)


def _parse_weights(table, row, sources, path, number) -> Weights:
    """The weights of a phase: its own table or alpha, else those of the file."""
    where, owner = (f"{path}: phase {number}", row) if {"weights", "alpha"} & row.keys() else (path, table)
    if "alpha" in owner:
        is_alone = "weights" not in owner and (owner is row or all(source.weight is None for source in sources))
        errors.require(is_alone, f"{where}: alpha", owner["alpha"], "no weights beside it, which it gives by the sizes")
        return _parse_number(owner["alpha"], f"{where}: alpha", config.Bounds(0, 1))
    weights = {source.name: source.weight for source in sources}
    if "weights" in owner:
        own = owner["weights"]
        errors.require(isinstance(own, dict), f"{where}: weights", own, "a table with the name of each source it has")
        for name in own:
            errors.require_one_of(f"{where}: weights", name, list(weights))
        weights = {name: _parse_number(own.get(name, 0), f"{where}: weights.{name}", WEIGHT) for name in weights}
    for name, weight in weights.items():
        expected = "a number, or alpha = 0.3 at the top of the file: weights are then the sizes to its power"
        errors.require(weight is not None, f"{path}: source {name!r}: weight", weight, expected)
    by_source = tuple(weight or 0.0 for weight in weights.values())
    errors.require(any(by_source), f"{where}: weights", list(by_source), "one above 0")
    return by_source


def list_sources(data: config.Data) -> list[tuple[str, config.Data]]:
    """The name of each source of data.sources, and its data: the file's fields for it, else those of data."""
    found = read_corpus_file(data.sources).sources
    return [(source.name, dataclasses.replace(data, sources="", **source.data)) for source in found]


def name_source(path: str, name: str) -> contextlib.AbstractContextManager:
    """Errors within name the corpus file and the source in place of the config."""
    return errors.name_place(f"{path}: source {name!r}", {"config.data.": ""})


def check_phases(cfg: config.Config) -> None:
    """Raises ConfigError unless config.phases is that of the corpus file, where it has phases."""
    for name, values in read_corpus_file(cfg.data.sources).phases.items():
        expected = f"{values}, as in {cfg.data.sources}; leave it out"
        errors.require_field(cfg, f"phases.{name}", getattr(cfg.phases, name) == values, expected)


DERIVED_FIELDS = tuple(
    fields.DerivedField(
        f"phases.{name}",
        ("data.sources", "data.corpus"),
        lambda cfg, name=name: read_corpus_file(cfg.data.sources).phases.get(name, ()),
        lambda cfg: cfg.data.corpus == "text" and bool(cfg.data.sources),
    )
    for name in ("shares", *phases.PHASE_FIELDS)
)
