"""Aligned text: pairs of a text and its translation, in two files line by line or in one with a tab between them, or
drawn, where no folder of files is named.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import config, errors, text_files, warnings_
from mlm.data.language import translation
from mlm.data.tasks import examples
from mlm.data.text import files

SPLIT_FIELDS = {"train": "train", "validation": "dev", "test": "test"}  # field of config.data.parallel by split


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
    fields, name = data.parallel, "config.data.parallel"
    for field in ("train", "dev"):
        errors.require(bool(getattr(fields, field).strip()), f"{name}.{field}", getattr(fields, field), "a file's name")
    errors.require(
        bool(fields.source) == bool(fields.target),
        f"{name}.target",
        fields.target,
        "the ending of the files beside those of the sources, or neither ending",
    )
    errors.require(
        not fields.source or fields.source != fields.target,
        f"{name}.target",
        fields.target,
        "another ending than the sources'",
    )


def open_pairs(data: config.Data) -> PairSource:
    """The pairs of config.data.parallel_path. Each pass raises ConfigError for the first fault, by file and line."""
    if is_generated(data):
        return _generate_pairs(data.language)
    there = find_paths(data)

    def of(split):
        return lambda: read_pairs(there[split])

    def content():
        return hashlib.sha256(
            b"".join(files.file_digest(str(path)) for found in there.values() for path in found)
        ).digest()

    return PairSource({split: of(split) for split in there}, content)


def is_generated(data: config.Data) -> bool:
    """Whether the pairs are the built-in language's and their translations, whose least loss is known."""
    return data.corpus == "parallel" and not data.parallel_path


def _generate_pairs(language):
    def of(start, count):
        return lambda: itertools.starmap(Pair, itertools.islice(translation.generate_pairs(language, start), count))

    def content():  # the fields, and pairs: they show a change of the languages or of their sampling
        return hashlib.sha256(repr((language, translation.list_words(language), list(of(0, 256)()))).encode()).digest()

    return PairSource(
        {
            "train": of(0, language.train_documents),
            "validation": of(translation.HELD_OUT, language.validation_documents),
        },
        content,
    )


def read_both_sides(data: config.Data, split: str) -> Iterator[str]:
    """Both sides of each pair of a split, one after the other."""
    return itertools.chain.from_iterable(open_pairs(data).splits[split]())


def warn_of_duplicates(found: PairSource) -> None:
    """Warns of held-out pairs that stand in the train split too. They stay: a published split is judged as it is."""
    held = {pair: split for split, read in found.splits.items() if split != "train" for pair in read()}
    count = {split: 0 for split in found.splits}
    for pair in found.splits["train"]():
        if split := held.pop(pair, ""):
            count[split] += 1
    for split, twice in count.items():
        if twice:
            warnings_.warn_once(f"{split}: pairs that also stand in the train split: {twice}")


def find_paths(data: config.Data) -> dict[str, list[Path]]:
    """The file or both files of each split. Raises ConfigError for one that is not there, with the nearest name."""
    folder, fields = Path(os.path.expanduser(data.parallel_path)), data.parallel
    errors.require(folder.is_dir(), "config.data.parallel_path", data.parallel_path, "the folder of the pairs' files")
    found = {}
    for split, field in SPLIT_FIELDS.items():
        if name := getattr(fields, field):
            names = [f"{name}.{ending}" for ending in (fields.source, fields.target)] if fields.source else [name]
            for one in names:
                hint = errors.format_hint(one, sorted(path.name for path in folder.iterdir()))
                errors.require(
                    (folder / one).is_file(),
                    f"config.data.parallel.{field}",
                    name,
                    f"a name of which {one} is a file in {folder}{hint}",
                )
            found[split] = [folder / one for one in names]
    return found


def read_pairs(paths: Sequence[Path]) -> Iterator[Pair]:
    """The pairs of two files, or of one of two columns. Raises ConfigError for the first fault, by file and line."""
    for path in paths:
        text_files.check_plain_text("pairs", str(path), accepted=("tsv",))
    return _read_table(*paths) if len(paths) == 1 else _read_two_files(*paths)


def _read_two_files(source, target):
    last = 0
    for first, second in itertools.zip_longest(text_files.read_lines(source), text_files.read_lines(target)):
        if first is None or second is None:
            longer, shorter = (target, source) if first is None else (source, target)
            raise errors.ConfigError(
                f"{longer}, line {last + 1}: expected none, since {shorter} has {last} lines: a "
                "line of one is the translation of that line of the other"
            )
        last = first[0]
        yield Pair(
            *(
                examples.require_text(text, f"{path}, line {last}")
                for path, (_, text) in ((source, first), (target, second))
            )
        )


def _read_table(path):
    for number, line in text_files.read_lines(path):
        parts = line.split("\t")
        errors.require(
            len(parts) == 2,
            f"{path}, line {number}: columns",
            len(parts),
            "2, a source and its "
            "translation with a tab between them (two files: set config.data.parallel.source and target)",
        )
        yield Pair(
            *(
                examples.require_text(text, f"{path}, line {number}: {side}")
                for side, text in zip(Pair._fields, parts, strict=True)
            )
        )
