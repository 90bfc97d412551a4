"""The ablations of papers beside ours: what a change was worth there, and here, which is another scale."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mlm.base.estimates import estimate_mean, read_first_score
from mlm.report import compare, evaluation_scores
from mlm.report.table import Column, NamedTable, score_column


class PaperTable(NamedTuple):
    """A paper's ablation, whose rows are each compared with the first one."""

    source: str  # paper, table and model; "second hand" where the values were not read in the paper itself
    scores: Sequence[str]  # their titles
    rows: Mapping[str, Sequence[float]]  # scores by the row's title
    ours: Mapping[str, str] = {}  # by title the part of our rows' names that stands for it


def build_table(tables: Sequence[PaperTable], groups: Mapping[str, Sequence[dict]]) -> NamedTable:
    """A row for each change of the papers, and for each pair of our groups of runs that differ by it."""
    results, rows = [run for runs in groups.values() for run in runs], []
    metrics = evaluation_scores.build_columns(results)
    for source, titles, values, ours in tables:
        base, *others = values
        for title in others:
            scores = zip(titles, values[title], values[base], strict=True)
            texts = [f"{name} {value:g} ({round(value - before, 2):+g})" for name, value, before in scores]
            cells = {"source": source, "change": f"{title} for {base}", "there": ", ".join(texts)}
            pairs = find_pairs(groups, ours.get(title), ours.get(base))
            first, *more = [{"here": a} | compare_groups(groups[a], groups[b], metrics) for a, b in pairs] or [{}]
            rows += [cells | first, *more]  # the paper's cells once
    titles = {"source": "paper", "change": "change", "there": "there", "here": "our row"}
    scored = (score_column(read_first_score(results[0]))._replace(name="difference"), *metrics.values())
    columns = [*map(Column, titles, titles.values()), *(one._replace(format=f"+{one.format}") for one in scored)]
    shown = [column for column in columns if any(column.name in row for row in rows)]
    caption = "At another scale: compare signs, not sizes. Ours: the row minus the one without the change."
    return NamedTable("papers", "Papers' ablations beside ours", caption, rows, shown)


def find_pairs(names: Iterable[str], changed: str | None, base: str | None) -> list[tuple[str, str]]:
    """The pairs of names that differ in one part: it is `changed` in the first and `base` in the second."""
    others = {f"-{name}-": f"-{name}-".replace(f"-{changed}-", f"-{base}-") for name in names}
    return [(a.strip("-"), b.strip("-")) for a, b in others.items() if a != b and b in others]


def compare_groups(runs: Sequence[dict], others: Sequence[dict], metrics: Mapping) -> dict:
    """The differences of two groups by seed: of the first score, if it is of the same examples, and of evaluations."""
    pair = compare.match_groups(runs, others)
    values = {"difference": list(map(operator.sub, *pair.compute_values())) if pair and pair.paired else []}
    seeds = [(a, b) for a in runs for b in others if a["config"]["seed"] == b["config"]["seed"]]
    for metric, column in metrics.items():
        found = [evaluation_scores.collect_values(both, metric) for both in seeds]
        values[column.name] = [both[0] - both[1] for both in found if len(both) == 2]
    return {name: estimate_mean(differences) for name, differences in values.items() if differences}
