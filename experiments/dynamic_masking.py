"""Is it better to sample a new mask each time an example is seen than to reuse a few static masks?

Paper      Liu et al. 2019 (RoBERTa, arXiv:1907.11692, table 1): dynamic masks are as good as BERT's static ones or
           slightly better. BERT has ten masked copies of each example, each seen four times in 40 epochs.
Run        mlm sweep run experiments/dynamic_masking.py --scale=laptop --workers=2
           (your own text needs 40 epochs: --config.train.steps=EXAMPLES*40/16)
Cost       quick: seconds per point. laptop: 9 points, about 10 minutes on 2 CPU cores with --workers=2, estimated from
           the time of a step (0.05 s on one core). paper: 2 points of the base model, each about 54 hours of an H200 at
           40% of its peak: 110 hours, an estimate from 6 FLOPs per parameter and token. text: 12 points of micro on the
           test part of WikiText-2, a small text, 32,000 examples, three seeds, then half an epoch of SST-2: 36 minutes,
           measured beside much other work; 8.8 passes, so that ten masks, which go in turn, never repeat: a control.
Published  development sets:  SQuAD 2.0  MNLI  SST-2
           static             78.3       84.3  92.5
           dynamic            78.7       84.0  92.9
           They stand beside our scores at scale paper (--config.downstream.path=...), which also has the held-out loss.
           laptop: 500 documents for 40 epochs, as many as the paper's, with ten static masks and also with one. After
           pretraining (laptop and quick) the model is fine-tuned on the topic of a passage of the built-in language,
           half a minute for each of 3 seeds.
Figures    experiments/results/dynamic_masking.md
"""

from collections.abc import Sequence

from mlm.experiment.grid import cross_points, make_seeds, name_points
from mlm.experiment.recipes import BERT, PAPER_TASKS, TRANSFORMERS, set_training_length
from mlm.report import summary
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column, build_paper_cells, build_paper_columns

# Rows are seen often here, so that dropout is as in the paper.
SMALL_CORPUS = {"model.dropout": 0.1, "model.attention_dropout": 0.1}

TASKS = {"squad2": "SQuAD 2.0", "mnli": "MNLI", "sst2": "SST-2"}
PAPER = {0: (78.7, 84.0, 92.9), 10: (78.3, 84.3, 92.5)}  # copies: scores of TASKS, of the base model
PAPER_TABLES = tuple(
    PaperTable(
        f"Liu et al. 2019 (RoBERTa), table 1, base; ours: {copies} masks",
        tuple(TASKS.values()),
        {"static": PAPER[10], "dynamic": PAPER[0]},
        {"static": f"static-{copies}", "dynamic": "dynamic"},
    )
    for copies in (10, 4)
)

SCALES = {
    "quick": {
        "fields": TRANSFORMERS["quick"] | SMALL_CORPUS | {"data.language.train_documents": 64},
        "copies": (0, 2),
        "seeds": 1,
    },
    "laptop": {
        "fields": TRANSFORMERS["laptop"]
        | SMALL_CORPUS
        | {"data.language.train_documents": 500, "train.batch_size": 16, "train.steps": 1250, "train.eval_every": 125},
        "copies": (0, 10, 1),
        "seeds": 3,
    },
    "text": {
        "fields": TRANSFORMERS["text"]
        | SMALL_CORPUS
        | {"data.path": "texts/wikitext-2/test.txt", "tokenizer.vocab_size": 4096}
        | set_training_length(32_000, 3_200, {"train.batch_size": 16}),
        "copies": (0, 10, 4, 1),
        "seeds": 3,
    },
    "paper": {
        "fields": BERT | PAPER_TASKS | {"model.size": "base", "downstream.tasks": ",".join(TASKS)},
        "copies": (0, 10),
        "seeds": 1,
    },
}

COLUMNS = (Column("masking", "masking"),)
RESULT_TABLES = ("papers",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    masks = [
        {"name": f"static-{copies}" if copies else "dynamic", "mask.static_masks": copies} for copies in plan["copies"]
    ]
    points = cross_points(masks, make_seeds(plan["seeds"]))
    return name_points(points, plan["fields"])


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    copies, paper = (
        config["mask.static_masks"],
        config["model.size"] == "base" and PAPER.get(config["mask.static_masks"]),
    )
    row = {"masking": f"static, {copies} of each row" if copies else "dynamic"}
    return row | (build_paper_cells(TASKS, paper) if paper else {})


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """Dynamic masks are better than any number of static ones."""
    return [("dynamic", name) for name in names if name != "dynamic"]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for dynamic masking and one for each number of static masks."""
    return summary.build_table(results, COLUMNS, describe_row, build_paper_columns(TASKS))
