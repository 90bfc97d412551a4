"""Does next-sentence prediction help, and should an example keep to one document?

Paper      Devlin et al. 2019 (BERT, arXiv:1810.04805, table 5): without NSP the model is worse. Liu et al. 2019
           (RoBERTa, arXiv:1907.11692, table 2): it is not; full sentences without NSP are better, and examples that
           keep to one document (doc sentences) a little better still.
Run        mlm sweep run experiments/pretraining_tasks.py --scale=laptop --workers=2
           (your own text: --config.data.corpus=text --config.data.path=...)
Data       The documentation in Python's standard library, since the built-in language has no next sentence to predict.
Cost       quick: seconds per point. laptop: 12 points, about 10 minutes on 2 CPU cores with --workers=2, estimated from
           the time of a step (0.07 s on one core). paper: 4 points of the base model, each about 54 hours of an H200 at
           40% of its peak: 220 hours, an estimate from 6 FLOPs per parameter and token. text: 12 points of micro on
           WikiText-2, 16,000 examples, three seeds, then half an epoch of SST-2 and of MRPC: 61 minutes, measured
           beside much other work.
Published  BERT, development sets:     MNLI  QNLI  MRPC  SST-2  SQuAD 1.1
           segment pairs with NSP      84.4  88.4  86.7  92.7   88.5
           without                     83.9  84.9  86.5  92.6   87.9
           RoBERTa, development sets:  SQuAD 1.1/2.0  MNLI  SST-2  RACE
           segment pairs with NSP      90.4/78.7      84.0  92.9   64.2
           full sentences              90.4/79.1      84.7  92.5   64.8
           doc sentences               90.6/79.7      84.7  92.7   65.6
           BERT's stand beside our scores at scale paper (--config.downstream.path=...; our MRPC is not split as in
           GLUE). Each packing mode packs the held-out text its own way, so that held-out losses are of different
           examples and masks: compare how far each is below its own unigram baseline. Beside our effects all of them
           stand at every scale; pairs of single sentences (RoBERTa) have no row of ours. laptop: English tasks need
           files that you bring (--config.downstream.tasks=mrpc,rte --config.downstream.path=...).
Figures    experiments/results/pretraining_tasks.md
"""

from collections.abc import Sequence

from mlm.experiment.grid import cross_points, drop_fields, make_seeds, name_points
from mlm.experiment.recipes import ARCHITECTURE_FIELDS, BERT, BERT_GRID, LAPTOP, PAPER_TASKS, QUICK, TRANSFORMERS
from mlm.report import summary
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column, build_paper_cells, build_paper_columns

TASKS = [
    {"name": "segment-pairs-nsp", "pack.mode": "segment_pair", "objective": "nsp"},
    {"name": "segment-pairs", "pack.mode": "segment_pair", "objective": "mlm"},
    {
        "name": "full-sentences",
        "pack.mode": "full_sentences",
        "pack.isolate_documents": False,
        "pack.short_seq_prob": 0.0,
        "objective": "mlm",
    },
    {"name": "doc-sentences", "pack.mode": "doc_sentences", "pack.short_seq_prob": 0.0, "objective": "mlm"},
]
# Its rows, some three thousand, are seen a few times each, so that dropout is as in the papers.
BASE_FIELDS = ARCHITECTURE_FIELDS["transformer"] | {
    "data.corpus": "docstrings",
    "tokenizer.vocab_size": 2048,
    "eval.max_examples": 500,
    "model.dropout": 0.1,
    "model.attention_dropout": 0.1,
    "train.batch_size": 16,
}

NAMES = {"mnli": "MNLI", "qnli": "QNLI", "mrpc": "MRPC", "sst2": "SST-2", "squad": "SQuAD 1.1"}
PAPER = {"nsp": (84.4, 88.4, 86.7, 92.7, 88.5), "mlm": (83.9, 84.9, 86.5, 92.6, 87.9)}  # of segment pairs
PAPER_TABLES = (
    PaperTable(
        "Devlin et al. 2019 (BERT), table 5, base",
        tuple(NAMES.values()),
        {"segment pairs": PAPER["mlm"], "segment pairs with NSP": PAPER["nsp"]},
        {"segment pairs": "segment-pairs", "segment pairs with NSP": "segment-pairs-nsp"},
    ),
    PaperTable(
        "Liu et al. 2019 (RoBERTa), table 2, base",
        ("SQuAD 1.1", "SQuAD 2.0", "MNLI", "SST-2", "RACE"),
        {
            "segment pairs with NSP": (90.4, 78.7, 84.0, 92.9, 64.2),
            "sentence pairs with NSP": (88.7, 76.2, 82.9, 92.1, 63.0),
            "full sentences": (90.4, 79.1, 84.7, 92.5, 64.8),
            "doc sentences": (90.6, 79.7, 84.7, 92.7, 65.6),
        },
        {
            "segment pairs with NSP": "segment-pairs-nsp",
            "full sentences": "full-sentences",
            "doc sentences": "doc-sentences",
        },
    ),
)

SCALES = {
    "quick": {"fields": drop_fields(QUICK, "data.language") | BASE_FIELDS, "seeds": 1},
    "laptop": {
        "fields": drop_fields(LAPTOP, "data.language") | BASE_FIELDS | {"train.steps": 800, "train.eval_every": 100},
        "seeds": 3,
    },
    "text": {"fields": TRANSFORMERS["text"] | {"downstream.tasks": "sst2,mrpc"}, "seeds": 3},
    "paper": {
        "fields": BERT | PAPER_TASKS | BERT_GRID | {"model.size": "base", "downstream.tasks": ",".join(NAMES)},
        "seeds": 1,
    },
}

COLUMNS = (Column("rows", "rows"), Column("task", "task"))
RESULT_TABLES = ("papers",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    points = cross_points(TASKS, make_seeds(plan["seeds"]))
    return name_points(points, plan["fields"])


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    is_paper_row = config["model.size"] == "base" and config["pack.mode"] == "segment_pair"
    return {
        "rows": config["pack.mode"].replace("_", " "),
        "task": {"mlm": "MLM", "nsp": "MLM + NSP"}[config["objective"]],
        **(build_paper_cells(NAMES, PAPER[config["objective"]]) if is_paper_row else {}),
    }


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """Next-sentence prediction helps, on the same rows."""
    return [("segment-pairs-nsp", "segment-pairs")]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each way of making rows and each task."""
    return summary.build_table(results, COLUMNS, describe_row, build_paper_columns(NAMES))
