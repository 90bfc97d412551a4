"""Is it better to mask a row anew whenever it is seen than to keep a few fixed masks of it?

Claim      Liu et al. 2019 (RoBERTa, arXiv:1907.11692, table 1): new masks are as good or slightly better than BERT's
           static ones, ten copies of each row, each seen four times in 40 epochs.
Command    python -m mlm.launch.sweep run experiments/dynamic_masking.py --scale=laptop --workers=2
           (your own text needs as many rows as give 40 epochs: --config.train.steps=ROWS*40/16)
Hours      quick: seconds a point. laptop: 9 points, about 10 minutes on 2 CPU cores with --workers=2, reckoned from the
           time of a step (0.05 s on one core). paper: 2 points of the base model, each about 54 hours of an H200 at 40%
           of its peak: 110 hours, an estimate from 6 FLOPs a parameter and token.
Expected   paper, development sets:  SQuAD 2.0  MNLI  SST-2
           static                    78.3       84.3  92.5
           dynamic                   78.7       84.0  92.9
           They stand beside ours at paper scale (--config.downstream.path=...), beside held-out loss. laptop: 500
           documents for 40 epochs, as many as the paper's, and beside its ten masks one mask of each row; fine-tuned
           (as at quick) for the topic of a passage of the built-in language, half a minute for each of 3 seeds.
"""
from collections.abc import Sequence

from mlm.experiment.grid import axis, named, product
from mlm.experiment.recipes import BERT, LAPTOP, LAPTOP_TASKS, OWN, PAPER_TASKS, QUICK, QUICK_TASKS
from mlm.report import evaluation_columns, summary
from mlm.report.table import Column

# Rows are seen often here, so that dropout is as in the paper.
SEEN_OFTEN = OWN["transformer"] | {"model.dropout": 0.1, "model.attention_dropout": 0.1}

TASKS = {"squad2": "SQuAD 2.0", "mnli": "MNLI", "sst2": "SST-2"}
PAPER = {0: (78.7, 84.0, 92.9), 10: (78.3, 84.3, 92.5)}  # copies: scores of TASKS, of the base model

SCALES = {
    "quick": {"fields": QUICK | QUICK_TASKS | SEEN_OFTEN | {"data.language.train_documents": 64}, "copies": (0, 2),
              "seeds": 1},
    "laptop": {"fields": LAPTOP | LAPTOP_TASKS | SEEN_OFTEN | {"data.language.train_documents": 500,
                                                               "train.batch_size": 16, "train.steps": 1250,
                                                               "train.eval_every": 125},
               "copies": (0, 10, 1), "seeds": 3},
    "paper": {"fields": BERT | PAPER_TASKS | {"model.size": "base", "downstream.tasks": ",".join(TASKS)},
              "copies": (0, 10), "seeds": 1},
}

COLUMNS = (Column("masking", "masking"),)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    masks = [{"name": f"static-{copies}" if copies else "dynamic",
              "mask.static_masks": copies} for copies in plan["copies"]]
    points = product(masks, axis("seed", *range(plan["seeds"]), name="seed{}"))
    return {name: plan["fields"] | point for name, point in named(points).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    copies, theirs = (config["mask.static_masks"], config["model.size"] == "base" and
                      PAPER.get(config["mask.static_masks"]))
    row = {"masking": f"static, {copies} of each row" if copies else "dynamic"}
    return row | (evaluation_columns.paper(TASKS, theirs) if theirs else {})


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """Dynamic masks are better than any number of static ones."""
    return [("dynamic", name) for name in names if name != "dynamic"]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for dynamic masking and one for each number of static masks."""
    return summary.table(results, COLUMNS, about, evaluation_columns.papers(TASKS))
