"""The splits of a task as examples: its files found, its labels known, each label checked against them."""

import dataclasses
import difflib
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from mlm.base import config, errors
from mlm.data.tasks import conll, conllu, examples, generated, jsonl, squad, tasks, tsv
from mlm.data.tasks.examples import Example
from mlm.data.text import files

READERS = {
    "tsv": tsv.read,
    "csv": tsv.read,
    "jsonl": jsonl.read,
    "conll": conll.read,
    "conllu": conllu.read,
    "squad": squad.read,
}
FILES = {"train": "train", "validation": "dev", "test": "test"}  # field of config.data.labelled by split
MOST = 10_000  # labels of a task
WHERE = (*FILES.values(), "scores")  # fields that change no example by themselves


class Source(NamedTuple):
    """Where labelled rows come from: functions, so that each pass starts anew."""

    splits: dict[str, Callable[[], Iterator[Example]]]  # train, validation, and test where there is one; never empty
    classes: Callable[[], tuple[str, ...]]  # names of the labels in their order; () for numbers and spans
    content: Callable[[], str]  # digest of all that the examples follow from


def source(cfg: config.Config) -> Source:
    """The examples of config.data.task. Each pass raises ConfigError for the first fault, by file and line."""
    if cfg.data.task in tasks.DRAWN:
        return Source(generated.examples(cfg), lambda: generated.classes(cfg), lambda: generated.content(cfg.data))
    there = _reads(cfg.data)

    def of(split):
        return lambda: _some(*there[split], _label(cfg, classes(cfg)))

    return Source({split: of(split) for split in there}, lambda: classes(cfg), lambda: content(cfg.data))


def content(data: config.Data) -> str:
    """SHA-256 (hexadecimal) of the files and of how they are read; where they lie does not enter, but what a data set
    of TFDS is called.
    """
    if data.task in tasks.DRAWN:
        return generated.content(data)
    how = {name: value for name, value in dataclasses.asdict(data.labelled).items() if name not in WHERE}
    if not how["choice_columns"]:
        del how["choice_columns"]  # a later field: what was read before there were any keeps its digest
    if data.labelled.format == "tfds":
        from mlm.data.tasks import tfds  # an extra

        found = [tfds.content(data, FILES)]
    else:
        found = [files.file_digest(str(path)) for path in paths(data).values()]
    parts = [json.dumps(how, sort_keys=True).encode(), *found]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def has_test(data: config.Data) -> bool:
    """Whether a task has a test split."""
    return data.task in tasks.DRAWN or bool(data.labelled.test)


def paths(data: config.Data) -> dict[str, Path]:
    """The file of each split. Raises ConfigError for one that is not there, with the nearest name that is."""
    folder = Path(data.task_path).expanduser()
    errors.require(folder.is_dir(), "config.data.task_path", data.task_path, "the folder of the task's files")
    found = {}
    for split, field in FILES.items():
        name = getattr(data.labelled, field)
        if name:
            path = folder / name
            near = [] if path.is_file() else difflib.get_close_matches(name, [p.name for p in folder.iterdir()], n=1)
            errors.require(
                path.is_file(),
                f"config.data.labelled.{field}",
                name,
                f"a file in {folder}" + (f"; did you mean {near[0]!r}?" if near else ""),
            )
            found[split] = path
    return found


def classes(cfg: config.Config) -> tuple[str, ...]:
    """The names of a task's labels in their order: as the config gives them, else those of the train split, sorted.

    Of tags of a scheme both the beginning and the inside of every kind that the train split has, beside O.
    """
    if cfg.objective not in tasks.LABELS:
        return ()
    if cfg.data.task in tasks.DRAWN:
        return generated.classes(cfg)
    said = cfg.data.labelled
    if given := tasks.labels(said):
        return given
    if said.format == "tfds":
        from mlm.data.tasks import tfds  # an extra

        if named := tfds.classes(cfg.data):
            return named
    path, read = _reads(cfg.data)["train"]
    found: set[str] = set()
    for one in _some(path, read, _label(cfg, ())):
        found.update([one.label] if isinstance(one.label, str) else one.label)
        errors.require(
            len(found) <= MOST,
            "config.data.labelled.label_column",
            said.label_column,
            f"a column of at most {MOST} different labels; in {path} it has more",
        )
    found.discard("")  # of words of which none is asked
    if said.scheme:
        found = {"O", *(f"{first}-{label[2:]}" for label in found - {"O"} for first in "BI")}
    errors.require(len(found) > 1, f"{path}: labels", sorted(found), "two different labels or more")
    return tuple(sorted(found))


def _label(cfg, known):
    """What makes a label of what stands in a file."""
    if cfg.objective == "regression":
        return examples.number
    origin = (
        "config.data.labelled.labels"
        if cfg.data.labelled.labels
        else (
            "config.data.labelled.choice_columns, by number"
            if cfg.objective == "multiple_choice"
            else "the train split"
        )
    )

    def label(value, where):
        value = value.strip()
        errors.require(bool(value), where, value, "a label")
        if known and value not in known:
            near = difflib.get_close_matches(value[:100], [one[:100] for one in known], n=1, cutoff=0.5)
            errors.require(
                False,
                where,
                value,
                f"a label of {origin}: {examples.listed(known)}" + (f"; did you mean {near[0]!r}?" if near else ""),
            )
        return value

    return label


def _reads(data):
    """By split what it is called in messages, and what reads it: a function of what makes a label."""
    said = data.labelled
    if said.format == "tfds":
        from mlm.data.tasks import tfds  # an extra

        return tfds.reads(data, FILES)
    return {split: (path, functools.partial(READERS[said.format], path, said)) for split, path in paths(data).items()}


def _some(path, read, label):
    one = None
    for one in read(label):
        yield one
    errors.require(one is not None, f"{path}, line 1", "", "an example; the file has none")
