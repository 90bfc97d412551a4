"""Examples with labels, and the lines of their files: an error names file and line."""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlm.base import config, errors

MAX_LINE_BYTES = 2**20  # bytes of a line, at most
MAX_NUMBER = float(np.finfo(np.float32).max)
LabelParser = Callable[[str, str], Any]  # (what stands in the file, where) -> the label; raises ConfigError
# What the column of labels is called in headers: in the first line of a file that has none, it is no label.
HEADINGS = {"label", "labels", "gold_label", "class", "category", "target", "score", "similarity", "quality", "tag"}


class Example(NamedTuple):
    """A labelled example.

    label: a class's name; a number; the tags of the words, "" for a word without one; or (text, start) of each answer,
    start in characters of the second text, () where there is none.
    """

    id: str
    texts: tuple[str, ...] = ()  # one, or a pair; a question and its passage; a context and its endings
    words: tuple[str, ...] = ()  # where the file has a token a line
    label: Any = None
    heads: tuple[int, ...] = ()  # of each word the number, from 1, of that which its label relates it to; 0: of none


def list_choice_columns(labelled: config.Labelled) -> tuple[str, ...]:
    """The columns of the endings to choose from; () where there are none."""
    return tuple(one.strip() for one in labelled.choice_columns.split(",")) if labelled.choice_columns else ()


def list_columns(labelled: config.Labelled) -> list[str]:
    """The columns of a table that `labelled` names."""
    return [
        one
        for one in (
            labelled.text_column,
            labelled.text_pair_column,
            *list_choice_columns(labelled),
            labelled.label_column,
            labelled.id_column,
        )
        if one
    ]


def make_example(
    labelled: config.Labelled, values: Mapping[str, Any], parse_label: LabelParser, where: str, index: int
) -> Example:
    """Makes an example of a table's row, given as values by column name; index: its number, from 0."""
    texts = [
        require_text(values[one], f"{where}: {one}")
        for one in (labelled.text_column, labelled.text_pair_column, *list_choice_columns(labelled))
        if one
    ]
    if labelled.choice_columns:
        prefix = [texts.pop(1)] if labelled.text_pair_column else []
        texts[1:] = (" ".join((*prefix, one)) for one in texts[1:])
    example_id = (
        require_text(values[labelled.id_column], f"{where}: {labelled.id_column}") if labelled.id_column else str(index)
    )
    return Example(example_id, tuple(texts), label=parse_label(values[labelled.label_column], f"{where}: label"))


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file, without their ends, numbered from 1.

    Raises ConfigError for a file that cannot be read or is empty, and a line of more than LINE bytes.
    """
    number = 0
    try:
        with open(path, "rb") as file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                where = f"{path}, line {number}"
                errors.require(len(raw) <= MAX_LINE_BYTES, where, raw[:40], f"a line of at most {MAX_LINE_BYTES} bytes")
                yield (
                    number,
                    decode_utf8(raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw, where).rstrip("\r\n"),
                )
    except OSError as error:
        raise errors.ConfigError(f"{path}: expected a file that can be read ({error.strerror})") from None
    errors.require(number > 0, f"{path}, line 1", "", "an example; the file is empty")


def decode_utf8(raw: bytes, where: str) -> str:
    """Raises ConfigError for bytes that are not UTF-8, and for NUL."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise errors.ConfigError(
            f"{where}: byte {error.start + 1} = {raw[error.start : error.start + 1]!r}: expected UTF-8"
        ) from None
    errors.require("\0" not in text, where, text[:40], "text without NUL")
    return text


def require_text(value: Any, where: str) -> str:
    """A text that is one, without the white space around it."""
    errors.require(isinstance(value, str) and bool(value.strip()), where, value, "a text that is not blank")
    try:
        value.encode()
    except UnicodeEncodeError:
        errors.require(False, where, value, "text without halves of surrogate pairs")
    return value.strip()


def parse_number(value: Any, where: str) -> float:
    """A finite number that float32 holds."""
    try:
        parsed = float(value) if "_" not in str(value) else math.nan
    except (ValueError, TypeError, OverflowError):
        parsed = math.nan
    errors.require(abs(parsed) <= MAX_NUMBER, where, value, "a finite number")
    return parsed


def require_column(name: str, names: Sequence[str], where: str, noun: str = "column") -> None:
    """Raises ConfigError, with the nearest right name, unless there is one such column, or `noun`."""
    if name not in names:
        nearest = difflib.get_close_matches(name, [one[:100] for one in names], n=1, cutoff=0.5)
        raise errors.ConfigError(
            f"{where}: no {noun} {errors.format_value(name)}, expected one of {format_names(names)}"
            + (f"; did you mean {nearest[0]!r}?" if nearest else "")
        )
    errors.require(names.count(name) == 1, f"{where}: {noun}", name, f"a name that one {noun} alone has")


def format_names(names: Sequence[str]) -> str:
    """Names in one line, the first of them where they are many."""
    return ", ".join(" ".join(name.split())[:40] for name in names[:20]) + (", ..." if len(names) > 20 else "")


def require_no_heading(value: str, where: str) -> None:
    """Raises ConfigError where the label of the first line is what headers call its column."""
    errors.require(
        value.strip().lower() not in HEADINGS,
        where,
        value,
        "a label; where the first line is a header, columns are named as it names them, not by numbers",
    )
