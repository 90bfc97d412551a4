"""Pages in Markdown that show files of figures between two markers.

    <!-- figures: scaling-quick -->
    <!-- end of figures -->

What stands outside of these is written by hand and stays.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlm.base import errors, files
from mlm.report import table
from mlm.report.reproduction import Figures, read_figures
from mlm.report.table import Column

MARKERS = re.compile(r"(<!-- figures: ([\w.-]+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)


def render_figures(figures: Figures) -> str:
    """The figures in Markdown: the command, where they come from, and the table: the one that the experiment chose, or
    all scores, with the references that all rows share below it.
    """
    origin = f"Commit {figures.commit}, {figures.date}; {figures.device}; {figures.hours:.2f} hours of runs"
    seeds = f"{figures.seeds} seeds" if figures.seeds > 1 else "one seed"
    commands = [figures.command, *([figures.evaluate] if figures.evaluate else [])]
    lines = ["\n".join(f"    {command}" for command in commands), f"{origin}; {seeds}."]
    if figures.table:
        return "\n\n".join([*lines, "\n".join(figures.table)]) + "\n"
    first = next(iter(figures.rows.values()), {})
    shared = {
        name: f"{title} {first[name].value:.4f}"
        for name, title in figures.columns.items()
        if name in first
        and not first[name].error
        and all(cells.get(name) == first[name] for cells in figures.rows.values())
    }
    names = [name for name in figures.columns if name not in shared]
    columns = [Column("row", "row"), *(Column(name, figures.columns[name], ".4f") for name in names)]
    rows = [
        {"row": row}
        | {name: f"{value:.4f}" + (f" ± {error:.4f}" if error else "") for name, (value, error) in cells.items()}
        for row, cells in figures.rows.items()
    ]
    meaning = "the standard error over seeds" if figures.seeds > 1 else "the standard error over held-out examples"
    lines[-1] += f" ± is {meaning}."
    lines.append(table.to_grid(rows, columns))
    return "\n\n".join([*lines, *([f"Of all rows: {', '.join(shared.values())}."] if shared else [])]) + "\n"


def render_page(page: str, figures: Mapping[str, Figures], where: str) -> str:
    """A page in Markdown whose generated parts are those of the figures, by name; all else stays.

    where: the page's name, for an error. Raises ConfigError where the page names figures that there are none of, or has
    a marker without its end.
    """
    starts, parts = page.count("<!-- figures: "), MARKERS.findall(page)
    errors.require(
        starts == len(parts), where, f"{starts} markers", f"<!-- end of figures --> after each; {len(parts)} have"
    )
    for _, name, _, _ in parts:
        errors.require_one_of(f"{where}: figures", name, list(figures))
    return MARKERS.sub(lambda match: f"{match[1]}\n{render_figures(figures[match[2]])}\n{match[4]}", page)


def write_pages(paths: Sequence[Path], folder: Path) -> None:
    """Writes the generated parts of pages from the files of figures in a folder; nothing if one page is wrong."""
    figures = {path.stem: read_figures(path) for path in sorted(folder.glob("*.json"))}
    pages = {path: render_page(path.read_text(encoding="utf-8"), figures, str(path)) for path in paths}
    for path, page in pages.items():
        files.write_text(path, page)
