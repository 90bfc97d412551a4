"""Labelled data of TensorFlow Datasets, without TensorFlow: columns are features, a label of a class is its name."""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, Label
from mlm.data.text import tfds

FIELD = "config.data.labelled"


def reads(data: config.Data, fields: Mapping[str, str]) -> dict[str, tuple[str, Callable[[Label], Iterator[Example]]]]:
    """By split what it is called in messages, and what reads it; fields: of config.data.labelled, by split.

    Raises ConfigError for an unknown data set, feature or split, with the nearest right name, and as `tfds.opened`.
    """
    builder = _opened(data)
    return {
        split: (f"{builder.info.full_name}, split {said}", functools.partial(_read, builder, said, data.labelled))
        for split, said in _splits(builder, data, fields).items()
    }


def classes(data: config.Data) -> tuple[str, ...]:
    """The names of the label's classes in their order; () where the feature is no class."""
    return tuple(getattr(_opened(data).info.features[data.labelled.label_column], "names", None) or ())


def content(data: config.Data, fields: Mapping[str, str]) -> bytes:
    """Digest of the data set's name with its version, the names of its classes, its splits and their files."""
    builder = _opened(data)
    splits = _splits(builder, data, fields)
    named = json.dumps([builder.info.full_name, classes(data), splits]).encode()
    return hashlib.sha256(
        named + b"".join(tfds.compute_split_digest(builder, said) for said in splits.values())
    ).digest()


def _splits(builder, data, fields):
    found = {split: said for split, field in fields.items() if (said := getattr(data.labelled, field))}
    for split, said in found.items():
        field, known = f"{FIELD}.{fields[split]}", list(builder.info.splits)
        errors.require_one_of(field, said.partition("[")[0], known)
        try:
            builder.info.splits[said]
        except Exception as error:  # whatever TFDS raises for a slice that is none
            raise errors.ConfigError(
                f"{field} = {said!r}: expected one of {', '.join(known)}, or a slice of it such "
                f"as {known[0]}[:90%] ({errors.first_line(error)})"
            ) from None
    return found


def _opened(data):
    builder = tfds.open_builder("config.data.task_path", data.task_path, data.tfds_dir)
    said = data.labelled
    for name in ("text_column", "text_pair_column", "label_column", "id_column"):
        if getattr(said, name):
            errors.require_one_of(f"{FIELD}.{name}", getattr(said, name), list(builder.info.features))
    for name in examples.endings(said):
        errors.require_one_of(f"{FIELD}.choice_columns", name, list(builder.info.features))
    return builder


def _read(builder, split: str, asks: config.Labelled, label: Label) -> Iterator[Example]:
    place, wanted = f"{builder.info.full_name}, split {split}", examples.columns(asks)
    features = builder.info.features
    for count, record in enumerate(builder.as_data_source(split=split)):
        where = f"{place}, record {count}"
        found = {name: _written(features[name], record[name], f"{where}: {name}") for name in wanted}
        found |= {name: str(found[name]) for name in (asks.label_column, asks.id_column) if name}
        yield examples.of_row(asks, found, label, where, count)


def _written(feature, value: Any, where: str) -> Any:
    """What stands in a record, as it would in a table."""
    errors.require(
        isinstance(value, bytes | str | int | float | np.generic),
        where,
        type(value).__name__,
        "a text, a class or a number",
    )
    if names := getattr(feature, "names", None):
        errors.require(
            value >= 0,
            where,
            int(value),
            "a label; where it is hidden, another split, or none, in config.data.labelled",
        )
        return names[value]
    return examples.decoded(value, where) if isinstance(value, bytes) else value
