"""Aligned text: pairs in two files line by line, in one with tabs or of rows, or drawn where no folder is named."""

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import config, errors, warnings_
from mlm.data.language import translation
from mlm.data.tasks import examples
from mlm.data.text import files, records, remote_files


class Pair(NamedTuple):
    """A text and its translation."""

    source: str
    target: str


class PairSource(NamedTuple):
    """Where pairs come from: functions, so that each pass starts anew."""

    splits: dict[str, Callable[[], Iterator[Pair]]]  # train, validation, and test where there is one; none is empty
    compute_digest: Callable[[], bytes]  # digest of all that the pairs follow from


def check(data: config.Data) -> None:
    """Raises ConfigError for files that are not named; opens none."""
    if is_generated(data):
        return
    (source, target), name = (data.parallel.source, data.parallel.target), "config.data.parallel"
    for field in ("train", "dev"):
        file = getattr(data.parallel, field)
        errors.require(bool(file.strip()), f"{name}.{field}", file, "a file's name")
    expected = "the ending or column beside that of the sources, or neither"
    errors.require(bool(source) == bool(target), f"{name}.target", target, expected)
    errors.require(not source or source != target, f"{name}.target", target, "another than the sources'")


def open_pairs(data: config.Data) -> PairSource:
    """The pairs of config.data.parallel_path. Each pass raises ConfigError for the first fault, by file and line."""
    if is_generated(data):
        return _generate_pairs(data.language)
    names = [side for side in (data.parallel.source, data.parallel.target) if side]
    folder = remote_files.fetch_folder("config.data.parallel_path", data.parallel_path)
    is_table = (folder / data.parallel.train).is_file()
    columns, endings = (names, [""]) if is_table else ([], [f".{name}" for name in names] or [""])
    there = examples.find_split_files("parallel_path", data.parallel_path, "parallel", data.parallel, endings)

    def content():
        paths = itertools.chain.from_iterable(there.values())
        digests = [files.file_digest(str(path)) for path in paths]
        return hashlib.sha256(b"".join([*digests, "\0".join(columns).encode()])).digest()

    read = {split: functools.partial(read_pairs, paths, columns) for split, paths in there.items()}
    return PairSource(read, content)


def is_generated(data: config.Data) -> bool:
    """Whether the pairs are the built-in language's and their translations, whose least loss is known."""
    return data.corpus == "parallel" and not data.parallel_path


def _generate_pairs(language):
    def sample(start, count):
        return itertools.starmap(Pair, itertools.islice(translation.generate_pairs(language, start), count))

    def content():  # the fields, and pairs: they show a change of the languages or of their sampling
        facts = language, translation.list_words(language), list(sample(0, 256))
        return hashlib.sha256(repr(facts).encode()).digest()

    train = functools.partial(sample, 0, language.train_documents)
    validation = functools.partial(sample, translation.HELD_OUT, language.validation_documents)
    return PairSource({"train": train, "validation": validation}, content)


def warn_of_duplicates(found: PairSource) -> None:
    """Warns of held-out pairs that stand in the train split too. They stay: a published split is judged as it is."""
    held = {pair: split for split, read in found.splits.items() if split != "train" for pair in read()}
    count = Counter(held.pop(pair) for pair in found.splits["train"]() if pair in held)
    for split, twice in count.items():
        warnings_.warn_once(f"{split}: pairs that also stand in the train split: {twice}")


def read_pairs(paths: Sequence[Path], columns: Sequence[str] = ()) -> Iterator[Pair]:
    """The pairs of two files, or of one. Raises ConfigError for the first fault, by file and line or row.

    columns: of the source and the target in a file of rows; (): "source" and "target", and no line of names in a tsv.
    """
    if len(paths) == 2:
        for path in paths:
            records.check_file("pairs", str(path))
        return _read_two_files(*paths)
    path, kind = paths[0], records.detect_kind(str(paths[0]))
    if kind in (records.TEXT, "tsv") and not columns:
        return _read_table(path)
    errors.require(kind != records.TEXT, "pairs", str(path), "a file of rows, which has columns")
    return _read_rows(str(path), kind, columns or Pair._fields)


def _read_rows(path, kind, columns):
    def select(column_types):
        for field, name in zip(Pair._fields, columns, strict=True):
            errors.require_one_of(f"{path}: config.data.parallel.{field}", name, list(column_types))
        return columns

    row = None
    for where, row in records.read_records(path, kind, select):
        yield Pair(*(examples.require_text(row.get(name), f"{where}: {name}") for name in columns))
    errors.require(row is not None, f"{path}, row 1", "", "a pair of texts; the file has none")


def _read_two_files(source, target):
    last = 0
    for first, second in itertools.zip_longest(records.read_lines(source), records.read_lines(target)):
        if first is None or second is None:
            longer, shorter = (target, source) if first is None else (source, target)
            raise errors.ConfigError(
                f"{longer}, line {last + 1}: expected none, since {shorter} has {last} lines: a "
                "line of one is the translation of that line of the other"
            )
        last = first[0]
        sides = ((first[1], source), (second[1], target))
        yield Pair(*(examples.require_text(text, f"{path}, line {last}") for text, path in sides))


def _read_table(path):
    expected = "2, a source and its translation (for two files set config.data.parallel.source and target)"
    for number, line in records.read_lines(path):
        parts, where = line.split("\t"), f"{path}, line {number}"
        errors.require(len(parts) == 2, f"{where}: columns", len(parts), expected)
        sides = zip(parts, Pair._fields, strict=True)
        yield Pair(*(examples.require_text(text, f"{where}: {side}") for text, side in sides))
