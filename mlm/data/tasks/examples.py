"""Examples with labels: an error names file and line."""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlm.base import config, errors, text_files
from mlm.data.text import remote_files

# Field of config.data.labelled and parallel by split.
FILE_FIELDS = {"train": "train", "validation": "dev", "test": "test"}
MAX_NUMBER = float(np.finfo(np.float32).max)
LabelParser = Callable[[str, str], Any]  # (what stands in the file, where) -> the label; raises ConfigError
# What the column of labels is called in headers: in the first line of a file that has none, it is no label.
HEADINGS = {"label", "labels", "gold_label", "class", "category", "target", "score", "similarity", "quality", "tag"}


class Example(NamedTuple):
    """A labelled example.

    label: a class's name; a number; the tags of the words, "" for a word without one; or (text, start) of each answer,
    start in characters of the second text, () where there is none; None where texts alone belong together.
    """

    id: str
    texts: tuple[str, ...] = ()  # one, or more; a question and its passage; a context and its endings
    words: tuple[str, ...] = ()  # where the file has a token a line
    label: Any = None
    heads: tuple[int, ...] = ()  # of each word the number, from 1, of that which its label relates it to; 0: of none


def find_split_files(
    path_field: str, path: str, section: str, names: Any, endings: Sequence[str] = ("",)
) -> dict[str, list[Path]]:
    """The files of each split in a folder: what FILE_FIELDS of a section of config.data name, with each of the endings.

    path_field: of the folder, which may be remote. Raises ConfigError, with the nearest name, where a file is missing.
    """
    folder, found = remote_files.fetch_folder(f"config.data.{path_field}", path), dict[str, list[Path]]()
    errors.require(folder.is_dir(), f"config.data.{path_field}", path, "the folder of its files")
    for split, field in FILE_FIELDS.items():
        stem = getattr(names, field)
        for name in (stem + ending for ending in endings if stem):
            hint = errors.format_hint(name, sorted(other.name for other in folder.iterdir()))
            is_file, expected = (folder / name).is_file(), f"a file in {folder}, not {name}{hint}"
            errors.require(is_file, f"config.data.{section}.{field}", stem, expected)
            found.setdefault(split, []).append(folder / name)
    return found


def list_columns(labelled: config.Labelled) -> list[str]:
    """The columns of a table that `labelled` names."""
    return [*filter(None, (*_list_text_columns(labelled), labelled.label_column, labelled.id_column))]


def _list_text_columns(labelled):
    texts = labelled.text_column, labelled.text_pair_column, labelled.negative_column
    return [*filter(None, (*texts, *text_files.split_names(labelled.choice_columns)))]


def make_example(
    labelled: config.Labelled, values: Mapping[str, Any], parse_label: LabelParser, where: str, index: int
) -> Example:
    """Makes an example of a table's row, given as values by column name; index: its number, from 0."""
    texts = [require_text(values[one], f"{where}: {one}") for one in _list_text_columns(labelled)]
    if labelled.choice_columns:
        prefix = [texts.pop(1)] if labelled.text_pair_column else []
        texts[1:] = (" ".join((*prefix, one)) for one in texts[1:])
    name = labelled.id_column
    example_id = require_text(str(values[name]), f"{where}: {name}") if name else str(index)
    label = parse_label(values[labelled.label_column], f"{where}: label") if labelled.label_column else None
    return Example(example_id, tuple(texts), label=label)


def require_text(value: Any, where: str) -> str:
    """A text that is one, without the white space around it."""
    errors.require(isinstance(value, str) and bool(value.strip()), where, value, "a text that is not blank")
    text_files.require_encodable(value, where)
    return value.strip()


def normalize_label(label: str) -> str:
    """A label without white space around it, in the one form (NFC) that its characters are compared in."""
    return unicodedata.normalize("NFC", label.strip())


def convert_number(value: Any) -> float:
    """A finite number that float32 holds; NaN for what is none."""
    try:
        number = float(value) if "_" not in str(value) else math.nan
    except (ValueError, TypeError, OverflowError):
        return math.nan
    return number if abs(number) <= MAX_NUMBER else math.nan


def parse_number(value: Any, where: str) -> float:
    """The number of `convert_number`; raises ConfigError where there is none."""
    number = convert_number(value)
    errors.require(not math.isnan(number), where, value, "a finite number")
    return number


def require_columns(wanted: Iterable[str], known: Iterable[str], where: str, noun: str = "column") -> list[str]:
    """The wanted names; raises ConfigError, with the nearest right one, unless one column, or `noun`, has each."""
    wanted, names = list(wanted), list(known)
    for name in wanted:
        if name not in names:
            expected = f"{format_names(names)}{errors.format_hint(name, names)}"
            raise errors.ConfigError(f"{where}: no {noun} {errors.format_value(name)}, expected one of {expected}")
        errors.require(names.count(name) == 1, f"{where}: {noun}", name, f"a name that one {noun} alone has")
    return wanted


def require_keys(wanted: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raises ConfigError, with the nearest right key, for a wanted one that is not known."""
    require_columns(wanted, known, where, "key")


def require_name(name: Any, where: str) -> None:
    """Raises ConfigError for what cannot name a task or a source: results and columns are called by it."""
    is_name = isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name) is not None
    errors.require(is_name, where, name, "letters, digits, '.', '_' and '-', no other")


def format_names(names: Sequence[str]) -> str:
    """Names in one line, the first of them where they are many."""
    return ", ".join(" ".join(name.split())[:40] for name in names[:20]) + (", ..." if len(names) > 20 else "")


def require_no_heading(value: str, where: str) -> None:
    """Raises ConfigError where the label of the first line is what headers call its column."""
    expected = "a label; where the first line is a header, columns are named as it names them, not by numbers"
    errors.require(value.strip().lower() not in HEADINGS, where, value, expected)
