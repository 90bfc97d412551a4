"""What held-out loss does a small BERT reach at a fixed number of tokens?

Paper      We know of no held-out losses of masked language models smaller than base. Turc et al. 2019
           (arXiv:1908.08962) give fine-tuned scores of BERT's tiny, mini, small and medium after a million steps: they
           stand beside our effects of size.
Method     Masked language models of four sizes, each trained from nothing on so many tokens with a schedule of that
           length; a budget counts the places of all rows, and the column "tokens" those that are filled. A text of
           fewer is read several times. Each size has the same search of learning rate and initialization at the
           smallest budget, on a seed and held-out rows that are not the table's; larger budgets have what it chose.
           Beside them stand the unigram and Kneser-Ney n-grams up to order 5, which predict each token from those to
           its left: they come with a causal model of micro size, since a masked model has no such loss, and are counted
           on all of the training text, whatever the budget.
Run        mlm sweep run experiments/small_bert.py --scale=laptop --workers=2 --config.data.path=wikitext-2/train.txt
           --config.data.validation_path=wikitext-2/valid.txt --config.data.document_boundary=' = [^=]+ = '
           After it mlm evaluate runs/small_bert-laptop/*/ --blimp=FOLDER --sentences=FILE, and the table has the
           pseudo-perplexity, and accuracies on BLiMP by phenomenon. After --scale=milestones add --milestones, and the
           report has both as curves over training.
Search     mlm sweep search experiments/small_bert.py --scale=trials --trials=4 --rungs=1 --workers=2 with the same
           fields and --out=experiments/searches/small_bert-trials.json; before it, LEARNING_RATES hold at all scales
           but paper.
Scales     quick: micro at two budgets, one seed, the built-in language. trials: four sizes at the smallest budget, one
           seed, for the search. laptop: micro, tiny and mini at 1 and 4 million tokens, small at 1, three seeds.
           milestones: laptop's points of micro and tiny at 4 million, for curves over training. Only these, since to
           evaluate all milestones of a run takes longer than to train it.
           paper: mini to base at 100 million and 1 billion tokens, one seed, English Wikipedia.
Cost       quick: a minute on 2 CPU cores. The search: 16 trials, an hour, most of it small. laptop: 22 points, 70
           minutes with --workers=2. Estimated: 50,000, 19,000, 5,000 and 750 tokens a second of a core. milestones: 6
           points, 14 minutes with --workers=2, and 20 for 50 pairs of each paradigm and 500 sentences at each
           milestone, in two processes. paper: 9 points, 60 hours of an H200 at 40% of its peak: an estimate from 6
           FLOPs per parameter and token. text: laptop's points of micro and tiny, with WikiText-2 as its text: 13
           points, 12 minutes, estimated.
Figures    experiments/results/small_bert.md
"""

from collections.abc import Sequence

from mlm.base.estimates import Estimate, estimate_mean
from mlm.experiment import searches
from mlm.experiment.grid import chain_points, cross_points, drop_fields, make_axis, name_points
from mlm.experiment.recipes import ARCHITECTURE_FIELDS, LARGE, SMALL, read_text
from mlm.experiment.search_space import Choice, LogUniform
from mlm.report import evaluation_scores, run_columns, series, summary
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column, NamedTable

MILLION = 1_000_000
SEQ_LEN, BATCH_SIZE, NUM_EVALUATIONS = 128, 16, 8
LEARNING_RATES = {"micro": 4e-3, "tiny": 4e-3, "mini": 2e-3, "small": 1e-3}  # where no search chose one
TRIAL_SEED = 3  # of no table, so that nothing is chosen by the runs that are compared
SEARCHES = searches.read_searches(__file__)
FIELDS = (
    SMALL
    | ARCHITECTURE_FIELDS["transformer"]
    | {
        "model.family": "transformer",
        "mask.rate": 0.15,
        "pack.seq_len": SEQ_LEN,
        "train.batch_size": BATCH_SIZE,
        "train.milestones": "log:8",
    }
)
CAUSAL = {"name": "causal", "objective": "causal", "eval.ngram_order": 5}
PAPER_TABLES = (
    PaperTable(
        "Turc et al. 2019 (google-research/bert README), GLUE test",
        ("MNLI-m", "SST-2"),
        {"tiny": (70.2, 83.2), "mini": (74.8, 85.9), "small": (77.6, 89.7), "medium": (80.0, 89.6)},
        {size: size for size in ("tiny", "mini", "small")},
    ),
)
SCALES = {
    "quick": {
        "budgets": {"micro": (0.1, 0.2)},
        "seeds": (0,),
        "fields": FIELDS | {"data.language.train_documents": 2000, "data.language.validation_documents": 100},
    },
    "trials": {"budgets": dict.fromkeys(LEARNING_RATES, (1,)), "seeds": (TRIAL_SEED,), "fields": FIELDS},
    "laptop": {
        "budgets": {"micro": (1, 4), "tiny": (1, 4), "mini": (1, 4), "small": (1,)},
        "seeds": (0, 1, 2),
        "search": "trials",
        "fields": FIELDS,
    },
    "milestones": {"budgets": {"micro": (4,), "tiny": (4,)}, "seeds": (0, 1, 2), "search": "trials", "fields": FIELDS},
    "text": {
        "budgets": {"micro": (1, 4), "tiny": (1, 4)},
        "seeds": (0, 1, 2),
        "search": "trials",
        "fields": read_text(FIELDS),
    },
    "paper": {
        "budgets": dict.fromkeys(("mini", "small", "medium", "base"), (100, 1000)),
        "seeds": (0,),
        "fields": LARGE | {"train.batch_size": 256, "train.milestones": "log:24", "train.checkpoint_every": 5000},
    },
}
COLUMNS = (
    *run_columns.select_columns("model", "size"),
    Column("budget", "budget (tokens)"),
    *run_columns.select_columns("learning_rate", "non_embedding", "tokens", "tokens_per_second"),
)
RESULT_TABLES = ("blimp", "milestones", "blimp_milestones", "search-trials")


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets: the masked models, and a causal one for the n-grams."""
    plan = SCALES[scale]
    seeds = make_axis("seed", *plan["seeds"], name="seed{}")
    masked = [
        cross_points([make_size(scale, size)], [make_budget(plan["fields"], budget)], seeds)
        for size, budgets in plan["budgets"].items()
        for budget in budgets
    ]
    found = name_points(chain_points(*masked), plan["fields"])
    if scale in ("trials", "milestones"):
        return found
    size, (budget, *_) = next(iter(plan["budgets"].items()))
    causal = cross_points([CAUSAL], [make_size(scale, size)], [make_budget(plan["fields"], budget)], seeds[:1])
    return found | name_points(causal, drop_fields(plan["fields"], "mask"))


def make_size(scale: str, size: str) -> dict:
    """The point of a size, with what the scale's search chose for it."""
    rates = {"optim.learning_rate": LEARNING_RATES[size]} if scale != "paper" else {}
    chosen = searches.find_chosen(SEARCHES, SCALES[scale].get("search", ""), f"{size}-1M")
    return {"name": size, "model.size": size} | rates | chosen


def make_budget(fields: dict, millions: float) -> dict:
    """The point of so many million tokens."""
    steps = int(millions * MILLION / (SEQ_LEN * fields["train.batch_size"]))
    return {"name": f"{millions:g}M", "train.steps": steps, "train.eval_every": max(1, steps // NUM_EVALUATIONS)}


def search_space(point: dict) -> dict:
    """What mlm sweep search tries for a row."""
    return {"optim.learning_rate": LogUniform(5e-4, 8e-3), "model.init_std": Choice((0.02, 0.04, 0.08))}


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    is_causal = config["objective"] == "causal"
    return {
        "model": "causal transformer" if is_causal else "transformer",
        "budget": series.group_name(seeds[0]).rpartition("-")[2],
    }


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each size and budget, then the n-grams and the unigram."""
    return summary.build_table(results, COLUMNS, describe_row)


def tables(results: Sequence[dict]) -> list[NamedTable]:
    """The accuracies on BLiMP's phenomena: of the trained models, and of those at their milestones.

    A group is there if all its runs were evaluated.
    """
    groups = series.group_runs(results)
    rows = [{"row": name} | average_phenomena(runs) for name, runs in groups.items()]
    milestones = [
        {"run": name, "step": step} | average_phenomena(evaluation_scores.select_step(runs, step))
        for name, runs in groups.items()
        for step in evaluation_scores.list_steps(runs)
    ]
    caption = "Accuracy on minimal pairs (%), the mean of a phenomenon's paradigms"
    steps = [Column("run", "run"), Column("step", "step", ",d")]
    return [
        build_phenomena_table("blimp", "BLiMP by phenomenon", f"{caption}.", rows, [Column("row", "row")]),
        build_phenomena_table(
            "blimp_milestones", "BLiMP by phenomenon over training", f"{caption}, by step.", milestones, steps
        ),
    ]


def average_phenomena(runs: Sequence[dict]) -> dict[str, Estimate]:
    """The mean accuracy on each phenomenon of BLiMP (%); none unless all runs were evaluated on it."""
    key = "pll_word_l2r_accuracy"
    found = [
        suite["phenomena"]
        for run in runs
        for suite in run["summary"].get("minimal_pairs", {}).values()
        if suite["suite"] == "blimp"
    ]
    if len(found) != len(runs):
        return {}
    return {term: estimate_mean(100 * one[term][key] for one in found) for term in found[0]}


def build_phenomena_table(
    stem: str, title: str, caption: str, rows: Sequence[dict], columns: Sequence[Column]
) -> NamedTable:
    """The table of the rows that have phenomena: the columns, then one for each phenomenon."""
    known = [column.name for column in columns]
    full = [row for row in rows if len(row) > len(known)]
    phenomena = dict.fromkeys(name for row in full for name in row if name not in known)
    shown = [*columns, *(Column(term, term.replace("_", " "), ".1f") for term in phenomena)]
    return NamedTable(stem, title, caption, full, shown)
