"""The splits of a task as examples: finds its files, lists its labels, checks each label against them."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from mlm.base import config, errors, text_files
from mlm.base.fields import RNG_VERSIONS
from mlm.base.labelled_objectives import LabelKind, has_classes, has_kind
from mlm.data.language import grammar
from mlm.data.language import tasks as language
from mlm.data.tasks import examples, tasks
from mlm.data.tasks.examples import Example
from mlm.data.tasks.readers import READERS
from mlm.data.text import files

MAX_LABELS = 10_000  # labels of a task
UNUSED_FIELDS = ("train_documents", "validation_documents", "words")  # of the built-in language, which no task reads
LATER_FIELDS = ("choice_columns", "negative_column")  # tasks without them keep the digest from before
LOCATION_FIELDS = (*examples.FILE_FIELDS.values(), "scores")  # fields that change no example by themselves


def open_task(cfg: config.Config) -> dict[str, Callable[[], Iterator[Example]]]:
    """The examples of config.data.task: of train, validation, and test where there is one.

    Functions, so that each pass starts anew; it raises ConfigError for the first fault, by file and line.
    """
    if cfg.data.task in tasks.LANGUAGE_TASKS:
        task = language.TASKS[cfg.data.task]
        return {
            split: functools.partial(task.generate_examples, cfg.data.language, name)
            for split, name in examples.FILE_FIELDS.items()
        }
    kept = tasks.list_labels(cfg.data.labelled) if has_kind(cfg.objective, LabelKind.NONE) else ()

    def read(path, reader):
        return _require_nonempty(path, reader, _make_label_parser(cfg, list_classes(cfg)), kept)

    return {split: functools.partial(read, *found) for split, found in _list_readers(cfg.data).items()}


def hash_content(data: config.Data) -> str:
    """SHA-256 (hexadecimal) of the files, or of a TFDS data set's name and files, and of the reader's options.

    The folder's place does not enter.
    """
    if data.task in tasks.LANGUAGE_TASKS:
        fields = {one.name: getattr(data.language, one.name) for one in dataclasses.fields(data.language) if one.repr}
        fields |= grammar.list_ingredients(data.language)
        fields = {name: one for name, one in fields.items() if name not in UNUSED_FIELDS}
        parts = [data.task, language.FORMAT, RNG_VERSIONS["language"], fields]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    left_out = {*LOCATION_FIELDS, *(name for name in LATER_FIELDS if not getattr(data.labelled, name))}
    options = {name: value for name, value in dataclasses.asdict(data.labelled).items() if name not in left_out}
    if data.labelled.format == "tfds":
        from mlm.data.text import tfds  # an extra

        digests = [tfds.hash_content(data)]
    else:
        digests = [files.file_digest(str(path)) for path in find_files(data).values()]
    parts = [json.dumps(options, sort_keys=True).encode(), *digests]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def find_files(data: config.Data) -> dict[str, Path]:
    """The file of each split. Raises ConfigError for one that is not there, with the nearest name that is."""
    found = examples.find_split_files("task_path", data.task_path, "labelled", data.labelled)
    return {split: path for split, (path,) in found.items()}


def list_classes(cfg: config.Config) -> tuple[str, ...]:
    """The names of a task's labels in their order: as the config gives them, else those of the train split, sorted.

    Of tags of a scheme both the beginning and the inside of every kind that the train split has, beside O.
    """
    if not has_classes(cfg.objective):
        return ()
    if cfg.data.task in tasks.LANGUAGE_TASKS:
        return language.TASKS[cfg.data.task].list_labels(cfg.data.language)
    labelled = cfg.data.labelled
    if explicit := tasks.list_labels(labelled):
        return explicit
    if labelled.format == "tfds":
        from mlm.data.text import tfds  # an extra

        if names := tfds.list_classes(cfg.data):
            return tuple(map(examples.normalize_label, names))
    path, read = _list_readers(cfg.data)["train"]
    labels: set[str] = set()
    for example in _require_nonempty(path, read, _make_label_parser(cfg, ())):
        labels.update([example.label] if isinstance(example.label, str) else example.label)
        where = f"config.data.labelled.label_column = {labelled.label_column!r}: labels of {path}"
        errors.require(len(labels) <= MAX_LABELS, where, len(labels), f"at most {MAX_LABELS}")
    labels.discard("")  # a word without a label
    if labelled.scheme:
        labels = {"O", *(f"{first}-{label[2:]}" for label in labels - {"O"} for first in "BI")}
    errors.require(len(labels) > 1, f"{path}: labels", sorted(labels), "two different labels or more")
    return tuple(sorted(labels))


def _make_label_parser(cfg, classes):
    if has_kind(cfg.objective, LabelKind.NUMBER):
        return examples.parse_number
    if has_kind(cfg.objective, LabelKind.NONE):
        return lambda value, where: examples.normalize_label(value)
    is_choice = has_kind(cfg.objective, LabelKind.CHOICE)
    origin = "config.data.labelled.choice_columns, by number" if is_choice else "the train split"
    origin = "config.data.labelled.labels" if cfg.data.labelled.labels else origin

    def parse_label(value, where):
        text_files.require_encodable(value, where)
        value = examples.normalize_label(value)
        errors.require(bool(value), where, value, "a label")
        if classes and value not in classes:
            hint = errors.format_hint(value, classes)
            errors.require(False, where, value, f"a label of {origin}: {examples.format_names(classes)}{hint}")
        return value

    return parse_label


def _list_readers(data):
    """For each split, its name in messages and its reader, a function of a label parser."""
    labelled = data.labelled
    if labelled.format == "tfds":
        from mlm.data.text import tfds  # an extra

        return tfds.list_readers(data)
    return {
        split: (path, functools.partial(READERS[labelled.format], path, labelled))
        for split, path in find_files(data).items()
    }


def _require_nonempty(path, read, parse_label, kept=()):
    """The examples of a file; kept: the labels of those that are examples; (): all are."""
    example = None
    for one in read(parse_label):
        if not kept or one.label in kept:
            example = one
            yield example
    expected = "an example; the file has none" + f" with the label {' or '.join(kept)}" * bool(kept)
    errors.require(example is not None, f"{path}, line 1", "", expected)
