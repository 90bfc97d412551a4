"""The headline of a sweep: a sentence on which model is best and how sure that is, and a table of few columns."""

import collections
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mlm.base.estimates import Estimate, Score, estimate_mean
from mlm.report import compare, evaluation_scores, excess_loss, run_columns, series, summary
from mlm.report.compare import MAX_P
from mlm.report.table import (
    P_VALUE,
    PERCENT,
    QUANTITY,
    Column,
    NamedTable,
    bounds_sign,
    collect_notes,
    format_cell,
    format_count,
    replace_signs,
    starts_references,
    to_grid,
)

SOURCE_FIELDS = ("data.corpus", "data.tfds_name", "data.path", "data.validation_path")
MAX_COLUMNS, MAX_EVALUATIONS, MAX_NAMED, MAX_SETS = 8, 2, 3, 3
TEX_ESCAPES = {sign: f"\\{sign}" for sign in "%&_#${}"}
TEX_ESCAPES |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
RECIPE = ("learning_rate", "batch")  # columns that name a model only where no other does
SPEED = "tokens_per_second"  # the column that names none: it differs from run to run
TEST = (
    "Student's test on paired seeds, two-sided, with Holm's correction for all pairs of models that have the same "
    "examples"
)
BEST, UNDECIDED, WORSE = "best", "undecided", "worse"
DIFFERENCE, P = "difference", "p"  # columns of an experiment whose own rule compares each row with another
VERDICT = Column(
    "verdict",
    "against the best",
    note=f"Against the best: {WORSE} where p is below {MAX_P:g}, otherwise {UNDECIDED} ({TEST}).",
)


class Headline(NamedTuple):
    """What a sweep found."""

    sentence: str
    table: NamedTable
    score: str  # the column that models are ranked by

    @property
    def tested(self) -> tuple[str, ...]:
        """The columns that say how a row compares: those in bold in the best rows."""
        names = [column.name for column in self.table.columns]
        return (DIFFERENCE, P) if DIFFERENCE in names else (self.score, VERDICT.name)

    @property
    def row_kinds(self) -> dict[int, str]:
        """Returns "best" by the index of each best model or clear difference, "rule" by that of the first reference."""
        rows = self.table.rows
        best = {i: BEST for i, row in enumerate(rows) if row.get(VERDICT.name) == BEST or is_clear(row)}
        return best | {i: "rule" for i in range(len(rows)) if starts_references(rows, i)}

    def to_latex(self) -> str:
        """The table for a paper: the best in bold, a dagger at models not told from it, and a line for the caption."""
        rows, columns = self.table.rows, [column for column in self.table.columns if column != VERDICT]
        notes = collect_notes(rows, columns)
        if VERDICT in self.table.columns:
            notes.insert(0, f"Bold: the best; †: not told from it, p of {MAX_P:g} or more ({TEST}).")
        form = next((column.format for column in columns if column.name == self.score), "")

        def mark(row: dict) -> dict:
            verdict, cell = row.get(VERDICT.name, ""), format_cell(row.get(self.score), form)
            return row | {self.score: f"**{cell}**" if verdict == BEST else cell + "†" * verdict.startswith(UNDECIDED)}

        lines = to_grid(list(map(mark, rows)), columns, "latex_booktabs").splitlines()
        for index in (index for index, kind in self.row_kinds.items() if kind == "rule"):
            lines.insert(lines.index("\\midrule") + 1 + index, "\\midrule")
        caption = "".join(TEX_ESCAPES.get(sign, sign) for sign in " ".join([self.sentence, *notes]))
        text = "\n".join([*lines, f"% \\caption{{{caption}}}"])
        return replace_signs(re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text))


def is_clear(row: dict) -> bool:
    """Whether an experiment's own rule tells a row's difference from chance."""
    return row.get(P) is not None and row[P] < MAX_P


def is_measured(row: dict, score: Score) -> bool:
    """Whether a row has a score, which is NaN in an old run that diverged."""
    return isinstance(value := row.get(score.name), Estimate) and math.isfinite(value.mean)


class Ranking(NamedTuple):
    """The models that were evaluated on the same examples, the best first."""

    rows: list[dict]  # of the experiment's table
    p_values: list[float | None]  # of each against the best; None: no test


def build_headline(
    results: Sequence[dict],
    rows: Sequence[dict],
    columns: Sequence[Column],
    groups: Mapping[str, Sequence[dict]],
    families: Sequence[compare.Family],
) -> Headline:
    """The headline of finished runs, their experiment's table, their groups by name, and `compare.rank_families`."""
    columns = make_readable(columns, results)
    primary = series.select_primary_score(results)
    models = [row for row in rows if "seeds" in row]
    names = select_name_columns(models, columns)
    compared = [row for row in models if row.get(P) is not None and DIFFERENCE in row]
    rankings = [] if compared else rank_models(models, groups, families, primary)
    judged = [
        row | {VERDICT.name: verdict}
        for ranking in rankings
        for row, verdict in zip(ranking.rows, judge(ranking.p_values), strict=True)
    ]
    placed = {id(row) for ranking in rankings for row in ranking.rows}
    references = sort_references([row for row in rows if "seeds" not in row], primary)
    if models and columns[0] not in names:  # where references have their names
        references = [{names[0].name: row.get(columns[0].name, "")} | row for row in references]
    shown = [*judged, *(row for row in models if id(row) not in placed), *references]
    compares = (summary.EVALUATION_SET, primary.name, VERDICT.name, *((DIFFERENCE, P) if compared else ()))
    wanted = [*(column.name for column in names), *compares, *select_scores(results, columns, models, primary)]
    wanted += ["seeds"] if any(one.name == "size" for one in names) else ["parameters", "seeds"]  # a size says as much
    by_name = {column.name: column for column in (*columns, VERDICT)}
    kept = [by_name[name] for name in wanted if name in by_name] if models else list(columns)
    kept = [column for column in kept if any(row.get(column.name) not in (None, "") for row in shown)]
    ranks = [primary.name, *wanted[: len(names)], *compares, "seeds", *wanted, *by_name]  # the most needed first
    first = sorted(kept, key=lambda column: ranks.index(column.name))[:MAX_COLUMNS]
    kept = [column for column in kept if column in first]
    scored = [column.name for column in kept if column not in names and column.name != summary.EVALUATION_SET]
    shown = [row for row in shown if "seeds" in row or any(row.get(name) not in (None, "") for name in scored)]
    if compared:
        sentences = [describe_differences(compared, models, columns, names, primary)]
    else:
        labels = label_sets(results) if len(rankings) > 1 else {}
        sentences = [describe_ranking(ranking, names, primary, labels) for ranking in rankings[:MAX_SETS]]
        if len(rankings) > MAX_SETS:
            sentences.append(f"{format_count(len(rankings) - MAX_SETS, 'more set')} of examples: see the table.")
        if len(rankings) > 1:
            sentences.append("Scores on different examples do not compare.")
    if any("size" in row for row in models):
        sentences.append(f"Sizes: {', '.join(run_columns.describe_sizes(results).values())}.")
    sentence = " ".join([*sentences, *describe_data(results, models, primary), *describe_faults(models)])
    order = f"bold: p below {MAX_P:g}" if compared else "the best first"
    caption = f"Means over seeds of the finished points, {order}."
    return Headline(sentence, NamedTable("headline", "Headline", caption, shown, kept), primary.name)


def make_readable(columns: Sequence[Column], results: Sequence[dict]) -> list[Column]:
    """The columns as people read them: shares in per cent, large counts with an SI prefix."""
    shares = {score.name for score in series.collect_scores(results) if score.share and not score.reference}
    shares -= {column.name for column in summary.RATE_COLUMNS}
    shares |= {column.name for column in excess_loss.PROBES}
    readable = []
    for column in columns:
        if column.name.removesuffix("_difference").removesuffix("_paper") in shares and "%" not in column.title:
            column = column._replace(title=f"{column.title} (%)", format="+" * ("+" in column.format) + PERCENT)
        elif column.name == "parameters" or column.format in (".3g", ".2e"):
            column = column._replace(format=QUANTITY)
        elif column.name == P:
            column = column._replace(format=P_VALUE)
        readable.append(column)
    return readable


def select_name_columns(models: Sequence[dict], columns: Sequence[Column]) -> list[Column]:
    """The first of the experiment's columns that tell the models apart, as few as possible; at least the first one."""
    chosen: list[Column] = []

    def count(candidates: Sequence[Column]) -> int:
        return len({tuple(format_cell(row.get(name), form) for name, _, form, _ in candidates) for row in models})

    others = {*(column.name for column in summary.MARKS), SPEED}
    leading = list(itertools.takewhile(lambda column: column.name != "seeds", columns))
    leading = [column for column in leading if column.name not in others]
    for column in sorted(leading, key=lambda column: column.name in RECIPE):
        is_measured = any(isinstance(row.get(column.name), Estimate) for row in models)
        if not is_measured and count([*chosen, column]) > count(chosen):
            chosen.append(column)
    return chosen or leading[:1]


def select_scores(
    results: Sequence[dict], columns: Sequence[Column], models: Sequence[dict], primary: Score
) -> list[str]:
    """The columns of the first accuracy, and of the first evaluations that at least half of the models have."""
    names = {column.name for column in columns}
    shares = [score.name for score in series.collect_scores(results) if score.share and not score.reference]
    evaluations = [*evaluation_scores.build_columns(results).values(), *excess_loss.PROBES]
    accuracies = [name for name in shares if name in names and name != primary.name]
    counts = {name: sum(isinstance(row.get(name), Estimate) for row in models) for name in names}
    common = [column.name for column in evaluations if 2 * counts.get(column.name, -1) >= len(models)]
    return [*accuracies[:1], *common[:MAX_EVALUATIONS]]


def rank_models(
    models: Sequence[dict], groups: Mapping[str, Sequence[dict]], families: Sequence[compare.Family], primary: Score
) -> list[Ranking]:
    """The models of each family; without families, all of them by primary score if they have the same examples."""
    scored = [row for row in models if is_measured(row, primary)]
    rows = match_rows(scored, groups, primary)
    diverged = sum(
        not all(math.isfinite(run["evaluation"].get(primary.name, 0)) for run in runs) for runs in groups.values()
    )
    if len(scored) == len(rows) == len(groups) - diverged and families:
        return [
            Ranking([rows[name] for name in names], [p_by_pair.get(frozenset((names[0], name))) for name in names])
            for names, p_by_pair in families
        ]
    if not scored or any(summary.EVALUATION_SET in row for row in scored):
        return []
    ordered = sorted(scored, key=lambda row: -primary.better * row[primary.name].mean)
    return [Ranking(ordered, [None] * len(ordered))]


def match_rows(scored: Sequence[dict], groups: Mapping[str, Sequence[dict]], primary: Score) -> dict[str, dict]:
    """The row of each group by its name: that with the group's mean, since a table has any order.

    Of rows with one mean it is that whose interval is nearest to the group's.
    """
    rows, left = {}, list(scored)
    for name, runs in groups.items():
        value = estimate_mean(run["evaluation"].get(primary.name, math.nan) for run in runs)
        same = [row for row in left if math.isclose(row[primary.name].mean, value.mean, rel_tol=1e-9)]
        found = min(same, key=lambda row: abs((row[primary.name].low or 0) - (value.low or 0)), default=None)
        if found is not None:
            rows[name] = found
            left = [row for row in left if row is not found]
    return rows


def judge(p_values: Sequence[float | None]) -> list[str]:
    """The verdicts on the models of a ranking; none where none could be tested."""
    if not any(p is not None for p in p_values):
        return [""] * len(p_values)
    described = [f"{WORSE if p < MAX_P else UNDECIDED}, p {p:.2g}" if p is not None else "" for p in p_values[1:]]
    return [BEST, *(verdict.removesuffix(", p 1") for verdict in described)]


def sort_references(references: Sequence[dict], primary: Score) -> list[dict]:
    """The rows of references by examples, the best first; those without the primary score last."""

    def place(row: dict) -> tuple[str, float]:
        value = row.get(primary.name)
        return row.get(summary.EVALUATION_SET, ""), -primary.better * value if isinstance(value, float) else math.inf

    return sorted(references, key=place)


def label_sets(results: Sequence[dict]) -> dict[str, str]:
    """What to call each set of examples: by its letter, and by its objectives or corpus, if no other set has them."""
    sets = series.group_by_examples(results)
    labels = {each.name: f"examples {each.name}" for each in sets}
    for describe in (lambda config: config["objective"], name_corpus):
        members = {each.name: sorted({describe(run["config"]) for run in each.runs}) for each in sets}
        counts = collections.Counter(itertools.chain.from_iterable(members.values()))
        labels |= {
            name: f"examples {name} ({', '.join(own)})"
            for name, own in members.items()
            if all(counts[one] == 1 for one in own)
        }
    return labels


def name_row(row: dict, names: Sequence[Column]) -> str:
    """A model as a sentence names it: by its cells in some columns."""
    cells = [(format_cell(row.get(column.name), column.format), column) for column in names]
    first, *rest = [f"{cell} {column.title}" if column.format else cell for cell, column in cells if cell]
    return first + (f" ({', '.join(rest)})" if rest else "")


def describe_score(row: dict, primary: Score) -> str:
    """A row's primary score with what it is."""
    cell = format_cell(row[primary.name], primary.format) + (f" {primary.unit.split()[0]}" if primary.unit else "")
    return f"{cell} above the floor" if primary.columns[0] == series.EXCESS else f"{primary.title} {cell}"


def join_names(names: Sequence[str], limit: int = MAX_NAMED) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def describe_ranking(ranking: Ranking, names: Sequence[Column], primary: Score, labels: Mapping[str, str]) -> str:
    """A sentence: the best model, its score, and over which others its lead may be chance.

    labels: what to call each set of examples; if there are several, the sentence says how many models, not which.
    """
    best, *others = ranking.rows
    prefix, limit = (f"On {labels[best[summary.EVALUATION_SET]]}, ", 1) if labels else ("", MAX_NAMED)
    # What all of these models share tells none of them apart, such as the text that they read.
    cells = {one: {format_cell(row.get(one.name), one.format) for row in ranking.rows} for one in names}
    names = [one for one in names if one is names[0] or len(cells[one]) > 1] if others else names
    name, score = name_row(best, names), describe_score(best, primary)
    if not others:
        return f"{prefix}{name}: {score} ({format_count(best['seeds'], 'seed')})."
    if not any(p is not None for p in ranking.p_values):
        rest = [f"{name_row(row, names)} {format_cell(row[primary.name], primary.format)}" for row in others]
        seeds = format_count(max(row["seeds"] for row in ranking.rows), "seed")
        end = f"{join_names(rest, limit)}; {seeds}, so another seed may change the order"
        return f"{prefix}{name} is ahead: {score}, then {end}."
    undecided = [row for row, p in zip(others, ranking.p_values[1:], strict=True) if p is None or p >= MAX_P]
    worse = len(others) - len(undecided)
    if not undecided:
        others_are = f"each of the {worse} others" if worse > 1 else "the other"
        return f"{prefix}{name} is best: {score}; {others_are} is worse (p below {MAX_P:g})."
    all_are = f"all {len(others)} others" if len(others) > 1 else "the other"
    near = f"{len(undecided)} of {len(others)} others" if worse else all_are
    if not labels:
        near += f" ({join_names([name_row(row, names) for row in undecided])})"
    end = f"; {'the other is' if worse == 1 else f'the other {worse} are'} worse (p below {MAX_P:g})" if worse else ""
    return f"{prefix}{name} is ahead: {score}; its lead over {near} may be chance{end}."


def describe_differences(
    compared: Sequence[dict], models: Sequence[dict], columns: Sequence[Column], names: Sequence[Column], primary: Score
) -> str:
    """Sentences on the rows that an experiment's rule compares: the largest differences, and the best row."""
    column = next(column for column in columns if column.name == DIFFERENCE)
    clear = sorted(filter(is_clear, compared), key=lambda row: -abs(row[DIFFERENCE].mean))
    largest = [f"{name_row(row, names)} {row[DIFFERENCE].mean:{column.format}}" for row in clear]
    title = column.title.replace(" (", ", ").removesuffix(")")
    count = f"{len(clear) or 'None'} of {format_count(len(compared), 'difference')} ({title})"
    found = f"{count} {'is' if len(clear) < 2 else 'are'} more than chance (p below {MAX_P:g})"
    found += f"{', the largest' if len(clear) > MAX_NAMED else ''}: {join_names(largest)}" if clear else ""
    for sign, word in ((1, "positive"), (-1, "negative")):
        if not clear and len(compared) > 1 and all(sign * row[DIFFERENCE].mean > 0 for row in compared):
            found += f", though all are {word}"
    scored = [row for row in models if is_measured(row, primary)]
    if not scored:
        return f"{found}."
    best = max(scored, key=lambda row: primary.better * row[primary.name].mean)
    order = "Lowest" if primary.better < 0 else "Highest"
    end = f"{order} in the mean: {name_row(best, names)}, {describe_score(best, primary)}."
    return f"{found}. {end}"


def describe_data(results: Sequence[dict], models: Sequence[dict], primary: Score) -> list[str]:
    """A sentence on the examples of the primary score and on its intervals; none where sets differ in their number."""
    config, counts = results[0]["config"], {result["evaluation"].get("rows") for result in results}
    sources = {tuple(result["config"].get(name) for name in SOURCE_FIELDS) for result in results}
    if counts == {None} or len(counts) > 1 or len(sources) > 1:
        return []
    floor = ", whose best possible loss, the floor, is known" if primary.columns[0] == series.EXCESS else ""
    values = [value for row in models if isinstance(value := row.get(primary.name), Estimate) and value.low is not None]
    num_seeds = {row["seeds"] for row in models}
    count = format_count(num_seeds.pop(), "seed") if len(num_seeds) == 1 else "seeds"
    title = values[0].bounds_title.replace("seeds", count) if values else ""
    bounds = f"; {bounds_sign(values[0])}: {title}" if values else ""
    return [f"Measured on {format_count(counts.pop(), 'held-out example')} of {name_corpus(config)}{floor}{bounds}."]


def name_corpus(config: Mapping) -> str:
    """What a config's held-out examples are of: the last two parts of a path."""
    corpora = {"language": "the built-in synthetic language", "tfds": config.get("data.tfds_name")}
    corpora["text"] = "/".join(str(config.get("data.validation_path") or config.get("data.path")).split("/")[-2:])
    return corpora.get(config["data.corpus"]) or f"data.corpus={config['data.corpus']}"


def describe_faults(models: Sequence[dict]) -> list[str]:
    """Sentences on models of which a comparison says nothing."""
    faults = {
        "above_unigram": "learnt nothing beyond token frequencies",
        "leaks": "lie below the floor, which no model can: they have seen their targets",
        "rate_shortfall": "masked less than nine tenths of what their rate asks for",
        "unigram_plateau": "had a seed still on the unigram's plateau after a tenth of its steps or its warm-up",
    }
    counts = {name: sum(name in row for row in models) for name in faults}
    return [f"{count} of {len(models)} models {faults[name]}." for name, count in counts.items() if count]
