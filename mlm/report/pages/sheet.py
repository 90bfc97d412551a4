"""A table as the page shows it: in as many blocks, one below the other, as leave no column outside the window."""
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from mlm.base.estimates import Estimate
from mlm.report import table
from mlm.report.table import Column

WINDOW = 1210         # CSS pixels beside each other, in a window of 1280
CHARACTER = 7.8       # of them a character takes, in a font that is rather wide,
HEAD = 8.4            # in bold
PADDING = 13          # and the sides of a cell
PIECE = 30            # characters after which a longer word may be broken


class Cell(NamedTuple):
    """Its text, by what its column sorts (None: by the text), and its classes of CSS."""

    text: str
    key: str | None = None
    kind: str = ""


class Block(NamedTuple):
    """The heads of its columns, and its rows, as cells; the first of each row names it."""

    heads: list[Cell]
    rows: list[list[Cell]]


def blocks(heads: Sequence[Cell], rows: Sequence[Sequence[Cell]], lead: int = 1) -> list[Block]:
    """The table in blocks of about the same width, each begun by the first `lead` columns; none without rows."""
    if not rows:
        return []
    heads, *rows = ([cell._replace(text=breakable(cell.text)) for cell in row] for row in (heads, *rows))
    width = [max([HEAD * longest(head), *(CHARACTER * longest(row[at]) for row in rows)]) + PADDING
             for at, head in enumerate(heads)]
    lead = lead if 2 * sum(width[:lead]) < WINDOW else 1
    room = WINDOW - sum(width[:lead])
    rest = sum(width[lead:])
    share = rest / max(1, math.ceil(rest / room))
    parts, taken = [[]], 0.0
    for at in range(lead, len(heads)):
        if parts[-1] and (taken + width[at] / 2 > share or taken + width[at] > room):
            parts.append([])
            taken = 0.0
        parts[-1].append(at)
        taken += width[at]
    shown = [(*range(lead), *part) for part in parts]
    return [Block([heads[at] for at in columns], [[row[at] for at in columns] for row in rows]) for columns in shown]


def breakable(text: str) -> str:
    return re.sub(rf"(\S{{{PIECE}}})(?=\S)", "\\1\u200b", text)


def longest(cell: Cell) -> int:
    """Characters that stand in one line however narrow the column is."""
    whole = cell.kind == "number" and cell.key is not None
    return len(cell.text) if whole else max(map(len, re.split(r"[ \u200b]|(?<=[-/])(?=[^\W\d])", cell.text)))


def of(rows: Sequence[dict], columns: Sequence[Column]) -> list[Block]:
    """The blocks of a table of numbers, each begun by the columns of text that come first."""
    lead = next((at for at, column in enumerate(columns) if column.form), len(columns))
    return blocks([Cell(column.title, None, "number" if column.form else "") for column in columns],
                  [[number(row.get(column.name), column) for column in columns] for row in rows], max(1, lead))


def number(value, column: Column) -> Cell:
    """A cell of a table of numbers, which CSS keeps in one line; or of what is said in place of one."""
    key = "" if value is None else str(value.mean if isinstance(value, Estimate) else value)
    kind = ("said" if isinstance(value, str) else "number") if column.form else ""
    return Cell(table.text(value, column.form), key, kind)
