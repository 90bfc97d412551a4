"""A sweep on one page: a single HTML file that needs no network, and beside it every figure and table as files.

What an experiment gives the page: its docstring (the first paragraph is the question), `table(results)` -> (rows,
columns), in which a column NAME_paper holds the paper's values of the column NAME, and, if it likes,

    group(result) -> str        the series that a run belongs to, the same for all its seeds;
                                without it the name of the run's directory up to "-seed"
    claims(names) -> pairs      which series it claims beforehand to be better than which, a few, of the names of all
                                series that have finished runs; below them stands the best against each other one
"""
import collections
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import config, fields
from mlm.base.files import write_text
from mlm.report import charts, compare, figures, palette, series, table
from mlm.report.table import Column

SPENT = (
    Column("steps", "steps", ",d"), Column("tokens", "tokens", ".3g"),
    Column("tokens_per_second", "tokens/s", ",.0f"), Column("parameters", "parameters", ",d"),
    Column("flops", "training FLOPs", ".2e"),
)
POINTS = 200


class Findings(NamedTuple):
    """What the results of a sweep say: the experiment's table, the claims, and all charts."""

    rows: list[dict]
    columns: Sequence[Column]
    claims: list[dict]
    claim_columns: Sequence[Column]
    claim_note: str
    charts: list


def files(root: Path, experiment, results: Sequence[dict]) -> Findings:
    """Writes root/table.*, root/claims.* and root/figures/*, and returns what they hold.

    results: finished runs, at least one, as `series` says.
    """
    group = getattr(experiment, "group", series.name_of)
    groups = series.groups(results, group)
    rows, columns = table.against_paper(*experiment.table(results))
    named = getattr(experiment, "claims", None)
    claims, claim_columns = compare.claims(groups, named and named(list(groups)))
    judged = compare.judged(results[0])
    note = (f"{judged.title[0].upper()}{judged.title[1:]} of the first less the second's: "
            f"{'negative' if judged.better < 0 else 'positive'} where the first is better.")
    found = Findings(rows, columns, claims, claim_columns, note, charts.of(results, rows, columns, group))
    table.write(root, rows, columns)
    table.write(root, claims, claim_columns, "claims")
    for chart in found.charts:
        figures.draw(root / "figures", chart)
    return found


def write(root: Path, experiment, results: Sequence[dict], planned: int) -> Path:
    """Writes root/report.html and the files beside it, and returns its path.

    planned: how many points the sweep has. With no results yet the page holds the experiment's question alone.
    """
    import jinja2

    found = files(root, experiment, results) if results else Findings([], [], [], [], "", [])
    question, _, recipe = (experiment.__doc__ or root.name).partition("\n\n")
    same, different = settings(results)
    topics = {}
    for chart in found.charts:
        if isinstance(chart, charts.Lines):
            topics.setdefault(chart.topic, []).append(chart)
    environment = jinja2.Environment(loader=jinja2.PackageLoader("mlm.report.pages", "."), autoescape=True,
                                     trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    html = environment.get_template("sweep.html").render(
        question=" ".join(question.split()), recipe=recipe.strip(), name=root.name, done=len(results), planned=planned,
        found=found, topics=topics, same=same, different=different, runs=runs(results, different),
        intervals=[interval_plot(chart) for chart in found.charts if isinstance(chart, charts.Intervals)],
        heats=[chart for chart in found.charts if isinstance(chart, charts.Heat)],
        run_columns=[column for column in run_columns(results)
                     if any(measured(result, column.name) is not None for result in results)],
        data=embedded({topic: [drawn(chart) for chart in of] for topic, of in topics.items()}),
        palette=palette, text=table.text, below=table.notes)
    root.mkdir(parents=True, exist_ok=True)
    write_text(root / "report.html", html)
    return root / "report.html"


def settings(results: Sequence[dict]) -> tuple[dict, dict]:
    """Config fields that can change a result: the value of those that are the same in all runs, and that which at
    least half of the runs have (or None) of the others."""
    same, different = {}, {}
    for name in fields.flatten(config.Config(), results_only=True):
        values = collections.Counter(shown(result["config"].get(name)) for result in results)
        if len(values) == 1:
            same[name] = next(iter(values))
        elif values:
            value, count = values.most_common(1)[0]
            different[name] = value if 2 * count >= len(results) else None
    return same, different


def shown(value) -> str:
    return "" if value is None else str(value)


def runs(results: Sequence[dict], different: dict) -> list[dict]:
    """A row a run: its name, the config fields that differ (odd: from most runs' one value), and its numbers."""
    columns = run_columns(results)
    return [{"name": Path(result["config"]["workdir"]).name,
             "fields": [{"text": text, "odd": name != "seed" and common is not None and text != common}
                        for name, common in different.items() for text in [shown(result["config"].get(name))]],
             "numbers": {column.name: measured(result, column.name) for column in columns}} for result in results]


def run_columns(results: Sequence[dict]) -> list[Column]:
    """What the table of runs shows: the scores with curves, the first with its error, and what the run took."""
    scores = [table.scored(score, ".4f") for score in charts.worth_a_curve(results)] if results else []
    error = [Column(f"{column.name}_se", "its error", column.form) for column in scores[:1]]
    return [*scores[:1], *error, *scores[1:], *SPENT]


def measured(result: dict, name: str) -> float | None:
    return result["evaluation"].get(name, result.get(name))


def interval_plot(chart: charts.Intervals) -> dict:
    """The chart's places as per cent of the axis, which holds all bounds; that of a share ends at 0 and 1."""
    from matplotlib.ticker import MaxNLocator

    ends = [x for _, value, paper in chart.rows for x in (*value, paper) if x is not None]
    low, high = min(ends), max(ends)
    if chart.share:
        low, high = max(low, 0), min(high, 1)
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    low, high = float(ticks[0]), float(ticks[-1])

    def place(x):
        return None if x is None else round(100 * min(max((x - low) / (high - low), 0), 1), 2)

    return {"title": chart.x, "name": chart.name, "form": chart.form,
            "ticks": [(f"{x:.6g}", place(x)) for x in ticks.tolist()],
            "papers": any(paper is not None for _, _, paper in chart.rows),
            "rows": [{"label": name, "value": value, "paper": paper, "mean": place(value.mean),
                      "low": place(value.low), "high": place(value.high), "paper_at": place(paper)}
                     for name, value, paper in chart.rows]}


def drawn(chart: charts.Lines) -> dict:
    """The chart for the page's script: rounded numbers, and at most some POINTS of a line, for a screen has no more."""
    def line(index, of, reference):
        of = thinned(of)
        bounds = [[short(value.low), short(value.high)] if value.low is not None else None for value in of.y]
        return {"name": of.name, "x": [x if isinstance(x, str) else short(x) for x in of.x],
                "y": [short(value.mean) for value in of.y], "bounds": bounds, "reference": reference,
                **palette.style(index)._asdict()}

    return {"name": chart.name, "x": chart.x, "y": chart.y, "band": chart.band, "bounds": chart.bounds,
            "share": chart.share,
            "series": [*(line(i, of, False) for i, of in enumerate(chart.series)),
                       *(line(i, of, True) for i, of in enumerate(chart.references))]}


def thinned(line: series.Series) -> series.Series:
    every = -(-len(line.x) // POINTS)
    kept = sorted({*range(0, len(line.x), every), len(line.x) - 1})
    return line._replace(x=[line.x[i] for i in kept], y=[line.y[i] for i in kept])


def short(value: float) -> float:
    return float(f"{value:.6g}")


def embedded(value) -> str:
    """JSON that may stand inside a script element."""
    return re.sub("[<>&]", lambda sign: f"\\u{ord(sign[0]):04x}", json.dumps(value, separators=(",", ":")))
