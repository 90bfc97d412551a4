"""The report of a sweep: a single HTML page that needs no network, and all figures and tables as files.

The page uses of an experiment: its docstring, whose first paragraph is the question; `table(results)` -> (rows,
columns), in which a column NAME_paper holds the paper's values of the column NAME; and optionally

    group(result) -> str        the name of a run's group (series), the same for all its seeds;
                                default: the name of the run's directory up to "-seed"
    claims(names) -> pairs      planned claims (better, worse) on rows of any scale; names: groups with finished runs
    tables(results) -> list     further tables (table.NamedTable), such as fits to the points
    charts(results) -> list     further charts
    facet(result) -> str        the small multiple that a run's line is in, where there are more than seven lines;
                                default: the size of its model
    SEARCHES                    searches by scale (mlm/experiment/searches.py): those of the table's rows are stated
    PAPER_TABLES                papers' ablations (report/paper_tables.py), shown beside the same changes of ours
    RESULT_TABLES               names of the tables that `mlm sweep compare --pages` shows: those of tables() above the
                                table of runs; claims, search-SCALE, milestones, papers below it
"""

import collections
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlm
from mlm.base import config, extras, fields
from mlm.base.estimates import read_first_score
from mlm.base.files import write_text
from mlm.report import (
    charts,
    compare,
    evaluation_scores,
    expected_best,
    figures,
    pages,
    paper_tables,
    row_charts,
    run_columns,
    series,
    specs,
    table,
)
from mlm.report.charts import Chart
from mlm.report.headline import Headline, build_headline, make_readable
from mlm.report.pages import run_provenance
from mlm.report.table import Column, NamedTable

COST_COLUMNS = (
    Column("steps", "steps", ",d"),
    Column("tokens", "tokens", table.QUANTITY),
    Column("timed_seconds", "seconds", ",.0f"),
    Column("tokens_per_second", "tokens/s", ",.0f"),
    Column("parameters", "parameters", table.QUANTITY),
    Column("flops", "training FLOPs", table.QUANTITY),
)
UNREAD = "—"  # in place of a field that a run does not read


class RunColumn(NamedTuple):
    """A column of the table of runs, with a value of each run."""

    name: str
    title: str
    kind: str  # config, score, cost, provenance; those of a kind are chosen together
    values: Sequence[Any]
    format: str = ""  # of numbers; "": texts
    common: str | None = None  # the value from which others are marked


class Findings(NamedTuple):
    """The tables and charts of a sweep."""

    rows: Sequence[dict] = ()
    columns: Sequence[Column] = ()
    claims: NamedTable = NamedTable("claims", "", "", (), ())
    headline: Headline | None = None
    tables: Sequence[NamedTable] = ()  # beside these
    experiment_tables: Collection[str] = ()  # the stems of those that the experiment makes
    charts: Sequence[Chart] = ()
    searches: Mapping[str, dict] = {}  # the trials of each


def collect_findings(experiment, results: Sequence[dict]) -> Findings:
    """The findings of finished runs, at least one, as in report/series.py."""
    found, runs = collect_tables(experiment, results), series.assign_groups(experiment, results)
    plots = [
        *charts.build_charts(runs),
        *evaluation_scores.build_milestone_charts(runs),
        *row_charts.build_charts(runs, found.rows, make_readable(found.columns, results)),
        *(experiment.charts(results) if hasattr(experiment, "charts") else ()),
    ]
    searches = {}
    for scale, search in select_searches(experiment, series.group_runs(runs)).items():
        chart = expected_best.build_chart(search)
        plots.append(chart._replace(y_name=f"{chart.y_name}-{scale}"))
        trials = [
            {"series": name, "values": {**trial.values, search.score: float(score)}}
            for name, row in search.rows.items()
            for trial, score in zip(row.trials, expected_best.collect_scores(row, search.better), strict=True)
        ]
        searches[f"trials-{scale}"] = {"title": f"Search ({scale})", "better": search.better, "trials": trials}
    sizes = run_columns.describe_sizes(results)
    facet = getattr(experiment, "facet", lambda run: sizes[run["config"]["model.size"]])
    facets = charts.find_facets(runs, facet)
    return found._replace(charts=[charts.split_chart(chart, facets) for chart in plots], searches=searches)


def collect_tables(experiment, results: Sequence[dict]) -> Findings:
    """The findings without charts, in a fraction of the time."""
    runs = series.assign_groups(experiment, results)
    groups = series.group_runs(runs)
    rows, columns = table.add_paper_differences(*experiment.table(results))
    plan_claims = getattr(experiment, "claims", None)
    families, planned = compare.rank_families(groups), plan_claims and plan_claims(list(groups))
    claims, claim_columns = compare.build_claims_table(groups, families, planned)
    score = read_first_score(results[0])
    note = (
        f"{score.title[0].upper()}{score.title[1:]} of the first group minus the second: "
        f"{'negative' if score.better < 0 else 'positive'} if the first is better."
    )
    tables = [*experiment.tables(results)] if hasattr(experiment, "tables") else []
    experiment_tables = [one.stem for one in tables]
    for scale, search in select_searches(experiment, groups).items():
        caption = f"Trials of each row, at rungs {', '.join(f'{rung:g}' for rung in search.rungs)} of its length."
        tables.append(NamedTable(f"search-{scale}", f"Search ({scale})", caption, *expected_best.build_table(search)))
    caption = "Means over seeds of the models at their milestones."
    content = evaluation_scores.build_milestone_table(runs)
    tables.append(NamedTable("milestones", evaluation_scores.MILESTONES, caption, *content))
    tables.append(paper_tables.build_table(getattr(experiment, "PAPER_TABLES", ()), groups))
    claims_table = NamedTable("claims", "Claims", note, claims, claim_columns)
    first = build_headline(results, rows, columns, groups, families)
    return Findings(rows, columns, claims_table, first, [entry for entry in tables if entry.rows], experiment_tables)


def select_searches(experiment, groups: Mapping[str, Sequence[dict]]) -> dict[str, Any]:
    """The searches (mlm/experiment/searches.py) by scale, each with the rows whose choices a group of runs has."""
    found = {}
    for scale, search in getattr(experiment, "SEARCHES", {}).items():
        rows = {
            name: row
            for name, row in search.rows.items()
            if name in groups and row.chosen.items() <= groups[name][0]["config"].items()
        }
        if rows:
            found[scale] = search._replace(rows=rows)
    return found


def write_files(root: Path, experiment, results: Sequence[dict]) -> Findings:
    """Writes root/table.*, claims.*, the tables beside them and, with vl-convert, figures/*; returns their content."""
    findings = collect_findings(experiment, results)
    table.write_table(root, findings.rows, findings.columns)
    if headline := findings.headline:
        table.write_table(root, headline.table.rows, headline.table.columns, headline.table.stem, headline.to_latex())
    for extra in (findings.claims, *findings.tables):
        table.write_table(root, extra.rows, extra.columns, extra.stem)
    styles = specs.assign_styles(findings.charts)
    for chart in findings.charts if extras.is_installed("vl_convert") else ():
        figures.draw_chart(root / "figures", chart, styles)
    return findings


def write_report(root: Path, experiment, results: Sequence[dict], num_points: int) -> Path:
    """Writes root/report.html and its files, and returns its path; without results it has the question alone."""
    findings = write_files(root, experiment, results) if results else Findings()
    return write_page(root, experiment, findings, results, num_points)


def write_page(root: Path, experiment, findings: Findings, results: Sequence[dict], num_points: int) -> Path:
    """Writes root/report.html and returns its path."""
    write_text(root / "report.html", render_page(root.name, experiment, findings, results, num_points))
    return root / "report.html"


def render_page(name: str, experiment, findings: Findings, results: Sequence[dict], num_points: int) -> str:
    """The HTML page of the sweep `name`."""
    question, _, rest = (experiment.__doc__ or name).partition("\n\n")
    results = series.assign_groups(experiment, results)
    same, different = split_settings(results)
    provenance = run_provenance.collect_provenance(results)
    styles = specs.assign_styles(findings.charts)
    return pages.render(
        "sweep.html",
        question=" ".join(question.split()),
        description=rest.strip(),
        entries=parse_entries(rest.strip(), name.rpartition("-")[2], getattr(experiment, "SCALES", ())),
        name=name,
        num_finished=len(results),
        num_points=num_points,
        findings=findings,
        headline=findings.headline,
        constants=find_constants(findings.headline) if findings.headline else (),
        limits=charts.find_limits(series.select_primary_score(results)) if results else (),
        readable=make_readable(findings.columns, results) if results else [],
        format_cell=table.format_cell,
        version=mlm.__version__,
        styles=styles,
        figure_endings=figures.ENDINGS,
        same=same,
        provenance=provenance,
        runs=collect_runs(results, different, provenance) if results else [],
        drawings=figures.collect_drawings(findings.charts, styles, findings.searches),
        vega=figures.bundle_vega() if findings.charts else "",
        collect_notes=table.collect_notes,
    )


def find_constants(headline: Headline) -> Collection[str]:
    """The names of the references that are lines through all rows of the headline."""
    rows, (first, *_) = headline.table.rows, headline.table.columns
    return row_charts.find_constants(rows, [row.get(first.name, "") for row in rows], headline.score)


def parse_entries(text: str, scale: str, scales: Collection[str]) -> list[tuple[str, str]]:
    """The terms of a description and their texts for a scale, lines joined unless they have aligned columns; or []."""
    first, *parts = re.split(r"^(\S+) {2,}(?=\S)", text.replace("`", ""), flags=re.MULTILINE)
    entries = []
    for term, content in zip(parts[::2], parts[1::2], strict=True):
        if re.search(r"\S {2}", content):
            entries.append((term, textwrap.dedent(" " * (len(term) + 3) + content).rstrip()))
            continue
        content = re.sub(r"--scale=\w+", f"--scale={scale}", " ".join(content.split()))
        start, *others = re.split(rf"\b({'|'.join(scales)}): ", content) if scale in scales else [content]
        own = [f"{name}: {part}" for name, part in zip(others[::2], others[1::2], strict=True) if name == scale]
        entries.append((term, start + " ".join(own or others)))
    return [] if first.strip() else entries


def split_settings(results: Sequence[dict]) -> tuple[dict, dict]:
    """Config fields that can change a result: (value of those that are equal in all runs, common value of the others).

    The common value is that of at least half of the runs that read the field, or None. A field that a run does not
    read, such as an LSTM's number of heads, has no value there; one that no run reads is left out.
    """
    same, different = {}, {}
    for name in fields.flatten(config.Config(), results_only=True):
        texts = [format_setting(result, name) for result in results]
        values = collections.Counter(text for text in texts if text != UNREAD)
        if len(values) == 1:
            same[name] = next(iter(values))
        elif values:
            value, count = values.most_common(1)[0]
            different[name] = value if 2 * count >= values.total() else None
    return same, different


def format_setting(result: dict, name: str) -> str:
    """The text of a config field of a run; UNREAD if the run does not read it ("unread" in its result)."""
    value = result["config"].get(name)
    return UNREAD if name in result.get("unread", ()) else "" if value is None else str(value)


def collect_runs(
    results: Sequence[dict], different: Mapping[str, str | None], provenance: run_provenance.RunProvenance
) -> list[RunColumn]:
    """The columns of the table of runs: the name, scores, config fields that differ, costs, provenance and times."""

    def measure(kind: str, columns: Sequence[Column]) -> Iterator[RunColumn]:
        for name, title, form, _ in columns:
            values = [result["evaluation"].get(name, result.get(name)) for result in results]
            if any(value is not None for value in values):
                yield RunColumn(name, title, kind, values, form)

    scores = [table.score_column(score, ".4f") for score in charts.select_curve_scores(results)]
    scores[1:1] = [Column(f"{column.name}_se", "standard error", column.format) for column in scores[:1]]
    configs = [
        RunColumn(name, name, "config", [format_setting(result, name) for result in results], "", common)
        for name, common in different.items()
    ]
    origins = {
        name: ([run[name] for run in provenance.runs], next(iter(groups))) for name, groups in provenance.mixed.items()
    }
    origins |= {"start (UTC)": (provenance.start_times, None), "end (UTC)": (provenance.end_times, None)}
    names = [Path(result["config"]["workdir"]).name for result in results]
    return [
        RunColumn("run", "run", "", names),
        RunColumn("group", "group", "group", list(map(series.group_name, results))),
        *measure("score", scores),
        *configs,
        *measure("cost", COST_COLUMNS),
        *(
            RunColumn(name, name, "provenance", values, "", common)
            for name, (values, common) in origins.items()
            if any(values)
        ),
    ]
