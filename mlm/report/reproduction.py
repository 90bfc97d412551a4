"""The figures of a sweep as a small file, and the comparison of another sweep's with them.

A file of figures holds, for each group of runs, its scores and evaluations with their standard errors, and where they
come from. Pages in Markdown show it between two markers; what stands outside of these is written by hand and stays.

    <!-- figures: scaling-quick -->
    <!-- end of figures -->
"""

import difflib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm.base import errors, files
from mlm.base.estimates import EvaluationMetric, Score
from mlm.report import evaluation_scores, series, summary, table
from mlm.report.headline import MAX_COLUMNS, Headline
from mlm.report.pages import run_provenance
from mlm.report.table import Column, NamedTable

MAX_ERRORS = 3.0  # standard errors, beyond which a figure has changed
MAX_ROWS = 60  # of a table that a page shows without a fold
EXACT = 1e-4  # relative difference up to which figures without an error, such as floors, are the same
MARKERS = re.compile(r"(<!-- figures: ([\w.-]+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
# Columns without which a row may be misread; they are there only where a row has such a mark.
MARKS = ("leaks", "unigram_plateau", "above_unigram", summary.EVALUATION_SET)


class Figure(NamedTuple):
    """A number and its standard error: over seeds, of one seed over held-out examples, 0 for what has none."""

    value: float
    error: float


class Figures(NamedTuple):
    """The figures of a sweep, by row and column, and their origin."""

    experiment: str
    scale: str
    command: str
    commit: str
    date: str
    device: str
    hours: float  # of all runs together, one after the other
    seeds: int  # of each row, at most
    rows: dict[str, dict[str, Figure]]
    evaluate: str = ""  # the command after it, of evaluations that training does not make
    table: Sequence[str] = ()  # lines of Markdown that a page shows


class Change(NamedTuple):
    """A figure that is not as it was."""

    row: str
    column: str
    old: Figure | None  # None: a new one
    new: Figure | None  # None: it is missing
    distance: float  # standard errors of the difference; infinite if there is no error

    def __str__(self):
        place = f"{self.row}, {self.column}"
        if self.old is None or self.new is None:
            return f"{place}: {'not among the committed figures' if self.old is None else 'missing'}"
        distance = f"{self.distance:.1f} standard errors" if math.isfinite(self.distance) else "an exact figure differs"
        return f"{place}: {self.new.value:.4f}, committed {self.old.value:.4f} ({distance})"


def collect_figures(
    experiment: str,
    scale: str,
    command: str,
    results: Sequence[dict],
    shown_table: Sequence[str] = (),
    evaluate: str = "",
) -> Figures:
    """The figures of finished runs: scores, references, evaluations that all runs of a group have (", step N")."""
    scores = [score for score in series.collect_scores(results) if score.reference or score.chart or score.better]
    rows = {
        name: {score.name: estimate_figure(score, runs) for score in scores if series.is_common(runs, score)}
        for name, runs in series.group_runs(results).items()
    }
    steps = evaluation_scores.list_steps(results)
    milestones = {f", step {step}": evaluation_scores.select_step(results, step) for step in steps}
    for suffix, evaluated in {"": results, **milestones}.items():
        columns = evaluation_scores.build_columns(evaluated)
        for name, runs in series.group_runs(evaluated).items():
            found = estimate_evaluations(runs, columns)
            rows[name] |= {f"{column}{suffix}": figure for column, figure in found.items()}
    starts = [start for result in results for start in (result.get("provenance") or [])[-1:] if "time" in start]
    date = max((start["time"][:10] for start in starts), default=run_provenance.UNKNOWN)
    shown = run_provenance.collect_provenance(results)
    counts = {
        name: ", ".join(f"{value} ({table.format_count(len(runs), 'run')})" for value, runs in groups.items())
        for name, groups in shown.mixed.items()
    }
    commit, device = ((shown.same | counts).get(name) or run_provenance.UNKNOWN for name in ("commit", "device"))
    times = [[datetime.fromisoformat(start[end]) for end in ("time", "ended")] for start in starts if "ended" in start]
    hours = round(sum((end - start).total_seconds() / 3600 for start, end in times), 3)
    seeds = max(map(len, series.group_runs(results).values()))
    return Figures(experiment, scale, command, commit, date, device, hours, seeds, rows, evaluate, shown_table)


def render_tables(
    headline: Headline, columns: Sequence[Column], tables: Sequence[NamedTable], first: Collection[str]
) -> list[str]:
    """Lines of Markdown: tables, `first` (by their stems) above the headline; long ones are folded."""
    marks = [column for column in columns if column.name in MARKS and column not in headline.table.columns]
    shown = [*headline.table.columns, *marks][:MAX_COLUMNS]
    sentence = re.sub(r"[*_]", r"\\\g<0>", headline.sentence)  # of a pattern of files, say
    runs = headline.table._replace(title=sentence, caption="", columns=shown)
    parts: list[str] = []
    for one in sorted([runs, *tables], key=lambda one: (one.stem not in first, one is not runs)):
        text = table.to_markdown(one.rows, one.columns)
        if len(one.rows) > MAX_ROWS:
            text = f"<details markdown>\n<summary>Table of {len(one.rows)} rows</summary>\n\n{text}\n\n</details>"
        parts += [f"**{one.title}** {one.caption}".strip(), text]
    return "\n\n".join(parts).splitlines()


def estimate_figure(score: Score, runs: Sequence[dict]) -> Figure:
    """The mean of a score with its standard error: over seeds, of one seed over examples; 0 of a reference."""
    values = [run["evaluation"][score.name] for run in runs]
    if score.reference:
        return Figure(float(np.mean(values)), 0.0)
    if len(values) > 1:
        return average(values)
    return Figure(float(values[0]), float(runs[0]["evaluation"][f"{score.name}_se"]))


def estimate_evaluations(runs: Sequence[dict], columns: Mapping[EvaluationMetric, Column]) -> dict[str, Figure]:
    """The figures of the evaluations that all runs have and whose error is known, by name."""
    figures = {}
    for metric, column in columns.items():
        values = evaluation_scores.collect_values(runs, metric)
        if len(values) < len(runs):
            continue
        first = evaluation_scores.index_scores(runs[0])[metric]
        spread = first.values if len(runs) == 1 else values
        if len(spread) > 1:
            figures[column.name] = average(spread)
        elif first.error is not None:
            figures[column.name] = Figure(values[0], first.error)
    return figures


def average(values: Sequence[float]) -> Figure:
    """The mean of at least two values with its standard error."""
    return Figure(float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values)))


def compare_figures(old: Figures, new: Figures) -> list[Change]:
    """The figures that differ by more than MAX_ERRORS, and those that only one of the two has; the furthest first."""
    changes = []
    for row in {**old.rows, **new.rows}:
        before, after = old.rows.get(row, {}), new.rows.get(row, {})
        for column in {**before, **after}:
            first, second = before.get(column), after.get(column)
            distance = compute_distance(first, second) if first and second else math.inf
            if distance > MAX_ERRORS:
                changes.append(Change(row, column, first, second, distance))
    return sorted(changes, key=lambda change: -change.distance)


def compute_distance(old: Figure, new: Figure) -> float:
    """The difference in its own standard errors, those of both figures together."""
    error = math.hypot(old.error, new.error)
    if not error or not math.isfinite(error):
        return 0.0 if math.isclose(old.value, new.value, rel_tol=EXACT, abs_tol=EXACT) else math.inf
    return abs(new.value - old.value) / error


def write_figures(path: Path, figures: Figures) -> None:
    """Writes a file of figures, with a line for each row."""
    head = {name: value for name, value in figures._asdict().items() if name not in ("rows", "table") and value != ""}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    rows = [f"  {json.dumps(row)}: {json.dumps(cells)}" for row, cells in figures.rows.items()]
    lines.append(' "rows": {\n' + ",\n".join(rows) + "\n }")
    if figures.table:
        lines.append(' "table": [\n' + ",\n".join(f"  {json.dumps(line)}" for line in figures.table) + "\n ]")
    files.write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_figures(path: Path) -> Figures:
    """The figures of a file. Raises ConfigError, which names the file, if it is missing or holds something else."""
    if not path.exists():
        near = difflib.get_close_matches(path.name, [other.name for other in path.parent.glob("*.json")], n=1)
        hint = f"; did you mean {path.with_name(near[0])}?" if near else "; mlm sweep compare --write makes it"
        raise errors.ConfigError(f"{path}: no such file of figures{hint}")
    with errors.explain(str(path), "a file of mlm sweep compare --write"):
        saved = json.loads(files.read_regular_file(path))
        rows = {
            row: {column: Figure(*map(float, figure)) for column, figure in cells.items()}
            for row, cells in saved.pop("rows").items()
        }
        return Figures(rows=rows, **saved)


def render_figures(figures: Figures, name: str) -> str:
    """The figures of the file `name` in Markdown: the commands, their origin, and the tables."""
    origin = f"Commit {figures.commit}, {figures.date}; {figures.device}; {figures.hours:.2f} hours of runs"
    seeds = f"{figures.seeds} seeds" if figures.seeds > 1 else "one seed"
    commands = [figures.command, *([figures.evaluate] if figures.evaluate else [])]
    origin += f"; {seeds}. Every column of the models is in `figures/{name}.csv`."
    lines = ["\n".join(f"    {command}" for command in commands), origin, "\n".join(figures.table)]
    return "\n\n".join(lines) + "\n"


def render_page(page: str, figures: Mapping[str, Figures], where: str) -> str:
    """A page with the figures in its generated parts. Raises ConfigError, which names the page, for a bad marker."""
    starts, parts = page.count("<!-- figures: "), MARKERS.findall(page)
    errors.require(
        starts == len(parts), where, f"{starts} markers", f"<!-- end of figures --> after each; {len(parts)} have"
    )
    for _, name, _, _ in parts:
        errors.require_one_of(f"{where}: figures", name, list(figures))
    return MARKERS.sub(lambda match: f"{match[1]}\n{render_figures(figures[match[2]], match[2])}\n{match[4]}", page)


def write_pages(paths: Sequence[Path], folder: Path) -> None:
    """Writes the generated parts of pages from the files of figures in a folder; nothing if one page is wrong."""
    figures = {path.stem: read_figures(path) for path in sorted(folder.glob("*.json"))}
    pages = {path: render_page(path.read_text(encoding="utf-8"), figures, str(path)) for path in paths}
    for path, page in pages.items():
        files.write_text(path, page)
