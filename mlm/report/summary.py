"""The table of an experiment: a row for each group of runs that differ in their seed alone, and what they are beside.

A run is what `series` says. Which scores there are, and what they are called, the runs say.
"""
import math
from collections.abc import Callable, Sequence

from mlm.base.estimates import Score, estimate
from mlm.report import evaluation_columns, rows, series
from mlm.report.table import Column, scored

SPENT = (Column("seeds", "seeds", ",d"), Column("parameters", "parameters", ",d"),
         Column("flops", "training FLOPs", ".2e"), Column("predictions", "predictions", ".3g"))
JUDGED = "judged_on"
LEAKS = Column("leaks", "below the floor", note="Below the floor by more than 3 standard errors over rows, which no "
               "model can be: something leaks, and it has seen what it was asked for.")


def table(results: Sequence[dict], own: Sequence[Column], about: Callable[[Sequence[dict]], dict],
          more: Sequence[Column] = ()) -> tuple[list[dict], list[Column]]:
    """Rows in the order the groups come, then the references (unigram baseline, optimum) of what they were judged on.

    own: the experiment's columns, the first of them text; more: those that stand after the scores; about: the runs of
    a group -> its cells in both. Columns that no row fills are left out. Runs evaluated at further rates
    (config.eval.mask_rates) have a column for each: the excess over the floor there where that is known, else the first
    score. Where runs were judged on different rows or masks a column says on which, and there are references of each.
    What the runs were asked since (mlm/cli/evaluate.py) stands in the columns of `asked`. A run that is below its floor by
    more than chance is named in a column of its own.
    """
    value, sets, since = series.judging(results), rows.judged(results), evaluation_columns.columns(results)
    made = [about(seeds) | leaking(seeds) | measured(seeds, value) | evaluation_columns.cells(seeds, since) |
            judged_on(seeds, sets) for seeds in series.groups(results).values()]
    for one in sets:
        made += [row | judged_on(one.runs, sets) for row in references(one.runs, own[0].name, value, since)]
    further = sorted({rate for result in results for rate in series.rates(result)})
    columns = (*own, LEAKS, Column(JUDGED, "judged on", note=rows.note(sets)), *SPENT, *columns_of(results),
               *since.values(), *more,
               *(Column(at(rate), f"{value.name} at {rate:.0%}", value.form) for rate in further))
    return made, [column for column in columns if any(column.name in row for row in made)]


def judged_on(runs: Sequence[dict], sets: Sequence[rows.Judged]) -> dict:
    """Which of several sets of rows and masks some runs were judged on."""
    mine = [one.name for one in sets if {id(run) for run in runs} & {id(run) for run in one.runs}]
    return {JUDGED: ", ".join(mine)} if len(sets) > 1 else {}


def leaking(seeds: Sequence[dict]) -> dict:
    """The cell of a group of which some run is below a floor: the seeds, and by how much."""
    found = [f"seed {result['config'].get('seed')}: {score.name} {result['evaluation'][score.name]:+.3f} ± "
             f"{result['evaluation'][f'{score.name}_se']:.3f}" for result in seeds for score in series.leaks(result)]
    return {LEAKS.name: "; ".join(found)} if found else {}


def models(results: Sequence[dict]) -> list[Score]:
    """The scores that say how good the models are: neither references, nor the books of what was asked."""
    return [score for score in series.scores(results) if not score.reference and (score.chart or score.better)]


def columns_of(results: Sequence[dict]) -> list[Column]:
    """A column for each score of the models, and one for how much better the first is than its first reference."""
    columns = [scored(score) for score in models(results)]
    if reference := baseline(results):
        first = series.scores(results)[0]
        unit = first.unit.split()[0] if first.unit else first.title
        columns.append(Column(lead(first, reference), f"{unit} {lead(first, reference).replace('_', ' ')}", first.form))
    return columns


def baseline(results: Sequence[dict]) -> Score | None:
    """The first reference of the first score."""
    return next(iter(series.beside(results, series.scores(results)[0].name)), None)


def lead(score: Score, reference: Score) -> str:
    return f"{'below' if score.better < 0 else 'above'} {reference.reference}".replace(" ", "_")


def at(rate: float) -> str:
    return f"at_{100 * rate:g}"


def measured(seeds: Sequence[dict], value: Score) -> dict:
    """The cells that follow from a group's results; value: the score to show at further rates."""
    held_out = [result["evaluation"] for result in seeds]
    row = {"seeds": len(seeds), "parameters": seeds[0]["parameters"], "flops": seeds[0]["flops"],
           "predictions": sum(result["predictions"] for result in seeds) / len(seeds)}
    for score in models(seeds):
        if series.common(seeds, score):
            row |= cell(score.name, score, held_out)
    first = series.scores(seeds)[0]
    if series.judging(seeds) == first and (reference := baseline(seeds)):
        row[lead(first, reference)] = estimate(first.better * (one[first.name] - one[reference.name])
                                               for one in held_out)
    further = [series.rates(result) for result in seeds]
    for rate in sorted(set.intersection(*map(set, further))):
        if all(value.name in of_run[rate] for of_run in further):
            row |= cell(at(rate), value, [of_run[rate] for of_run in further])
    return row


def cell(name: str, score: Score, evaluations: Sequence[dict]) -> dict:
    """The value over seeds; that of one seed has its standard error over held-out rows beside it, under NAME_se."""
    found = {name: estimate((one[score.name] for one in evaluations), series.within(score))}
    return found | ({f"{name}_se": evaluations[0][f"{score.name}_se"]} if len(evaluations) == 1 else {})


def references(
    results: Sequence[dict], title: str, value: Score, since: dict[evaluation_columns.Text, Column]
) -> list[dict]:
    """A row for each reference of runs that were judged on the same rows: the unigram baseline, and the best there is.

    title: the column that names it; value: the score that says how far from the optimum it is; since: the columns of
    what the runs were asked since. A reference that is not
    the same for all, such as the unigram's of runs that were trained on other texts, is given from its least to its
    most.
    """
    every = series.scores(results)
    optimum = series.optimum(results, every[0].name) if value.columns[0] == series.EXCESS else None
    floor = None if optimum is None else series.same(results, optimum)
    floors = {} if optimum is None else series.at_rates(results, optimum)
    made: dict[str, dict] = {}
    for score in every:
        values = [result["evaluation"][score.name] for result in results if score.name in result["evaluation"]]
        if not score.reference or len(values) < len(results):
            continue
        row, found = made.setdefault(score.reference, {title: score.reference}), series.same(results, score)
        row[score.beside] = found if found is not None else " to ".join(
            format(end, score.form) for end in (min(values), max(values)))
        if score.beside == every[0].name:
            row |= {at(rate): one - floors.get(rate, 0.0) for rate, one in series.at_rates(results, score).items()}
            alike = floor is not None and found is not None and score.unit == value.unit
            row |= {value.name: found - floor} if alike else {}
    for name, cells in evaluation_columns.references(results, since).items():
        made[name] = made.get(name, {title: name}) | cells
    return [exponentials(row, every) | row for row in made.values()]


def exponentials(row: dict, scores: Sequence[Score]) -> dict:
    """The cells of a reference that follow from its others: the perplexity from the loss."""
    means = {tuple(score.columns): score.name for score in scores if score.of == "mean"}
    names = {score.name: means.get(tuple(score.columns)) for score in scores
             if score.of == "exp_mean" and not score.reference}
    return {power: math.exp(row[mean]) for power, mean in names.items() if isinstance(row.get(mean), float)}
