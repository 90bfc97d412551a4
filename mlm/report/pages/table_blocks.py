"""A table as a page shows it: split into blocks below each other that fit into the window."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from mlm.base.estimates import Estimate
from mlm.report import table
from mlm.report.table import Column

MAX_WIDTH = 144  # characters of a line, in a window of 1280 pixels
LONG_WORD = re.compile(r"(\S{30})(?=\S)")  # the browser may break a word after so many characters


class TableCell(NamedTuple):
    """A cell."""

    text: str
    key: str | None = None  # sorts the column; None: the text does
    kind: str = ""  # CSS classes


class TableBlock(NamedTuple):
    """The heads and rows of some columns of a table; the first cell of a row is its name."""

    heads: list[TableCell]
    rows: list[list[TableCell]]


def split_table(
    heads: Sequence[TableCell], rows: Sequence[Sequence[TableCell]], num_leading: int = 1
) -> list[TableBlock]:
    """The table in blocks of about equal width, each with the leading columns first; none without rows."""
    if not rows:
        return []
    heads, *rows = (
        [cell._replace(text=LONG_WORD.sub("\\1\u200b", cell.text)) for cell in row] for row in (heads, *rows)
    )
    widths = [2 + max(cell_width(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    num_leading = num_leading if 2 * sum(widths[:num_leading]) < MAX_WIDTH else 1
    max_width = MAX_WIDTH - sum(widths[:num_leading])
    target_width = sum(widths[num_leading:]) / max(1, math.ceil(sum(widths[num_leading:]) / max_width))
    parts, part_width = [[]], 0
    for i in range(num_leading, len(heads)):
        if parts[-1] and part_width + widths[i] > min(max_width, target_width + widths[i] / 2):
            parts.append([])
            part_width = 0
        parts[-1].append(i)
        part_width += widths[i]
    return [
        TableBlock([heads[i] for i in columns], [[row[i] for i in columns] for row in rows])
        for columns in [(*range(num_leading), *part) for part in parts]
    ]


def cell_width(cell: TableCell) -> int:
    """The characters of the longest part of a cell that cannot be broken."""
    is_unbreakable = cell.kind == "number" and cell.key is not None
    return len(cell.text) if is_unbreakable else max(map(len, re.split(r"[ \u200b]|(?<=[-/])(?=[^\W\d])", cell.text)))


def build_blocks(rows: Sequence[dict], columns: Sequence[Column]) -> list[TableBlock]:
    """The blocks of a table of numbers, each with the leading columns of text first."""
    num_leading = next((i for i, column in enumerate(columns) if column.format), len(columns))
    return split_table(
        [TableCell(column.title, None, "number" if column.format else "") for column in columns],
        [[number_cell(row.get(column.name), column) for column in columns] for row in rows],
        max(1, num_leading),
    )


def number_cell(value, column: Column) -> TableCell:
    """A cell of a table of numbers: a number, or a text in place of one."""
    key = "" if value is None else str(value.mean if isinstance(value, Estimate) else value)
    kind = ("message" if isinstance(value, str) else "number") if column.format else ""
    return TableCell(table.format_cell(value, column.format), key, kind)
