"""Tables with error bars, as Markdown, CSV and LaTeX."""

import csv
import io
import math
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from mlm.base import files
from mlm.base.estimates import Estimate, Score, SeedRange

SUFFIXES = ("", "_low", "_high", "_min", "_max", "_se", "_note")  # of the CSV columns of one Column
SI_PREFIXES = "KMGTPEZ"
QUANTITY = "quantity"  # a format: a count of three digits with its SI prefix
PERCENT = "percent"  # a format: a share in per cent, whose sign the title has
P_VALUE = "p_value"  # a format: a probability, of which no more is shown than that it is small
SPACE = 3  # characters between two columns on a terminal
EN_DASH = "\N{EN DASH}"
RANGE = f"(a{EN_DASH}b)"  # how a range is written


class Column(NamedTuple):
    """A column: its key in rows and CSV, its title, the format of its numbers ("": text), a note below the table."""

    name: str
    title: str
    format: str = ""
    note: str = ""


class NamedTable(NamedTuple):
    """A table beside a sweep's own, on its page and in files STEM.md, STEM.csv and STEM.tex."""

    stem: str
    title: str
    caption: str
    rows: Sequence[dict]
    columns: Sequence[Column]


def score_column(score: Score, form: str = "") -> Column:
    """The column of a score: its title without "held-out", and the first word of its unit."""
    title = score.title.removeprefix("held-out ")
    return Column(score.name, f"{title} ({score.unit.split()[0]})" if score.unit else title, form or score.format)


def build_paper_columns(titles: Mapping[str, str]) -> tuple[Column, ...]:
    """A column with a paper's scores for each task; titles: of the tasks, by name."""
    return tuple(Column(f"task_{task}_paper", f"paper's {title}", ".1f") for task, title in titles.items())


def build_paper_cells(titles: Mapping[str, str], values: Sequence[float]) -> dict[str, float]:
    """A row's cells in the columns of `build_paper_columns`."""
    return {f"task_{task}_paper": value for task, value in zip(titles, values, strict=True)}


def add_paper_differences(rows: Sequence[dict], columns: Sequence[Column]) -> tuple[list[dict], list[Column]]:
    """The table with a column NAME_difference, ours minus the paper's value, after each column NAME_paper."""
    rows, extended, by_name = [dict(row) for row in rows], [], {column.name: column for column in columns}
    for column in columns:
        extended.append(column)
        name = column.name.removesuffix("_paper")
        if name == column.name or name not in by_name:
            continue
        title, form = f"{by_name[name].title}, ours - paper", "+" + by_name[name].format.lstrip("+")
        extended.append(Column(f"{name}_difference", title, form))
        for row in rows:
            value, paper = row.get(name), row.get(column.name)
            if value is None or isinstance(value, str) or paper is None:
                continue
            if isinstance(value, Estimate):
                value = value._replace(**{end: x - paper for end, x in value._asdict().items() if x is not None})
            else:
                value -= paper
            row[f"{name}_difference"] = value
    return rows, extended


def format_count(count: int, noun: str) -> str:
    """A number with its noun, which gets an s unless the number is 1."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def format_cell(value, form: str) -> str:
    """The text of a cell; empty for a missing value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, Estimate):
        return "" if math.isnan(value.mean) else format_cell(value.mean, form) + format_bounds(value, form.lstrip("+"))
    if isinstance(value, str):
        return value
    return format_number(value, form)


def format_number(value: float, form: str) -> str:
    """A number in a format of Python, or QUANTITY, PERCENT or P_VALUE."""
    if form.endswith(PERCENT):
        return format(100 * value, f"{form.removesuffix(PERCENT)}.1f")
    if form == P_VALUE:
        return format(value, ".2g") if value >= 1e-3 else "<0.001"
    return format_quantity(value) if form == QUANTITY else format(value, form)


def format_quantity(count: float) -> str:
    """A count of three digits with its SI prefix, as people read it: 3.91M."""
    rounded, power = float(f"{count:.3g}"), 0
    while abs(rounded) >= 1000 and power < len(SI_PREFIXES):
        rounded, power = rounded / 1000, power + 1
    return f"{rounded:.3g}{SI_PREFIXES[power - 1 : power]}"


def format_bounds(value: Estimate, form: str) -> str:
    """The bounds after a mean, if there are some: ± half-width, [low, high] of an asymmetric interval, or a range."""
    if value.low is None or value.high is None:
        return ""
    low, high, sign = format_number(value.low, form), format_number(value.high, form), bounds_sign(value)
    if sign == RANGE:
        return f" ({low}{' to ' if value.low < 0 else EN_DASH}{high})"
    return f" ± {format_number(value.mean - value.low, form)}" if sign == "±" else f" [{low}, {high}]"


def bounds_sign(value: Estimate) -> str:
    """How `format_bounds` writes the bounds that a value has."""
    assert value.low is not None and value.high is not None
    below, above = value.mean - value.low, value.high - value.mean
    is_symmetric = type(value) is Estimate and math.isclose(below, above, rel_tol=1e-9, abs_tol=1e-12)
    return RANGE if isinstance(value, SeedRange) else "±" if is_symmetric else "[a, b]"


def collect_notes(rows: Sequence[dict], columns: Sequence[Column]) -> list[str]:
    """The notes below a table: those of its columns, and the meaning of the bounds."""
    notes = list(dict.fromkeys(column.note for column in columns if column.note))
    values = [row[column.name] for row in rows for column in columns if isinstance(row.get(column.name), Estimate)]
    signs: dict[str, dict[str, None]] = {}
    for value in sorted((value for value in values if value.low is not None), key=bounds_sign, reverse=True):
        signs.setdefault(f"{value.bounds_title} ({value.bounds_method})", {})[bounds_sign(value)] = None
    notes += [f"{' or '.join(names)}: {meaning}." for meaning, names in signs.items()]
    if any(row.get("seeds") == 1 for row in rows):
        notes.append("1 seed: no interval, since the spread over seeds is unknown.")
    return notes


def to_markdown(rows: Sequence[dict], columns: Sequence[Column]) -> str:
    """The table in Markdown with its notes below."""
    return "\n\n".join([to_grid(rows, columns), *collect_notes(rows, columns)])


def to_latex(rows: Sequence[dict], columns: Sequence[Column]) -> str:
    """The table with booktabs, its notes as comments."""
    notes = "".join(f"\n% {note}" for note in collect_notes(rows, columns))
    return replace_signs(to_grid(rows, columns, "latex_booktabs")) + notes


def replace_signs(text: str) -> str:
    """A text for LaTeX, with its commands for the signs that tables use."""
    return text.replace("±", "$\\pm$").replace("†", "$^\\dagger$").replace(EN_DASH, "--")


def starts_references(rows: Sequence[dict], i: int) -> bool:
    """Whether row i is the first reference below models."""
    return i > 0 and "seeds" in rows[i - 1] and "seeds" not in rows[i]


def to_grid(rows: Sequence[dict], columns: Sequence[Column], style: str = "pipe") -> str:
    """The table without notes, in a style of tabulate; in Markdown with the best in bold and references set apart."""
    cells = [[format_cell(row.get(column.name), column.format) for column in columns] for row in rows]
    for i in reversed(range(len(rows) if style == "pipe" else 0)):
        if rows[i].get("verdict") == "best":
            cells[i] = [cell and f"**{cell}**" for cell in cells[i]]
        cells[i:i] = [[""] * len(columns)] * starts_references(rows, i)
    align = ["right" if column.format else "left" for column in columns]
    return tabulate(
        cells, [column.title for column in columns], style, colalign=align if cells else None, disable_numparse=True
    )


def print_table(rows: Sequence[dict], columns: Sequence[Column]) -> None:
    """Prints the table with its notes: in Markdown, or on a terminal what fits there, references below a rule."""
    if not sys.stdout.isatty():
        print(to_markdown(rows, columns))
        return
    from rich import box, console, table, text

    terminal = console.Console(highlight=False)
    shown = fit_columns(rows, columns, terminal.width)
    grid = table.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column, width in zip(shown, share_width(rows, shown, terminal.width), strict=True):
        grid.add_column(column.title, justify="right" if column.format else "left", width=width)
    for i, row in enumerate(rows):
        if starts_references(rows, i):
            grid.add_section()
        cells = (text.Text(format_cell(row.get(one.name), one.format), no_wrap=bool(one.format)) for one in shown)
        grid.add_row(*cells, style="bold" if row.get("verdict") == "best" else None)
    terminal.print(grid)
    left_out = ", ".join(column.title for column in columns if column not in shown)
    for note in [*collect_notes(rows, shown), *([f"No room here for: {left_out}."] if left_out else [])]:
        print()
        print_paragraph(note)


def print_paragraph(text: str) -> None:
    """Prints a text, on a terminal in lines that fit there."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(text) + 1
    print(textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False))


def measure_column(rows: Sequence[dict], column: Column, *, by_word: bool = False) -> int:
    """The characters of a column's widest cell, or of a word of its title; by_word: of a word of its cells."""
    cells = [format_cell(row.get(column.name), column.format) for row in rows]
    return max(map(len, (*column.title.split(), *(" ".join(cells).split() if by_word else cells))))


def fit_columns(rows: Sequence[dict], columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit into so many characters: from the last on, estimates but one are left out, then others."""
    fitted = list(columns)
    measured = [column for column in columns if any(isinstance(row.get(column.name), Estimate) for row in rows)]
    while len(measured) > 1 and sum(measure_column(rows, column) + SPACE for column in fitted) > width:
        fitted.remove(measured.pop())
    others = [column for column in fitted[1:] if column not in measured]
    while others and sum(measure_column(rows, one, by_word=not one.format) + SPACE for one in fitted) > width:
        fitted.remove(others.pop())
    return fitted


def share_width(rows: Sequence[dict], columns: Sequence[Column], width: int) -> list[int]:
    """The characters of each column on a terminal: what its cells need, and of what is left the most to long titles.

    Where there is not enough, texts take several lines.
    """
    widths = [measure_column(rows, column) for column in columns]
    free = width - sum(widths) - SPACE * len(columns)
    for _ in range(free):
        longest = max(range(len(columns)), key=lambda i: len(columns[i].title) / widths[i])
        widths[longest] += len(columns[longest].title) > widths[longest]
    least = [measure_column(rows, column, by_word=not column.format) for column in columns]
    for _ in range(-free):
        loosest = max(range(len(columns)), key=lambda i: widths[i] - least[i])
        widths[loosest] -= widths[loosest] > least[loosest]
    return widths


def to_csv(rows: Sequence[dict], columns: Sequence[Column]) -> str:
    """The table as CSV.

    After the column NAME follow, if a row has them: NAME_low and NAME_high, the bounds of a 95% interval; NAME_min and
    NAME_max, the lowest and highest seed; NAME_se, the standard error over the held-out examples of one seed; and
    NAME_note, a text in place of a number.
    """
    flat, names = [flatten_row(row, columns) for row in rows], []
    for column in columns:
        names += [
            f"{column.name}{end}" for end in SUFFIXES if not end or any(f"{column.name}{end}" in row for row in flat)
        ]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def flatten_row(row: dict, columns: Sequence[Column]) -> dict:
    """The CSV's values of a row, by the names of `to_csv`."""
    flat = {}
    for name, _, form, _ in columns:
        value = row.get(name)
        if isinstance(value, Estimate):
            flat[name] = value.mean
            if value.low is not None:
                low, high = ("_min", "_max") if isinstance(value, SeedRange) else ("_low", "_high")
                flat |= {f"{name}{low}": value.low, f"{name}{high}": value.high}
        else:
            flat[f"{name}_note" if form and isinstance(value, str) else name] = value
        if f"{name}_se" in row:
            flat[f"{name}_se"] = row[f"{name}_se"]
    return flat


def write_table(
    folder: Path, rows: Sequence[dict], columns: Sequence[Column], stem: str = "table", latex: str | None = None
) -> None:
    """Writes STEM.md, STEM.csv and STEM.tex into the folder; each write is atomic. latex: another text for the last."""
    for ending, content in (
        ("md", to_markdown(rows, columns) + "\n"),
        ("csv", to_csv(rows, columns)),
        ("tex", (latex or to_latex(rows, columns)) + "\n"),
    ):
        files.write_text(folder / f"{stem}.{ending}", content)
