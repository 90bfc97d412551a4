"""Tables of texts with a label: columns separated by tabs or commas, with a header or without."""

import csv
from collections.abc import Iterator
from pathlib import Path

from mlm.base import config, errors
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, Label

DELIMITERS = {"tsv": "\t", "csv": ","}


def read(path: Path, asks: config.Labelled, label: Label) -> Iterator[Example]:
    """The examples of a file. Blank lines are left out. Raises ConfigError for a row that is not as `asks` says.

    With a header, every row has as many columns as it; without, as many as are asked for, or more.
    """
    delimiter = DELIMITERS[asks.format]
    rows = (
        _quoted(path, delimiter)
        if asks.quoting == "on"
        else ((line, text.split(delimiter)) for line, text in examples.lines(path) if text.strip(" "))
    )
    wanted, header = examples.columns(asks), None
    if not asks.text_column.isdecimal():
        line, header = next(rows, (1, []))
        for name in wanted:
            examples.column(name, header, f"{path}, line {line}")
        place = {name: header.index(name) for name in wanted}
    else:
        place = {name: int(name) for name in wanted}
    for count, (line, row) in enumerate(rows):
        where = f"{path}, line {line}"
        if header:
            errors.require(len(row) == len(header), f"{where}: columns", len(row), f"{len(header)}, as the header has")
        errors.require(
            len(row) > max(place.values()),
            f"{where}: columns",
            len(row),
            f"at least {max(place.values()) + 1}, separated by {'tabs' if delimiter == chr(9) else 'commas'}",
        )
        found = {name: row[at] for name, at in place.items()}
        if not header and not count:
            examples.no_heading(found[asks.label_column], f"{where}: label")
        yield examples.of_row(asks, found, label, where, count)


def _quoted(path, delimiter) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of the line that they begin at; quoted fields may hold delimiters and line ends."""
    reader = csv.reader((f"{text}\n" for _, text in examples.lines(path)), delimiter=delimiter, strict=True)
    first = 1
    try:
        for row in reader:
            if row:
                yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        raise errors.ConfigError(
            f'{path}, line {first}: {error}; expected fields quoted as "...", a quote in them '
            "doubled (or config.data.labelled.quoting = off)"
        ) from None
