"""TensorFlow Datasets as documents or labelled examples, without TensorFlow."""

import functools
import hashlib
import json
import operator
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mlm.base import config, errors, extras, text_files
from mlm.base.warnings_ import WarningCounter
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, LabelParser
from mlm.data.text import files

extras.import_extra("tensorflow_datasets", "tfds", "config.data.corpus, or config.data.labelled.format, = 'tfds'")
import tensorflow_datasets as tfds  # noqa: E402
import tensorflow_datasets.text  # noqa: E402  which registers glue, wiki40b and others

RANDOM_ACCESS_FORMATS = ("array_record", "parquet")  # file formats that are read without TensorFlow


def open_corpus_builder(data: config.Data) -> Any:
    """The tfds.core.DatasetBuilder of data.tfds_name. Raises errors.ConfigError for an unknown feature, too."""
    field, name = "config.data.tfds_name", data.tfds_name
    builder = open_builder(field, name, data.tfds_dir)
    errors.require("train" in builder.info.splits, field, name, f"a split train, not only {list(builder.info.splits)}")
    errors.require_one_of("config.data.tfds_field", data.tfds_field, list(builder.info.features))
    return builder


def open_builder(field: str, name: str, folder: str) -> Any:
    """The builder of a data set, its files prepared: downloaded and written as array_record where they are not.

    field: of the config, which has its name; folder: of the prepared data sets, empty for the library's default. Raises
    errors.ConfigError for an unknown name, for a format that needs TensorFlow, and where the preparation fails (some
    data sets need TensorFlow or Apache Beam for it).
    """
    try:
        builder: Any = tfds.builder(name, data_dir=os.path.expanduser(folder) or None)
    except tfds.core.DatasetNotFoundError:
        known = tfds.list_builders(with_community_datasets=False)
        hint = errors.format_hint(name.partition("/")[0], known)
        expected = f"a TensorFlow data set, or one prepared in config.data.tfds_dir = {folder!r}{hint}"
        raise errors.ConfigError(f"{field} = {name!r}: expected {expected}") from None
    except Exception as error:  # a wrong configuration or version of the data set: TFDS has no one type for these
        raise errors.ConfigError(f"{field} = {name!r}: {_format_error(error)}") from None
    if not builder.is_prepared():
        try:
            builder.download_and_prepare(file_format="array_record")
        except Exception as error:  # whatever the data set's own code raises
            raise errors.ConfigError(
                f"{field} = {name!r}: could not be prepared in {builder.data_dir} "
                f"({_format_error(error)}); expected what preparing it needs, or a config.data.tfds_dir "
                "that holds it prepared as array_record"
            ) from None
    form, formats = builder.info.file_format.value, " or ".join(RANDOM_ACCESS_FORMATS)
    errors.require(form in RANDOM_ACCESS_FORMATS, field, name, f"one prepared as {formats}, not as {form}")
    return builder


def _format_error(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def read_documents(builder, split: str, feature: str) -> Iterator[files.Document]:
    """The documents of a split, stripped; empty ones and bytes that are not UTF-8 are counted in a warning."""
    faults = WarningCounter()
    for number, record in enumerate(builder.as_data_source(split=split)):
        raw, place = record[feature], f"{builder.info.full_name}, split {split}, record {number}"
        errors.require(isinstance(raw, bytes | str), "config.data.tfds_field", feature, f"text, not {type(raw)}")
        if isinstance(raw, bytes):
            try:
                raw = raw.decode()
            except UnicodeDecodeError as error:
                kind = "documents with bytes that are not UTF-8, replaced by U+FFFD"
                faults.add(kind, f"{place} at byte {error.start}")
                raw = raw.decode(errors="replace")
        if document := raw.strip():
            yield files.Document(document)
        else:
            faults.add("empty documents", f"{place} at byte 0")
    faults.report()


def compute_split_digest(builder, split: str) -> bytes:
    """Digest of the split's files."""
    return hashlib.sha256(b"".join(files.file_digest(path) for path in builder.info.splits[split].filepaths)).digest()


def list_readers(data: config.Data) -> dict[str, tuple[str, Callable[[LabelParser], Iterator[Example]]]]:
    """By split its name in messages and its reader, for labelled examples: columns are features, a class is its name.

    Raises ConfigError for an unknown data set, feature or split, with the nearest right name, and as `open_builder`.
    """
    builder = _open_labelled_builder(data)
    name = builder.info.full_name
    return {
        split: (f"{name}, split {subsplit}", functools.partial(_read_examples, builder, subsplit, data.labelled))
        for split, subsplit in _resolve_splits(builder, data).items()
    }


def list_classes(data: config.Data) -> tuple[str, ...]:
    """The names of the label's classes in their order; () where the feature is no class."""
    builder, column = _open_labelled_builder(data), data.labelled.label_column
    feature = builder.info.features[column] if column else None
    return tuple(getattr(feature, "names", None) or ())


def hash_content(data: config.Data) -> bytes:
    """Digest of the data set's name with its version, the names of its classes, its splits and their files."""
    builder = _open_labelled_builder(data)
    splits = _resolve_splits(builder, data)
    description = json.dumps([builder.info.full_name, list_classes(data), splits]).encode()
    digests = (compute_split_digest(builder, subsplit) for subsplit in splits.values())
    return hashlib.sha256(description + b"".join(digests)).digest()


def _resolve_splits(builder, data):
    known, splits = list(builder.info.splits), {}
    for split, name in examples.FILE_FIELDS.items():
        if not (subsplit := getattr(data.labelled, name)):
            continue
        field, splits[split] = f"config.data.labelled.{name}", subsplit
        errors.require_one_of(field, subsplit.partition("[")[0], known)
        expected = f"one of {', '.join(known)}, or a slice of it such as {known[0]}[:90%]"
        with errors.explain(f"{field} = {subsplit!r}", expected):
            builder.info.splits[subsplit]
    return splits


def _open_labelled_builder(data):
    builder, labelled = open_builder("config.data.task_path", data.task_path, data.tfds_dir), data.labelled
    names = ("text_column", "text_pair_column", "negative_column", "label_column", "id_column")
    columns = [(name, getattr(labelled, name)) for name in names]
    columns += [("choice_columns", name) for name in text_files.split_names(labelled.choice_columns)]
    for field, name in filter(operator.itemgetter(1), columns):
        errors.require_one_of(f"config.data.labelled.{field}", name, list(builder.info.features))
    return builder


def _read_examples(builder, split: str, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    features, columns, label = builder.info.features, examples.list_columns(labelled), labelled.label_column
    for index, record in enumerate(builder.as_data_source(split=split)):
        where = f"{builder.info.full_name}, split {split}, record {index}"
        values = {name: _format_value(features[name], record[name], f"{where}: {name}") for name in columns}
        values |= {label: str(values[label])} if label else {}
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
