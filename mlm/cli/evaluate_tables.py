"""The tables that mlm evaluate prints."""

import math

from mlm.base.estimates import Estimate, ItemInterval, wilson_interval
from mlm.data.tasks import blimp
from mlm.inference import pseudo_likelihood
from mlm.report import evaluation_columns, evaluation_tables, milestone_curves
from mlm.report.table import Column, to_markdown


def print_evaluations(evaluated: dict) -> None:
    """Prints the tables of a run's evaluations."""
    titles: dict[str, str] = dict(zip(pseudo_likelihood.METRICS, ("PLL", "PLL-word-l2r"), strict=True))
    if result := evaluated["evaluations"].get("pseudo_likelihood", {}).get("all"):
        print(
            f"\n{result['sentences']:,} sentences: {result['words']:,} words, {result['tokens']:,} tokens, "
            f"without {result['unknown_tokens']:,} unknown tokens\n"
        )
        units = ("token", "word")
        rows = [
            {"metric": title} | {unit: estimate_perplexity(result, metric, unit) for unit in units}
            for metric, title in titles.items()
        ]
        columns = [Column("metric", "pseudo-perplexity"), *(Column(unit, f"per {unit}", ",.2f") for unit in units)]
        print(to_markdown(rows, columns))
    paradigms = evaluated["evaluations"].get("minimal_pairs", {})
    for suite, means in evaluated["summary"].get("minimal_pairs", {}).items():
        print(f"\n{suite}\n\n" + to_markdown(*build_suite_table(suite, means, paradigms, titles)))
    for table in evaluation_tables.TABLES:
        rows, columns = table(evaluated)
        if rows:
            print("\n" + to_markdown(rows, columns))


def estimate_perplexity(result: dict, metric: str, unit: str):
    """The perplexity per token or word, with an interval over sentences that is symmetric in nats."""
    nats, half_width = result[metric][f"{unit}_nats"], 1.96 * result[metric][f"{unit}_nats_se"]
    if result["sentences"] < 2:
        return Estimate(math.exp(nats), None, None)
    return ItemInterval(*map(math.exp, (nats, nats - half_width, nats + half_width)))


def build_suite_table(suite: str, means: dict, results: dict, titles: dict[str, str]) -> tuple[list[dict], list]:
    """The table of a suite: rows and columns. titles: the title of each metric."""

    def row(phenomenon, paradigm, result):
        found = {"phenomenon": phenomenon, "paradigm": paradigm, "pairs": result["pairs"]}
        for name in titles:
            accuracy = result[f"{name}_accuracy"]
            low, high = (
                (result[f"{name}_accuracy_{end}"] for end in ("low", "high"))
                if "paradigms" in result
                else wilson_interval(accuracy, result["pairs"])
            )
            found[name] = ItemInterval(100 * accuracy, 100 * low, 100 * high)
        return found

    rows = []
    for phenomenon, phenomenon_mean in means["phenomena"].items():
        paradigms = {
            name.removeprefix(f"{suite}/"): values
            for name, values in results.items()
            if name.startswith(f"{suite}/") and values["phenomenon"] == phenomenon
        }
        rows += [row(phenomenon, name, values) for name, values in sorted(paradigms.items())]
        rows += [row(phenomenon, f"mean of {len(paradigms)}", phenomenon_mean)] if len(paradigms) > 1 else []
    overall = means["overall"]
    rows += [row("overall", f"mean of {overall['paradigms']}", overall)]
    columns = [
        Column("phenomenon", "phenomenon"),
        Column("paradigm", "paradigm"),
        Column("pairs", "pairs", ",d"),
        *(Column(metric, f"{title} (%)", ".1f") for metric, title in titles.items()),
    ]
    if means["suite"] == blimp.BENCHMARK and overall["pairs"] == blimp.NUM_PARADIGMS * blimp.NUM_PAIRS:
        rows += [
            {"phenomenon": "overall", "paradigm": name, "paper": value} for name, value in blimp.PAPER_ACCURACY.items()
        ]
        columns += [Column("paper", "paper (%)", ".1f")]
    return rows, columns


def print_comparison(evaluated: dict[str, dict]) -> None:
    """Prints a table with a row for each of several runs, by their directories, and a column for each evaluation."""
    results = [contents | {"config": {"workdir": workdir}} for workdir, contents in evaluated.items()]
    columns = evaluation_columns.build_columns(results)
    cells = (evaluation_columns.build_cells([result], columns) for result in results)
    rows = [{"run": workdir} | row for workdir, row in zip(evaluated, cells, strict=True)]
    print("\n" + to_markdown(rows, [Column("run", "run"), *columns.values()]))


def print_milestones(workdir: str, by_step: dict[int, dict]) -> None:
    """Prints the evaluations of a run at its milestones, a row for each."""
    print("\n" + to_markdown(*milestone_curves.build_table([{"config": {"workdir": workdir}, "milestones": by_step}])))
