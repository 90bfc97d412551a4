"""The table of an experiment: a row for each group of runs that differ in their seed alone, and what they are beside.

A run is what `series` says. Which scores there are, and what they are called, the runs say.
"""
import math
from collections.abc import Callable, Sequence

from mlm.base.estimates import Estimate, Score, estimate
from mlm.report import series
from mlm.report.table import Column, scored

SPENT = (Column("seeds", "seeds", ",d"), Column("parameters", "parameters", ",d"),
         Column("flops", "training FLOPs", ".2e"), Column("predictions", "predictions", ".3g"))
ASKED = (Column("pseudo_perplexity", "pseudo-perplexity per word", ".2f"), Column("blimp", "BLiMP (%)", ".1f"))


def table(results: Sequence[dict], own: Sequence[Column], about: Callable[[Sequence[dict]], dict],
          more: Sequence[Column] = ()) -> tuple[list[dict], list[Column]]:
    """Rows in the order the groups come, then the references (unigram baseline, optimum) that all runs share.

    own: the experiment's columns, the first of them text; more: those that stand after the scores; about: the runs of
    a group -> its cells in both. Columns that no row fills are left out. Runs evaluated at further rates
    (config.eval.rates) have a column for each: the excess over the floor there where that is known, else the first
    score. The sentences' pseudo-perplexity and BLiMP's accuracy stand there for groups of which all runs are judged
    (launch/judge.py), by PLL-word-l2r.
    """
    value = series.judging(results)
    rows = [about(seeds) | measured(seeds, value) for seeds in series.groups(results).values()]
    rows += references(results, own[0].name)
    rates = sorted({rate for result in results for rate in series.rates(result)})
    columns = (*own, *SPENT, *columns_of(results), *ASKED, *more,
               *(Column(at(rate), f"{value.name} at {rate:.0%}", value.form) for rate in rates))
    return rows, [column for column in columns if any(column.name in row for row in rows)]


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
            row[score.name] = cell(held_out, score)
    first = series.scores(seeds)[0]
    if series.judging(seeds) == first and (reference := baseline(seeds)):
        row[lead(first, reference)] = estimate(first.better * (one[first.name] - one[reference.name])
                                               for one in held_out)
    asked = [series.rates(result) for result in seeds]
    for rate in sorted(set.intersection(*map(set, asked))):
        if all(value.name in of_run[rate] for of_run in asked):
            row[at(rate)] = cell([of_run[rate] for of_run in asked], value)
    return row | judgements(seeds)


def cell(evaluations: Sequence[dict], score: Score) -> Estimate:
    return series.judged([one[score.name] for one in evaluations], [one[f"{score.name}_se"] for one in evaluations])


def judgements(seeds: Sequence[dict]) -> dict:
    """What a group's runs answered since, on texts that all of them were asked."""
    row = {}
    sentences = [result["answers"].get("sentences", {}).get("all", {}) for result in seeds]
    if shared([one.get("sha256") for one in sentences]):
        by_word = [one["pll_word_l2r"] for one in sentences]
        row["pseudo_perplexity"] = series.judged([one["word_perplexity"] for one in by_word],
                                                 [one["word_perplexity_se"] for one in by_word])
    if shared([{name: one["sha256"] for name, one in result["answers"].get("pairs", {}).items()} for result in seeds]):
        pairs = [result["summary"]["pairs"]["overall"] for result in seeds]
        row["blimp"] = series.judged([100 * one["pll_word_l2r_accuracy"] for one in pairs],
                                     [100 * one["pll_word_l2r_accuracy_se"] for one in pairs])
    return row


def shared(texts: Sequence) -> bool:
    return bool(texts[0]) and all(of_run == texts[0] for of_run in texts)


def references(results: Sequence[dict], title: str) -> list[dict]:
    """A row for each reference that all runs share: the unigram baseline, and the best that there can be.

    Runs that were judged on different rows share none.
    """
    every, value = series.scores(results), series.judging(results)
    optimum = series.optimum(results, every[0].name)
    floor = None if optimum is None else series.same(results, optimum)
    floors = {} if optimum is None else series.at_rates(results, optimum)
    rows = {}
    for score in series.beside(results, every[0].name):
        found = series.same(results, score)
        if found is not None:
            row = rows[score.reference] = {title: score.reference}
            row |= {at(rate): one - floors.get(rate, 0.0) for rate, one in series.at_rates(results, score).items()}
            row |= {} if floor is None else {value.name: found - floor}
    for score in every:
        if score.reference in rows and (found := series.same(results, score)) is not None:
            rows[score.reference][score.beside] = found
    return [exponentials(row, every) | row for row in rows.values()]


def exponentials(row: dict, scores: Sequence[Score]) -> dict:
    """The cells of a reference that follow from its others: the perplexity from the loss."""
    means = {tuple(score.columns): score.name for score in scores if score.of == "mean"}
    names = {score.name: means.get(tuple(score.columns)) for score in scores
             if score.of == "exp_mean" and not score.reference}
    return {power: math.exp(row[mean]) for power, mean in names.items() if mean in row}
