"""A task from one table: holds out a share of its rows, infers what the labels are, and writes a task file."""

import collections
import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import errors, files
from mlm.data.tasks import examples, splits
from mlm.data.text import records, remote_files

MAX_WHOLE_CLASSES = 20  # whole numbers of more values than these are predicted as numbers
WHOLE_NUMBER = re.compile(r"\.0+\Z")  # how a table of floats ends one: 1 and 1.0 are one class
MARK = re.compile(r"[BI]-.")  # a tag of a scheme that marks stretches of words


class LabelledRow(NamedTuple):
    """A row that has texts and a label, "" where they need none; those of words have white space in between."""

    texts: tuple[str, ...]
    label: str


class TableTask(NamedTuple):
    """A task that was written: its file, and in a sentence what was inferred and held out."""

    path: Path
    description: str


def write_task(
    path: str, folder: Path | str, columns: Mapping[str, str], share: float, seed: int, objective: str = ""
) -> TableTask:
    """Writes a task file, its training and its held-out examples into a folder of its own below `folder`.

    Which rows are held out follows from their texts and the seed alone, so that no text is on both sides.

    Args:
        path: a file of records (mlm/data/text/records.py), which may be remote.
        columns: the names of the columns "text", and "text_pair", "negative" and "label"; "": there is none.
        share: of the texts to hold out.
        objective: of texts without labels; empty: the one that fits the labels.

    Raises:
        ConfigError: no such file or column, no labels to learn, or too few rows.
    """
    path = remote_files.fetch_file("finetune", path, "a table of texts and labels")
    rows, names, without = _read_rows(path, columns)
    labels, found = list[str](), f"texts that belong together: {', '.join(names)}"
    if not objective:
        if not any(math.isnan(examples.convert_number(row.label)) for row in rows):
            rows = [row._replace(label=WHOLE_NUMBER.sub("", row.label)) for row in rows]
        objective, labels, found = infer_objective(path, rows)
    sides = _split_rows(rows, share, seed, by_label=objective == "classification")
    expected = f"rows to train on and to hold out; of {len(rows)} texts ({found.partition(':')[0]}) "
    expected += f"--held_out={share:g} leaves one side empty"
    errors.require(all(sides.values()), "finetune", path, expected)
    settings: dict[str, Any] = {"objective": objective}
    if 0 < len(labels) <= splits.MAX_LABELS and not any("," in label for label in labels):
        settings["labels"] = labels  # a trained model then needs the files no more
    if objective == "tagging":
        settings |= {"format": "conll", "text_column": 0, "label_column": 1}
        settings |= {"scheme": "bio"} if _marks_stretches(rows) else {}
        pair_words = lambda row: zip(row.texts[0].split(), row.label.split(), strict=True)
        format_row = lambda row: "".join(f"{word}\t{tag}\n" for word, tag in pair_words(row))
        content = {side: "\n".join(map(format_row, part)) for side, part in sides.items()}
    else:
        keys, fields = [*names], ["text_column", "text_pair_column", "negative_column"][: len(names)]
        if columns["label"]:
            keys, fields = [*keys, columns["label"]], [*fields, "label_column"]
        settings |= {"format": "jsonl"} | dict(zip(fields, keys, strict=True))
        format_row = lambda row: json.dumps(dict(zip(keys, [*row.texts, row.label], strict=False)), ensure_ascii=False)
        content = {side: "".join(f"{format_row(row)}\n" for row in part) for side, part in sides.items()}
    settings |= {"train": f"train.{settings['format']}", "dev": f"dev.{settings['format']}"}
    digest = hashlib.sha256("\0".join([*content.values(), json.dumps(settings)]).encode()).hexdigest()
    stem = records.COMPRESSED_ENDING.sub("", Path(path).name).rpartition(".")[0]
    name = re.sub(r"[^\w.-]", "_", stem).strip(".-") or "table"
    task = files.make_path(folder, f"task-{digest[:16]}", f"{name}.toml")
    task.parent.mkdir(parents=True, exist_ok=True)
    for side, key in ((False, "train"), (True, "dev")):
        files.write_text(task.parent / settings[key], content[side])
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in settings.items())
    files.write_text(task, "".join(lines))
    left_out = f"; {without:,} rows without text or label left out" if without else ""
    return TableTask(task, f"{found}; {len(sides[False]):,} rows to train on, {len(sides[True]):,} held out{left_out}")


def infer_objective(path: str, rows: Sequence[LabelledRow]) -> tuple[str, list[str], str]:
    """(The objective that fits the labels, the classes or tags, both in words).

    As many labels in a cell as words are tags; few whole numbers are classes. Raises ConfigError for a single label.
    """
    counts = collections.Counter(row.label for row in rows)
    errors.require(len(counts) > 1, f"{path}: labels", sorted(counts), "two different labels or more")
    cells = [(row.texts[0].split(), row.label.split()) for row in rows if len(row.texts) == 1]
    fits = len(cells) == len(rows) and all(len(words) == len(labels) for words, labels in cells)
    if fits and len({len(words) for words, _ in cells}) > 1:
        tags = sorted({label for _, labels in cells for label in labels})
        return "tagging", tags, f"a tag for each word: {examples.format_names(tags)}"
    numbers = list(map(examples.convert_number, counts))
    are_few = len(counts) <= MAX_WHOLE_CLASSES and all(number.is_integer() for number in numbers)
    if not are_few and not any(map(math.isnan, numbers)):
        return "regression", [], f"numbers from {min(numbers):g} to {max(numbers):g}"
    return "classification", sorted(counts), f"{len(counts)} classes: {examples.format_names(sorted(counts))}"


def _read_rows(path: str, columns: Mapping[str, str]) -> tuple[list[LabelledRow], list[str], int]:
    """The rows that have texts and a label, if that has a column, the texts' columns, and how many rows have not."""
    kind = records.detect_kind(path)
    expected = "a table with the names of its columns: csv, tsv, JSON lines, Parquet or Arrow"
    errors.require(kind != records.TEXT, "finetune", path, expected)
    names: list[str] = []

    def select(column_types):
        if columns["label"]:
            header = ", whose first line names the columns" if kind in records.DELIMITERS else ""
            examples.require_columns([columns["label"]], column_types, f"--label: {path}{header}")
        others = {name: kind for name, kind in column_types.items() if name != columns["label"]}
        wanted = {"text": columns["text"] or records.DEFAULT_COLUMN}
        wanted |= {flag: columns[flag] for flag in ("text_pair", "negative") if columns[flag]}
        names.extend(records.choose_column(f"--{flag}", path, name, others) for flag, name in wanted.items())
        return [*names, *filter(None, [columns["label"]])]

    rows, without = [], 0
    for where, record in records.read_records(path, kind, select):
        texts, name = tuple(records.parse_text(record.get(name), where) for name in names), columns["label"]
        row = LabelledRow(texts, _format_label(record.get(name), f"{where}: {name}") if name else "")
        if all(row.texts) and bool(row.label) == bool(name):
            rows.append(row)
        else:
            without += 1
    return rows, names, without


def _format_label(label: Any, where: str) -> str:
    """A label as text, "" where it is none; tags of words have spaces in between."""
    if isinstance(label, list):
        label = " ".join(map(str, label))
    errors.require(not isinstance(label, dict | bytes), where, label, "a text, a number or a list of tags")
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    text = examples.normalize_label(records.parse_text(label, where))
    return "" if text.lower() == "nan" else text


def _split_rows(rows: Sequence[LabelledRow], share: float, seed: int, by_label: bool) -> dict[bool, list[LabelledRow]]:
    """The rows to train on (False) and to hold out (True); by_label: what is held out has labels of the others."""
    names = {row.texts: "\0".join([str(seed), *row.texts]).encode("utf-8", "surrogatepass") for row in rows}
    digests = {texts: hashlib.blake2b(name, digest_size=8).digest() for texts, name in names.items()}
    held_out = {texts for texts, digest in digests.items() if int.from_bytes(digest) < share * 2**64}
    if by_label:
        known = {row.label for row in rows if row.texts not in held_out}
        held_out -= {row.texts for row in rows if row.label not in known}
    return {side: [row for row in rows if (row.texts in held_out) == side] for side in (False, True)}


def _marks_stretches(rows: Sequence[LabelledRow]) -> bool:
    """Whether tags are BIO: B-X begins a stretch of X, I-X continues one."""
    pairs = [pair for row in rows for pair in itertools.pairwise(["O", *row.label.split()])]
    are_marks = all(tag == "O" or MARK.match(tag) for _, tag in pairs)
    follow = all(before[2:] == tag[2:] for before, tag in pairs if tag.startswith("I-"))
    return are_marks and follow and any(tag != "O" for _, tag in pairs)
