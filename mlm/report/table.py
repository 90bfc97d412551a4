"""Tables with error bars: the same rows as Markdown, CSV and LaTeX."""
import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from mlm.base import files
from mlm.base.estimates import Estimate, Range, Score

ENDS = ("", "_low", "_high", "_min", "_max", "_se", "_note")  # of the CSV's columns that belong to one
EN_DASH = "\N{EN DASH}"


class Column(NamedTuple):
    """A column: the key of the rows and of the CSV, its title for people, a format for its numbers, and what is to be
    said of it below the table."""

    name: str
    title: str
    form: str = ""
    note: str = ""


def scored(score: Score, form: str = "") -> Column:
    """The column of a score: its title without what all columns share, and of its unit the first word."""
    title = score.title.removeprefix("held-out ")
    return Column(score.name, f"{title} ({score.unit.split()[0]})" if score.unit else title, form or score.form)


def against_paper(rows: Sequence[dict], columns: Sequence[Column]) -> tuple[list[dict], list[Column]]:
    """The table with a column of differences, ours less the paper's, after each column of the paper's values.

    The paper's value for the column NAME is that of a column NAME_paper.
    """
    rows, wider = [dict(row) for row in rows], []
    for column in columns:
        wider.append(column)
        name = column.name.removesuffix("_paper")
        if name != column.name:
            ours = next((one for one in columns if one.name == name), None)
            if ours is None:
                continue
            wider.append(Column(f"{name}_difference", f"{ours.title}, ours - paper", "+" + ours.form.lstrip("+")))
            for row in rows:
                value, paper = row.get(name), row.get(column.name)
                if value is not None and not isinstance(value, str) and paper is not None:
                    row[f"{name}_difference"] = (type(value)(*(None if x is None else x - paper for x in value))
                                                 if isinstance(value, Estimate) else value - paper)
    return rows, wider


def text(value, form: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, Estimate):
        return "" if math.isnan(value.mean) else text(value.mean, form) + bounds(value, form.lstrip("+"))
    return value if isinstance(value, str) else format(value, form)


def bounds(value: Estimate, form: str) -> str:
    """Its bounds behind a mean: ± half of an interval, [from, to] of one with unlike sides, or (from-to)."""
    if value.low is None:
        return ""
    low, high = format(value.low, form), format(value.high, form)
    if isinstance(value, Range):
        return f" ({low}{' to ' if value.low < 0 else EN_DASH}{high})"
    return f" ± {format(value.mean - value.low, form)}" if even(value) else f" [{low}, {high}]"


def even(value: Estimate) -> bool:
    """Whether both bounds of an interval are as far from its middle."""
    below, above = value.mean - value.low, value.high - value.mean
    return type(value) is Estimate and math.isclose(below, above, rel_tol=1e-9, abs_tol=1e-12)


def sign(value: Estimate) -> str:
    if isinstance(value, Range):
        return f"(a{EN_DASH}b)"
    return "±" if even(value) else "[a, b]"


def notes(rows: Sequence[dict], columns: Sequence[Column]) -> list[str]:
    """What is to be said below a table: what its columns say, and what stands behind its values."""
    said = list(dict.fromkeys(column.note for column in columns if column.note))
    values = [row[column.name] for row in rows for column in columns if isinstance(row.get(column.name), Estimate)]
    signs: dict[str, dict[str, None]] = {}
    for value in sorted((value for value in values if value.low is not None), key=sign, reverse=True):
        signs.setdefault(f"{value.of} ({value.how})", {})[sign(value)] = None
    said += [f"{' or '.join(of)}: {what}." for what, of in signs.items()]
    if any(row.get("seeds") == 1 for row in rows):
        said.append("1 seed: no interval, as no other seed says how far it would lie.")
    return said


def markdown(rows: Sequence[dict], columns: Sequence[Column]) -> str:
    """The table for people, its notes below it. Missing values stay empty."""
    return "\n\n".join([grid(rows, columns), *notes(rows, columns)])


def latex(rows: Sequence[dict], columns: Sequence[Column]) -> str:
    """The table with booktabs, its notes as comments."""
    said = "".join(f"\n% {note}" for note in notes(rows, columns))
    return grid(rows, columns, "latex_booktabs").replace("±", "$\\pm$").replace(EN_DASH, "--") + said


def grid(rows: Sequence[dict], columns: Sequence[Column], style: str = "github") -> str:
    """The rows alone, in a style of tabulate's."""
    cells = [[text(row.get(column.name), column.form) for column in columns] for row in rows]
    align = ["right" if column.form else "left" for column in columns]
    return tabulate(cells, [column.title for column in columns], style, colalign=align if cells else None,
                    disable_numparse=True)


def plain(rows: Sequence[dict], columns: Sequence[Column]) -> str:
    """The table for programs: CSV. Beside the column NAME stand, where a row has them:

    NAME_low, NAME_high, the bounds of a 95% interval, and NAME_min, NAME_max, the lowest and highest seed; NAME_se, the
    standard error over held-out rows of one seed; NAME_note, a text in place of a number.
    """
    flat, names = [flattened(row, columns) for row in rows], []
    for column in columns:
        names += [f"{column.name}{end}" for end in ENDS if not end or any(f"{column.name}{end}" in row for row in flat)]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def flattened(row: dict, columns: Sequence[Column]) -> dict:
    flat = {}
    for name, _, form, _ in columns:
        value = row.get(name)
        if isinstance(value, Estimate):
            flat[name] = value.mean
            if value.low is not None:
                low, high = ("_min", "_max") if isinstance(value, Range) else ("_low", "_high")
                flat |= {f"{name}{low}": value.low, f"{name}{high}": value.high}
        else:
            flat[f"{name}_note" if form and isinstance(value, str) else name] = value
        if f"{name}_se" in row:
            flat[f"{name}_se"] = row[f"{name}_se"]
    return flat


def write(folder: Path, rows: Sequence[dict], columns: Sequence[Column], stem: str = "table") -> None:
    """Writes STEM.md, STEM.csv and STEM.tex into the folder, each whole or not at all."""
    for ending, content in (("md", markdown(rows, columns) + "\n"), ("csv", plain(rows, columns)),
                            ("tex", latex(rows, columns) + "\n")):
        files.write_text(folder / f"{stem}.{ending}", content)
