"""Labelled data of TensorFlow Datasets, without TensorFlow: columns are features, a label of a class is its name."""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors, text_files
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, LabelParser
from mlm.data.text import tfds

FIELD = "config.data.labelled"


def list_readers(
    data: config.Data, file_fields: Mapping[str, str]
) -> dict[str, tuple[str, Callable[[LabelParser], Iterator[Example]]]]:
    """By split its name in messages and its reader; file_fields: by split its field of config.data.labelled.

    Raises ConfigError for an unknown data set, feature or split, with the nearest right name, and as
    `tfds.open_builder`.
    """
    builder = _open_builder(data)
    name = builder.info.full_name
    return {
        split: (f"{name}, split {subsplit}", functools.partial(_read, builder, subsplit, data.labelled))
        for split, subsplit in _resolve_splits(builder, data, file_fields).items()
    }


def list_classes(data: config.Data) -> tuple[str, ...]:
    """The names of the label's classes in their order; () where the feature is no class."""
    return tuple(getattr(_open_builder(data).info.features[data.labelled.label_column], "names", None) or ())


def hash_content(data: config.Data, file_fields: Mapping[str, str]) -> bytes:
    """Digest of the data set's name with its version, the names of its classes, its splits and their files."""
    builder = _open_builder(data)
    splits = _resolve_splits(builder, data, file_fields)
    description = json.dumps([builder.info.full_name, list_classes(data), splits]).encode()
    digests = (tfds.compute_split_digest(builder, subsplit) for subsplit in splits.values())
    return hashlib.sha256(description + b"".join(digests)).digest()


def _resolve_splits(builder, data, file_fields):
    splits = {split: subsplit for split, field in file_fields.items() if (subsplit := getattr(data.labelled, field))}
    for split, subsplit in splits.items():
        field, known = f"{FIELD}.{file_fields[split]}", list(builder.info.splits)
        errors.require_one_of(field, subsplit.partition("[")[0], known)
        try:
            builder.info.splits[subsplit]
        except Exception as error:  # whatever TFDS raises for a slice that is none
            raise errors.ConfigError(
                f"{field} = {subsplit!r}: expected one of {', '.join(known)}, or a slice of it such "
                f"as {known[0]}[:90%] ({errors.first_line(error)})"
            ) from None
    return splits


def _open_builder(data):
    builder = tfds.open_builder("config.data.task_path", data.task_path, data.tfds_dir)
    labelled = data.labelled
    for name in ("text_column", "text_pair_column", "label_column", "id_column"):
        if getattr(labelled, name):
            errors.require_one_of(f"{FIELD}.{name}", getattr(labelled, name), list(builder.info.features))
    for name in examples.list_choice_columns(labelled):
        errors.require_one_of(f"{FIELD}.choice_columns", name, list(builder.info.features))
    return builder


def _read(builder, split: str, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    source, columns = f"{builder.info.full_name}, split {split}", examples.list_columns(labelled)
    features = builder.info.features
    for index, record in enumerate(builder.as_data_source(split=split)):
        where = f"{source}, record {index}"
        values = {name: _format_value(features[name], record[name], f"{where}: {name}") for name in columns}
        values |= {name: str(values[name]) for name in (labelled.label_column, labelled.id_column) if name}
        yield examples.make_example(labelled, values, parse_label, where, index)


def _format_value(feature, value: Any, where: str) -> Any:
    """A record's value as a table would have it."""
    is_plain = isinstance(value, bytes | str | int | float | np.generic)
    errors.require(is_plain, where, type(value).__name__, "a text, a class or a number")
    if names := getattr(feature, "names", None):
        expected = "a label; where it is hidden, another split, or none, in config.data.labelled"
        errors.require(value >= 0, where, int(value), expected)
        return names[value]
    return text_files.decode_utf8(value, where) if isinstance(value, bytes) else value
