"""What does a model lose that sees the left context alone, or both sides in two separate stacks?

Paper      Devlin et al. 2019 (BERT, arXiv:1810.04805, table 5): a left-to-right model is worse on all tasks than a
           bidirectional one, and far worse where single words are classified (SQuAD). A BiLSTM on top of it,
           fine-tuned with it, recovers some of the difference, not all. Peters et al. 2018 (ELMo, arXiv:1802.05365)
           train both directions in separate stacks: a state has seen one side or the other, never both, until the task
           concatenates them.
Method     One architecture, the same examples and steps. "two stacks" has twice the parameters of the others in its
           layers. The models are compared on a task after fine-tuning, the tags of a passage's words, predicted from
           each state alone or through two layers of BiLSTM. Their pretraining losses do not compare, since they
           predict under different contexts.
Run        mlm sweep run experiments/directions.py --scale=laptop --workers=2
Cost       quick: a minute or two per point on 2 CPU cores. laptop: 12 points, about 20 minutes with --workers=2,
           estimated from the time per example in architectures.py and half a minute per fine-tuning. paper: 4 points of
           the base model, each about 54 hours of an H200 at 40% of its peak: an estimate from 6 FLOPs per parameter and
           token. text: 8 points of micro on WikiText-2, 32,000 examples, two seeds, and the parts of speech of UD-EWT:
           14 minutes, estimated.
Published  BERT-base, development sets:  MNLI  QNLI  MRPC  SST-2  SQuAD 1.1
           without NSP                   83.9  84.9  86.5  92.6   87.9
           left to right, without NSP    82.1  84.3  77.5  92.1   77.8
           with a BiLSTM                 82.1  84.1  75.7  91.6   84.9
           They stand beside our scores at scale paper (--config.downstream.path=...). Our BiLSTM head is for tagging
           alone, so that row has no counterpart at scale paper.
Figures    none yet
"""

from collections.abc import Sequence

from mlm.experiment.grid import cross_points, drop_fields, make_seeds, name_points
from mlm.experiment.recipes import (
    ARCHITECTURE_FIELDS,
    BERT,
    BERT_GRID,
    PAPER_TASKS,
    QUICK,
    SMALL,
    TUNED_FIELDS,
    read_text,
    set_training_length,
)
from mlm.report import evaluation_scores, summary
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column, build_paper_cells, build_paper_columns

DIRECTIONS = [
    {"name": "both", "objective": "mlm", "model.directionality": "bidirectional"},
    {"name": "masked-left", "objective": "mlm", "model.directionality": "causal"},
    {"name": "left", "objective": "causal", "model.directionality": "causal"},
    {"name": "apart", "objective": "causal", "model.directionality": "two_stack"},
]
LABELS = {
    ("mlm", "bidirectional"): "masked, both sides",
    ("mlm", "causal"): "masked, the left alone",
    ("causal", "causal"): "left to right",
    ("causal", "two_stack"): "left to right and right to left, apart",
}
HEADS = {"": "each state", "finetune.head_dim=32": "two layers of BiLSTM"}
NAMES = {"mnli": "MNLI", "qnli": "QNLI", "mrpc": "MRPC", "sst2": "SST-2", "squad": "SQuAD 1.1"}
PAPER = {("mlm", "bidirectional"): (83.9, 84.9, 86.5, 92.6, 87.9), ("causal", "causal"): (82.1, 84.3, 77.5, 92.1, 77.8)}
PAPER_TABLES = (
    PaperTable(
        "Devlin et al. 2019 (BERT), table 5, base, without NSP",
        tuple(NAMES.values()),
        {
            "both sides": PAPER["mlm", "bidirectional"],
            "left to right": PAPER["causal", "causal"],
            "left to right, with a BiLSTM": (82.1, 84.1, 75.7, 91.6, 84.9),
        },
        {"both sides": "both", "left to right": "left"},
    ),
)
TASKS = {
    "downstream.tasks": "tag",
    "downstream.learning_rates": (1e-3,),
    "downstream.epochs": (1.0,),
    "downstream.variants": ",finetune.head=bilstm finetune.head_dim=32",
}
BASE_FIELDS = (
    SMALL
    | ARCHITECTURE_FIELDS["transformer"]
    | {"model.size": "micro", "data.language.train_documents": 32_000, "mask.rate": 0.3}
    | set_training_length(32_000, 6_400, TUNED_FIELDS["transformer"])
)

SCALES = {
    "quick": {
        "fields": QUICK | ARCHITECTURE_FIELDS["transformer"] | TASKS,
        "seeds": 1,
        "ways": ("both", "left", "apart"),
    },
    "laptop": {"fields": BASE_FIELDS | TASKS, "seeds": 3, "ways": ("both", "masked-left", "left", "apart")},
    "text": {
        "fields": read_text(BASE_FIELDS) | TASKS | {"downstream.tasks": "ud_ewt", "downstream.path": "texts"},
        "seeds": 2,
        "ways": ("both", "masked-left", "left", "apart"),
    },
    "paper": {
        "fields": drop_fields(BERT, "objective")
        | PAPER_TASKS
        | BERT_GRID
        | {"model.size": "base", "downstream.tasks": ",".join(NAMES)},
        "seeds": 1,
        "ways": ("both", "masked-left", "left", "apart"),
    },
}
COLUMNS = (Column("sees", "trained"), Column("size", "size"), Column("head", "words told by"))
RESULT_TABLES = ("papers",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    directions = [direction for direction in DIRECTIONS if direction["name"] in plan["ways"]]
    points = cross_points(directions, make_seeds(plan["seeds"]))
    return {
        name: (drop_fields(plan["fields"], "mask") if point["objective"] == "causal" else plan["fields"]) | point
        for name, point in name_points(points).items()
    }


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    direction = config["objective"], config["model.directionality"]
    paper = build_paper_cells(NAMES, PAPER[direction]) if config["model.size"] == "base" and direction in PAPER else {}
    return {"sees": LABELS[direction], "size": config["model.size"], "head": seeds[0].get("variant", ""), **paper}


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each way of seeing and each head that words are told by."""
    return summary.build_table(
        [part for result in results for part in evaluation_scores.split_variants(result, HEADS)],
        COLUMNS,
        describe_row,
        build_paper_columns(NAMES),
    )
