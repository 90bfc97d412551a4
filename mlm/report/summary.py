"""The table of an experiment: a row for each group of runs (report/series.py), and rows of references."""

import difflib
import math
from collections.abc import Callable, Sequence

from mlm.base import phases, warnings_
from mlm.base.estimates import FRACTION, UNBOUNDED, EvaluationMetric, Score, estimate_mean, read_scores
from mlm.base.groups import group_values
from mlm.base.recipe_constants import MIN_REALISED_RATE
from mlm.report import evaluation_scores, run_columns, series
from mlm.report.table import Column, score_column

COST_COLUMNS: dict[Column, Callable[[Sequence[dict]], float]] = {  # with the cell of a group of runs
    Column("seeds", "seeds", ",d"): len,
    Column("parameters", "parameters", ",d"): lambda seeds: seeds[0]["parameters"],
    Column("flops", "training FLOPs", ".2e"): lambda seeds: seeds[0]["flops"],
    Column("predictions", "predictions", ".3g"): lambda seeds: sum(run["predictions"] for run in seeds) / len(seeds),
}
EVALUATION_SET = "evaluation_set"
RATE_COLUMNS = (
    Column("target_rate", "masking rate, target", ".4f"),
    Column(
        "realised_rate",
        "masking rate, realised",
        ".4f",
        note="The masking rates differ by more than 1%: words that no mask can hold are left out, and short examples "
        "have few tokens to round to. Compare runs at equal realised rates.",
    ),
)
MIN_RATE_DIFFERENCE = 0.01  # of the target


def build_table(
    results: Sequence[dict],
    leading_columns: Sequence[Column],
    describe_group: Callable[[Sequence[dict]], dict],
    trailing_columns: Sequence[Column] = (),
) -> tuple[list[dict], list[Column]]:
    """The table (rows, columns): a row per group, then the references (unigram baseline, floor) of each evaluation set.

    Columns without any value are left out; a warning names those that seem misspelt. The masking rates have columns if
    a realised one differs from the target, and the evaluation set if there are several.

    Args:
        leading_columns: the experiment's columns, of which the first is text; those of `run_columns` are filled here.
        describe_group: (runs of a group) -> its cells in the other leading columns and in the trailing ones.
        trailing_columns: the experiment's columns after the scores.
    """
    primary = series.select_primary_score(results)
    sets = series.group_by_examples(results)
    evaluations = evaluation_scores.build_columns(results)
    groups = list(series.group_runs(results).values())
    described = [describe_group(seeds) for seeds in groups]
    own_columns = (*leading_columns, *trailing_columns)
    rows = [
        run_columns.fill_cells(cells, seeds, own_columns)
        | mark_cells(seeds)
        | build_group_cells(seeds, primary)
        | evaluation_scores.build_cells(seeds, evaluations)
        | evaluation_set_cell(seeds, sets)
        for cells, seeds in zip(described, groups, strict=True)
    ]
    warn_of_missing_columns(own_columns, described, rows)
    has_own_rates = bool({column.name for column in own_columns} & {column.name for column in RATE_COLUMNS})
    if not has_own_rates:
        rows = add_masking_rates(rows, groups)
    runs_by_reference = group_values(
        (tuple(row.items()), run)
        for evaluation_set in sets
        for row in build_reference_rows(evaluation_set.runs, leading_columns[0].name, primary, evaluations)
        for run in evaluation_set.runs
    )
    rows += [dict(cells) | evaluation_set_cell(runs, sets) for cells, runs in runs_by_reference.items()]
    described_sets = "; ".join(f"{each.name}: {each.description}" for each in sets)
    note = f"Examples and masks: {described_sets}. Scores on different examples or masks are not comparable."
    rates = sorted({rate for result in results for rate in series.evaluations_by_rate(result)})
    columns = (
        *leading_columns,
        *MARKS,
        Column(EVALUATION_SET, "evaluation set", note=note),
        *COST_COLUMNS,
        Column("sources", "sources", note="Sources: shares and epochs of the examples drawn, however long."),
        *(() if has_own_rates else RATE_COLUMNS),
        *build_score_columns(results),
        *evaluations.values(),
        *trailing_columns,
        *(
            Column(rate_column(rate), f"{primary.name.replace('_', ' ')} at {rate:.0%}", primary.format)
            for rate in rates
        ),
    )
    return rows, [column for column in columns if any(column.name in row for row in rows)]


def warn_of_missing_columns(columns: Sequence[Column], described: Sequence[dict], rows: Sequence[dict]) -> None:
    """Warns of an experiment's columns that no row has a value for, where a misspelt name is the likely reason."""
    names = {column.name for column in columns}
    unshown = {name for cells in described for name in cells} - names
    known = {name for row in rows for name in row}
    for column in columns:
        near = difflib.get_close_matches(column.name, sorted(unshown), n=1) or difflib.get_close_matches(
            column.name, sorted(known - names), n=1, cutoff=0.8
        )
        if column.name not in known and near:
            warnings_.warn_once(f"table: no row has a value for the column {column.name!r}; did you mean {near[0]!r}?")


def add_masking_rates(rows: Sequence[dict], groups: Sequence[Sequence[dict]]) -> list[dict]:
    """The rows of groups with the masking rates of their training, if one realised rate is not its target."""
    rates = [
        {
            "target_rate": phases.compute_mean_rate(series.read_config(seeds[0])),
            "realised_rate": estimate_mean(result["realised_rate"] for result in seeds),
        }
        if all(result["config"].get("objective") == "mlm" and "realised_rate" in result for result in seeds)
        else {}
        for seeds in groups
    ]
    differences = [abs(cells["realised_rate"].mean / cells["target_rate"] - 1) for cells in rates if cells]
    if max(differences, default=0.0) <= MIN_RATE_DIFFERENCE:
        return list(rows)
    return [row | cells for row, cells in zip(rows, rates, strict=True)]


def evaluation_set_cell(runs: Sequence[dict], sets: Sequence[series.EvaluationSet]) -> dict:
    """The names of the evaluation sets of some runs, if there are several sets."""
    names = [each.name for each in sets if {*map(id, runs)} & {*map(id, each.runs)}]
    return {EVALUATION_SET: ", ".join(names)} if len(sets) > 1 else {}


def mark_cells(seeds: Sequence[dict]) -> dict:
    """The cells of MARKS of a group: of each run that has the mark its seed, and why."""
    marks = {
        column.name: [f"seed {run['config'].get('seed')}: {reason}" for run in seeds for reason in describe(run)]
        for column, describe in MARKS.items()
    }
    return {name: "; ".join(reasons) for name, reasons in marks.items() if reasons}


def describe_leaks(run: dict) -> list[str]:
    """The excess losses of a run more than 3 standard errors below zero: without a leak by chance once in 700 runs."""
    values = run["evaluation"]
    return [
        f"{score.name} {values[score.name]:+.3f} ± {values[f'{score.name}_se']:.3f}"
        for score in read_scores(run)
        if score.columns[0].endswith(series.EXCESS)
        and score.name in values
        and values[score.name] < -3 * values[f"{score.name}_se"]
    ]


def describe_plateau(run: dict) -> list[str]:
    """The loss and the step of a run that was on the unigram's plateau."""
    plateau = run.get("plateau")
    return [f"{plateau['loss']:.2f} at step {plateau['step']:,}"] if plateau else []


def describe_unigram(run: dict) -> list[str]:
    """The loss of a run that ended no better than the unigram, and the unigram's."""
    values, (first, *others) = run["evaluation"], read_scores(run)
    return [
        f"{values[first.name]:.2f}, unigram {values[score.name]:.2f}"
        for score in others
        if (score.reference, score.reference_for) == (series.UNIGRAM, first.name)
        and score.name in values
        and not (values[first.name] - values[score.name]) * first.better > 0  # nor where it is NaN
    ]


def describe_shortfall(run: dict) -> list[str]:
    """The realised masking rate of a run that masked too little."""
    rate = run.get("realised_rate")
    is_short = rate is not None and rate < MIN_REALISED_RATE * phases.compute_mean_rate(series.read_config(run))
    return [f"{rate:.3f}"] if is_short else []


# Columns of marks that warn of a run, with why a run has one, in the order of a table.
MARKS: dict[Column, Callable[[dict], list[str]]] = {
    Column(
        "leaks",
        "below the floor",
        note="Below the floor by more than 3 standard errors over examples, which no model can be: "
        "something leaks, and the model has seen its targets.",
    ): describe_leaks,
    Column(
        "unigram_plateau",
        "on the unigram's plateau",
        note="On the unigram's plateau: at this step, a tenth of the run's or the end of a longer warm-up, the "
        "training loss was not 0.1 nats below that of token frequencies. Another learning rate, warm-up or larger "
        "initial weights may leave it sooner. Before a run's step 50 nothing is checked.",  # by training/run/hooks.py
    ): describe_plateau,
    Column(
        "above_unigram",
        "no better than token frequencies",
        note="No better than token frequencies: at the end the held-out loss was at least the unigram's. Such a run "
        "has learnt nothing that a comparison could be of: train it for longer, or with another recipe.",
    ): describe_unigram,
    Column(
        "rate_shortfall",
        "masked too little",
        note="Masked too little: fewer than nine tenths of the tokens that the masking rate asks for were masked, "
        "since words have too many. Such a run says nothing of that rate.",
    ): describe_shortfall,
}


def select_model_scores(results: Sequence[dict]) -> list[Score]:
    """The scores of the models; references and counts are left out."""
    return [score for score in series.collect_scores(results) if not score.reference and (score.chart or score.better)]


def build_score_columns(results: Sequence[dict]) -> list[Column]:
    """A column for each score of the models, and one for the improvement of the first over its first reference."""
    columns = [score_column(score) for score in select_model_scores(results)]
    if reference := find_baseline(results):
        first = series.collect_scores(results)[0]
        name, unit = improvement_column(first, reference), first.unit.split()[0] if first.unit else first.title
        columns.append(Column(name, f"{unit} {name.replace('_', ' ')}", first.format))
    return columns


def find_baseline(results: Sequence[dict]) -> Score | None:
    """The first reference of the first score."""
    return next(iter(series.find_references(results, series.collect_scores(results)[0].name)), None)


def improvement_column(score: Score, reference: Score) -> str:
    """The name of the column of improvements on a reference."""
    return f"{'below' if score.better < 0 else 'above'} {reference.reference}".replace(" ", "_")


def rate_column(rate: float) -> str:
    """The name of the column of a masking rate of the evaluation."""
    return f"at_{100 * rate:g}"


def build_group_cells(seeds: Sequence[dict], primary: Score) -> dict:
    """The cells of a group: costs, scores, and the primary score at each masking rate."""
    evaluations = [result["evaluation"] for result in seeds]
    row: dict = {column.name: measure(seeds) for column, measure in COST_COLUMNS.items()}
    if sources := seeds[0].get("sources"):
        parts = (f"{name} {own['share']:.0%} ({own['epochs']:.3g} epochs)" for name, own in sources.items())
        row["sources"] = ", ".join(parts)
    for score in select_model_scores(seeds):
        if series.is_common(seeds, score):
            row |= score_cells(score.name, score, evaluations)
    first = series.collect_scores(seeds)[0]
    if series.select_primary_score(seeds) == first and (reference := find_baseline(seeds)):
        row[improvement_column(first, reference)] = estimate_mean(
            first.better * (evaluation[first.name] - evaluation[reference.name]) for evaluation in evaluations
        )
    runs = [series.evaluations_by_rate(result) for result in seeds]
    for rate in sorted(set.intersection(*map(set, runs))):
        if all(primary.name in by_rate[rate] for by_rate in runs):
            row |= score_cells(rate_column(rate), primary, [by_rate[rate] for by_rate in runs])
    return row


def score_cells(name: str, score: Score, evaluations: Sequence[dict]) -> dict:
    """The mean over seeds; a single seed also has NAME_se, its standard error over held-out examples."""
    values = (evaluation[score.name] for evaluation in evaluations)
    cells = {name: estimate_mean(values, FRACTION if score.share else UNBOUNDED)}
    return cells | ({f"{name}_se": evaluations[0][f"{score.name}_se"]} if len(evaluations) == 1 else {})


def build_reference_rows(
    results: Sequence[dict], name_column: str, primary: Score, evaluations: dict[EvaluationMetric, Column]
) -> list[dict]:
    """A row for each reference, such as the unigram baseline and the floor, of the runs of one evaluation set.

    A reference that differs between runs, such as the unigram loss of other training texts, is shown as a range. If the
    primary score is an excess loss, the references get one, too. name_column: that of the reference's name.
    """
    scores = series.collect_scores(results)
    floor_score = series.find_floor(results, scores[0].name) if primary.columns[0] == series.EXCESS else None
    floor = None if floor_score is None else series.find_shared_value(results, floor_score)
    floor_by_rate = {} if floor_score is None else series.reference_by_rate(results, floor_score)
    rows: dict[str, dict] = {}
    for score in scores:
        values = [result["evaluation"][score.name] for result in results if score.name in result["evaluation"]]
        if not score.reference or len(values) < len(results):
            continue
        row = rows.setdefault(score.reference, {name_column: score.reference})
        shared = series.find_shared_value(results, score)
        value_range = " to ".join(format(end, score.format) for end in (min(values), max(values)))
        row[score.reference_for] = value_range if shared is None else shared
        if score.reference_for == scores[0].name:
            row |= {
                rate_column(rate): value - floor_by_rate.get(rate, 0.0)
                for rate, value in series.reference_by_rate(results, score).items()
            }
            if floor is not None and shared is not None and score.unit == primary.unit:
                row[primary.name] = shared - floor
    for name, cells in evaluation_scores.build_reference_cells(results, evaluations).items():
        rows[name] = rows.get(name, {name_column: name}) | cells
    return [perplexity_cells(row, scores) | row for row in rows.values()]


def perplexity_cells(row: dict, scores: Sequence[Score]) -> dict:
    """The perplexities of a reference, from its losses."""
    means = {tuple(score.columns): score.name for score in scores if score.function == "mean"}
    names = {
        score.name: means.get(tuple(score.columns))
        for score in scores
        if score.function == "exp_mean" and not score.reference
    }
    return {perplexity: math.exp(row[mean]) for perplexity, mean in names.items() if isinstance(row.get(mean), float)}
