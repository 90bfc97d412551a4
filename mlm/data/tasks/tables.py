"""Tables of texts with a label: columns separated by tabs or commas, with a header or without, and JSON lines."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path

from mlm.base import config, errors, text_files
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, LabelParser
from mlm.data.text.records import DELIMITERS


def read_examples(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The examples of a file. Blank lines are left out. Raises ConfigError for a row that does not fit `labelled`.

    With a header, every row has as many columns as it; without, at least as many as `labelled` names.
    """
    delimiter = DELIMITERS[labelled.format]
    rows = (
        _read_quoted(path, delimiter)
        if labelled.quoting == "on"
        else ((line, text.split(delimiter)) for line, text in text_files.read_lines(path) if text.strip(" "))
    )
    columns, header = examples.list_columns(labelled), None
    if not labelled.text_column.isdecimal():
        line, header = next(rows, (1, []))
        for name in columns:
            examples.require_column(name, header, f"{path}, line {line}")
        column_indices = {name: header.index(name) for name in columns}
    else:
        column_indices = {name: int(name) for name in columns}
    most = max(column_indices.values())
    for index, (line, row) in enumerate(rows):
        where = f"{path}, line {line}"
        if header:
            errors.require(len(row) == len(header), f"{where}: columns", len(row), f"{len(header)}, as the header has")
        expected = f"at least {most + 1}, separated by {'tabs' if delimiter == chr(9) else 'commas'}"
        errors.require(len(row) > most, f"{where}: columns", len(row), expected)
        values = {name: row[at] for name, at in column_indices.items()}
        if not header and not index:
            examples.require_no_heading(values[labelled.label_column], f"{where}: label")
        yield examples.make_example(labelled, values, parse_label, where, index)


def _read_quoted(path, delimiter) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of the line that they begin at; quoted fields may hold delimiters and line ends."""
    csv.field_size_limit(max(csv.field_size_limit(), text_files.MAX_LINE_BYTES))
    reader = csv.reader((f"{text}\n" for _, text in text_files.read_lines(path)), delimiter=delimiter, strict=True)
    first_line = 1
    try:
        for row in reader:
            if row:
                yield first_line, row
            first_line = reader.line_num + 1
    except csv.Error as error:
        expected = 'fields quoted as "...", a quote in them doubled (or config.data.labelled.quoting = off)'
        raise errors.ConfigError(f"{path}, line {first_line}: {error}; expected {expected}") from None


def read_json_lines(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The examples of a file of JSON lines, an object with texts and a label in each; blank lines are left out."""
    for index, (where, values) in enumerate(text_files.read_json_objects(path)):
        for key in examples.list_columns(labelled):
            examples.require_column(key, list(values), where, "key")
        label, name = labelled.label_column, labelled.id_column
        values[label] = _format_label(values[label], f"{where}: {label}")
        values |= {name: str(values[name])} if name else {}
        yield examples.make_example(labelled, values, parse_label, where, index)


def _format_label(value, where):
    """A label as a table would have it, a whole number without a point."""
    is_finite = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    errors.require(is_finite, where, value, "a label: a text or a finite number")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)
