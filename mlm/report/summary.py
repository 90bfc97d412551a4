"""The table of an experiment: a row for each group of runs that differ in their seed alone, and what they are beside.

A run is its result.json, as a dict. Losses are in nats per masked token, on the same frozen masks for every run.
"""
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from mlm.base.estimates import estimate
from mlm.report import series
from mlm.report.table import Column

COLUMNS = (
    Column("seeds", "seeds", ",d"), Column("parameters", "parameters", ",d"), Column("flops", "training FLOPs", ".2e"),
    Column("predictions", "predictions", ".3g"), Column("loss", "loss (nats)", ".3f"),
    Column("perplexity", "perplexity", ".2f"), Column("accuracy", "accuracy", ".3f"),
    Column("below_unigram", "nats below unigram", ".3f"), Column("gap", "nats above floor", ".3f"),
    Column("pseudo_perplexity", "pseudo-perplexity per word", ".2f"), Column("blimp", "BLiMP (%)", ".1f"),
)


def table(results: Sequence[dict], own: Sequence[Column], about: Callable[[Sequence[dict]], dict]
          ) -> tuple[list[dict], list[Column]]:
    """Rows in the order the groups come, then the unigram baseline and the optimum where all runs share them.

    own: the experiment's columns, the first of them text; about: the runs of a group -> its cells there. Columns that
    no row fills are left out. Runs evaluated at further rates (config.eval.rates) have a column for each: the nats
    above the floor there where that is known, else the loss. The sentences' pseudo-perplexity and BLiMP's accuracy
    stand there for groups of which all runs are judged (launch/judge.py), by PLL-word-l2r.
    """
    rows = [about(seeds) | measured(seeds) for seeds in series.groups(results).values()]
    rows += references(results, own[0].name)
    value = "gap" if any("gap" in one for result in results for one in result.get("rates", ())) else "loss"
    rates = sorted({one["rate"] for result in results for one in result.get("rates", ())})
    matrix = [Column(at(rate), f"{value} at {rate:.0%}", ".3f") for rate in rates]
    return rows, [column for column in (*own, *COLUMNS, *matrix) if any(column.name in row for row in rows)]


def at(rate: float) -> str:
    return f"at_{100 * rate:g}"


def measured(seeds: Sequence[dict]) -> dict:
    """The cells that follow from a group's results."""
    held_out = [result["evaluation"] for result in seeds]
    row = {"seeds": len(seeds), "parameters": seeds[0]["parameters"], "flops": seeds[0]["flops"],
           "predictions": sum(result["predictions"] for result in seeds) / len(seeds)}
    for name in ("loss", "perplexity", "accuracy", "gap"):
        if all(name in one for one in held_out):
            row[name] = series.judged([one[name] for one in held_out], [one[f"{name}_se"] for one in held_out])
    if "gap" not in row:
        row["below_unigram"] = estimate(one["unigram_loss"] - one["loss"] for one in held_out)
    for same_rate in zip(*(result.get("rates", ()) for result in seeds), strict=True):
        name = "gap" if "gap" in same_rate[0] else "loss"
        row[at(same_rate[0]["rate"])] = series.judged([one[name] for one in same_rate],
                                                      [one[f"{name}_se"] for one in same_rate])
    return row | judgements(seeds)


def judgements(seeds: Sequence[dict]) -> dict:
    """What judged.json, beside each result, says of a group: of texts that all its runs, finished, are judged on."""
    judged = []
    for result in seeds:
        path = Path(result["config"]["workdir"], "judged.json")
        kept = json.loads(path.read_text()) if path.exists() else {}
        if (kept.get("fingerprint"), kept.get("step")) != (result.get("fingerprint"), result.get("steps")):
            return {}
        judged.append(kept)
    row = {}
    if shared([one.get("sentences", {}).get("sha256") for one in judged]):
        sentences = [one["sentences"]["pll_word_l2r"] for one in judged]
        row["pseudo_perplexity"] = series.judged([one["word_perplexity"] for one in sentences],
                                                 [one["word_perplexity_se"] for one in sentences])
    if shared([{name: values["sha256"] for name, values in one.get("paradigms", {}).items()} for one in judged]):
        pairs = [one["overall"] for one in judged]
        row["blimp"] = series.judged([100 * one["pll_word_l2r_accuracy"] for one in pairs],
                                     [100 * one["pll_word_l2r_accuracy_se"] for one in pairs])
    return row


def shared(texts: Sequence) -> bool:
    return bool(texts[0]) and all(of_run == texts[0] for of_run in texts)


def references(results: Sequence[dict], title: str) -> list[dict]:
    """The unigram baseline of the train split, and on the built-in language the best that any model can reach."""
    if len({result["evaluation"]["unigram_loss"] for result in results}) > 1:
        return []  # they were evaluated on different rows
    found, rates = results[0]["evaluation"], results[0].get("rates", ())
    rows = []
    for name, loss, accuracy in (("unigram", "unigram_loss", "unigram_accuracy"),
                                 ("exact optimum", "floor", "floor_accuracy")):
        if loss in found:
            row = {title: name, "loss": found[loss], "perplexity": math.exp(found[loss]), "accuracy": found[accuracy]}
            row |= {"gap": found[loss] - found["floor"]} if "floor" in found else {}
            rows.append(row | {at(one["rate"]): one[loss] - one.get("floor", 0.0) for one in rates})
    return rows
