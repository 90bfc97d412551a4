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
from mlm.base.files import make_folder, write_text
from mlm.report import charts, compare, figures, palette, series, table
from mlm.report.pages import origin, recipe, sheet, template
from mlm.report.table import Column

TOOK = (
    Column("steps", "steps", ",d"), Column("tokens", "tokens", ".3g"), Column("timed_seconds", "seconds", ",.0f"),
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


def findings(experiment, results: Sequence[dict]) -> Findings:
    """What finished runs say, at least one, as `series` has them."""
    group = getattr(experiment, "group", series.name_of)
    groups = series.groups(results, group)
    rows, columns = table.against_paper(*experiment.table(results))
    named = getattr(experiment, "claims", None)
    claims, claim_columns = compare.claims(groups, named and named(list(groups)))
    judged = compare.judged(results[0])
    note = (f"{judged.title[0].upper()}{judged.title[1:]} of the first less the second's: "
            f"{'negative' if judged.better < 0 else 'positive'} where the first is better.")
    return Findings(rows, columns, claims, claim_columns, note, charts.of(results, rows, columns, group))


def files(root: Path, experiment, results: Sequence[dict]) -> Findings:
    """Writes root/table.*, root/claims.* and root/figures/*, and returns what they hold; results: as of `findings`."""
    found = findings(experiment, results)
    table.write(root, found.rows, found.columns)
    table.write(root, found.claims, found.claim_columns, "claims")
    for chart in found.charts:
        figures.draw(root / "figures", chart)
    return found


def write(root: Path, experiment, results: Sequence[dict], planned: int) -> Path:
    """Writes root/report.html and the files beside it, and returns its path.

    planned: how many points the sweep has. With no results yet the page holds the experiment's question alone.
    """
    found = files(root, experiment, results) if results else Findings([], [], [], [], "", [])
    make_folder(root)
    write_text(root / "report.html", html(root.name, experiment, found, results, planned))
    return root / "report.html"


def html(name: str, experiment, found: Findings, results: Sequence[dict], planned: int) -> str:
    """The page of the sweep of that name."""
    question, _, rest = (experiment.__doc__ or name).partition("\n\n")
    same, different = settings(results)
    origins = origin.origins(results, getattr(experiment, "group", series.name_of))
    topics = by_topic(found.charts)
    return template.filled(
        "sweep.html", question=" ".join(question.split()), recipe=rest.strip(), entries=recipe.entries(rest.strip()),
        name=name, done=len(results), planned=planned, found=found, topics=topics, same=same, origins=origins,
        table=sheet.of(found.rows, found.columns), claims=sheet.of(found.claims, found.claim_columns),
        runs=scored(results, different), took=took(results, origins),
        intervals=[interval_plot(chart) for chart in found.charts if isinstance(chart, charts.Intervals)],
        heats=[chart for chart in found.charts if isinstance(chart, charts.Heat)],
        data=embedded({topic: [drawn(chart, stems(found.charts)) for chart in of] for topic, of in topics.items()}),
        text=table.text, below=table.notes)


def by_topic(found: Sequence) -> dict[str, list[charts.Lines]]:
    """The charts of lines that stand in one place each of the page."""
    topics = {}
    for chart in found:
        each = chart.charts if isinstance(chart, charts.Panels) and not chart.again else [chart]
        for one in each:
            if isinstance(one, charts.Lines):
                topics.setdefault(one.topic, []).append(one)
    return topics


def stems(found: Sequence) -> dict[str, str]:
    """The name of the files that hold a chart of lines beside others, by the chart's own name."""
    return {one.name: chart.name for chart in found if isinstance(chart, charts.Panels) for one in chart.charts}


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


def scored(results: Sequence[dict], different: dict) -> list[sheet.Block]:
    """A row a run: its name, the config fields that differ (odd: from most runs' one value), and its scores."""
    scores = [table.scored(score, ".4f") for score in charts.worth_a_curve(results)] if results else []
    error = [Column(f"{column.name}_se", "its error", column.form) for column in scores[:1]]
    columns = [*scores[:1], *error, *scores[1:]]
    heads = [sheet.Cell(by_word(name), None, "config") for name in different]
    return of_runs(results, heads, [
        [sheet.Cell(text, text, "config" if name == "seed" or common in (None, text) else "config odd")
         for name, common in different.items() for text in [shown(result["config"].get(name))]]
        for result in results], columns)


def took(results: Sequence[dict], origins: origin.Origins) -> list[sheet.Block]:
    """A row a run: what it took, and where and when it ran; odd is what most others have another value of."""
    when = {"begun (UTC)": origins.since, "ended (UTC)": origins.until}
    when = {name: times for name, times in when.items() if any(times)}
    odd = {name: {value for value, groups in found.items() if 2 * len(groups) < len(results)}
           for name, found in origins.mixed.items()}
    cells = [[sheet.Cell(text, text, "config odd" if text in odd.get(name, ()) else "config")
              for name, text in (*run.items(), *((name, times[i]) for name, times in when.items()))]
             for i, run in enumerate(origins.runs)]
    return of_runs(results, [sheet.Cell(name, None, "config") for name in (*origins.mixed, *when)], cells, TOOK)


def of_runs(results: Sequence[dict], heads: Sequence[sheet.Cell], cells: Sequence[Sequence[sheet.Cell]],
            columns: Sequence[Column]) -> list[sheet.Block]:
    """The blocks of a table of runs: names, cells of text, then the columns of numbers that some run has."""
    columns = [column for column in columns if any(measured(result, column.name) is not None for result in results)]
    names = [Path(result["config"]["workdir"]).name for result in results]
    heads = [sheet.Cell("run"), *heads, *(sheet.Cell(column.title, None, "number") for column in columns)]
    return sheet.blocks(heads, [[sheet.Cell(name, name), *of, *(sheet.number(measured(result, column.name), column)
                                                                for column in columns)]
                                for name, of, result in zip(names, cells, results, strict=True)])


def by_word(name: str) -> str:
    """A config field that may be broken after each word."""
    return name.replace(".", ".\u200b").replace("_", "_\u200b")


def measured(result: dict, name: str) -> float | None:
    return result["evaluation"].get(name, result.get(name))


def interval_plot(chart: charts.Intervals) -> dict:
    """The chart's places as per cent of the axis, which holds all that is drawn."""
    from matplotlib.ticker import MaxNLocator

    ends = [x for _, value, paper in chart.rows for x in (*value, paper) if x is not None]
    low, high = min(ends), max(ends)
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    low, high = float(ticks[0]), float(ticks[-1])

    def place(x):
        return None if x is None else round(100 * (x - low) / (high - low), 2)

    return {"title": chart.x, "name": chart.name, "form": chart.form,
            "ticks": [(f"{x:.6g}", place(x)) for x in ticks.tolist()],
            "papers": any(paper is not None for _, _, paper in chart.rows),
            "rows": [{"label": name, "value": value, "paper": paper, "mean": place(value.mean),
                      "low": place(value.low), "high": place(value.high), "paper_at": place(paper)}
                     for name, value, paper in chart.rows]}


def drawn(chart: charts.Lines, stems: dict[str, str]) -> dict:
    """The chart for the page's script: rounded numbers, and at most some POINTS of a line, for a screen has no more.

    A series has its places on each axis; a reference that is the same everywhere has none.
    """
    axes = chart.axes or [charts.Axis(chart.along, chart.x, [line.x for line in (*chart.series, *chart.references)])]

    def line(index, of, places, reference):
        points = thinned(len(of.y)) if places else [0]
        values = [of.y[i] for i in points]
        return {"name": of.name, "x": [[short(x[i]) for i in points] for x in places],
                "y": [short(value.mean) for value in values],
                "bounds": [None if value.low is None else [short(value.low), short(value.high)] for value in values],
                "reference": reference, **palette.style(index)._asdict()}

    lines = [line(i, of, [axis.x[i] for axis in axes], False) for i, of in enumerate(chart.series)]
    for i, of in enumerate(chart.references):
        lines.append(line(i, of, [] if chart.axes else [of.x], True))
    own = stems.get(chart.name, chart.name)
    return {"name": chart.name, "y": chart.y, "band": chart.band, "bounds": chart.bounds, "share": chart.share,
            "axes": [{"x": axis.title, "files": stems.get(f"{chart.value}-by-{axis.along}", own)} for axis in axes],
            "series": lines}


def thinned(count: int) -> list[int]:
    """The places of a line's points that are drawn: at most some POINTS, and the last."""
    return sorted({*range(0, count, -(-count // POINTS)), count - 1})


def short(value: float | str) -> float | str:
    return value if isinstance(value, str) else float(f"{value:.6g}")


def embedded(value) -> str:
    """JSON that may stand inside a script element."""
    return re.sub("[<>&]", lambda sign: f"\\u{ord(sign[0]):04x}", json.dumps(value, separators=(",", ":")))
