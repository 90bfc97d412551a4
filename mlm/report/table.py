"""Tables with error bars: the same rows as Markdown, CSV and LaTeX."""
import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from mlm.base import files
from mlm.base.estimates import Estimate, Score


class Column(NamedTuple):
    """A column: the key of the rows and of the CSV, its title for people, and a format for its numbers."""

    name: str
    title: str
    form: str = ""


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
            ours = next(one for one in columns if one.name == name)
            wider.append(Column(f"{name}_difference", f"{ours.title}, ours - paper", "+" + ours.form.lstrip("+")))
            for row in rows:
                value, paper = row.get(name), row.get(column.name)
                if value is not None and paper is not None:
                    row[f"{name}_difference"] = (Estimate(*(None if x is None else x - paper for x in value))
                                                 if isinstance(value, Estimate) else value - paper)
    return rows, wider


def text(value, form: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, Estimate):
        half = "" if value.low is None else f" ± {format(value.mean - value.low, form.lstrip('+'))}"
        return text(value.mean, form) + half
    return value if isinstance(value, str) else format(value, form)


def markdown(rows: Sequence[dict], columns: Sequence[Column], style: str = "github") -> str:
    """The table for people: Markdown, or LaTeX with booktabs for style "latex_booktabs". Missing values stay empty."""
    cells = [[text(row.get(column.name), column.form) for column in columns] for row in rows]
    align = ["right" if column.form else "left" for column in columns]
    return tabulate(cells, [column.title for column in columns], style, colalign=align if cells else None,
                    disable_numparse=True)


def plain(rows: Sequence[dict], columns: Sequence[Column]) -> str:
    """The table for programs: CSV, an Estimate in three columns NAME, NAME_low, NAME_high."""
    names = []
    for column in columns:
        spread = any(isinstance(row.get(column.name), Estimate) for row in rows)
        names += [column.name, *((f"{column.name}_low", f"{column.name}_high") if spread else ())]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        flat = {}
        for column in columns:
            value = row.get(column.name)
            if isinstance(value, Estimate):
                flat |= {column.name: value.mean, f"{column.name}_low": value.low, f"{column.name}_high": value.high}
            else:
                flat[column.name] = value
        writer.writerow(flat)
    return out.getvalue()


def write(folder: Path, rows: Sequence[dict], columns: Sequence[Column], stem: str = "table") -> None:
    """Writes STEM.md, STEM.csv and STEM.tex into the folder, each whole or not at all."""
    latex = markdown(rows, columns, "latex_booktabs").replace("±", "$\\pm$")
    for ending, content in (("md", markdown(rows, columns) + "\n"), ("csv", plain(rows, columns)),
                            ("tex", latex + "\n")):
        files.write_text(folder / f"{stem}.{ending}", content)
