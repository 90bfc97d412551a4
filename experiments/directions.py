"""What does a model lose that sees the left alone, or both sides but each apart?

Claim      Devlin et al. 2019 (BERT, arXiv:1810.04805, table 5): a model that is trained from left to right and sees the
           left alone is worse at all tasks than one that sees both sides, far worse where words are told (SQuAD); a
           BiLSTM on top, as it is fine-tuned, makes up for some of that, not for all. Peters et al. 2018 (ELMo,
           arXiv:1802.05365) train both directions and keep them apart through all layers: each state has seen either
           side, none has seen the two together, before a task puts them side by side.
How        One architecture, the same rows and steps. "apart" has two stacks, so twice the parameters of the others in
           its layers. What all are asked is a task once they are fine-tuned, the tags of a passage's words: each told
           by its state alone, or with two layers of BiLSTM between. Their losses are of different questions.
Command    python -m mlm.launch.sweep run experiments/directions.py --scale=laptop --workers=2
Hours      quick: a minute or two a point on 2 CPU cores. laptop: 12 points, about 20 minutes with --workers=2,
           reckoned from the time of a row in architectures.py and half a minute a fine-tuning. paper: 4 points of the
           base model, each about 54 hours of an H200 at 40% of its peak: an estimate from 6 FLOPs a parameter and
           token.
Expected   BERT-base, development sets:  MNLI  QNLI  MRPC  SST-2  SQuAD 1.1
           without NSP                   83.9  84.9  86.5  92.6   87.9
           left to right, without NSP    82.1  84.3  77.5  92.1   77.8
           with a BiLSTM                 82.1  84.1  75.7  91.6   84.9
           They stand beside ours at paper scale (--config.downstream.path=...). The BiLSTM is here of tags alone, so at
           paper scale its row is missing.
"""
from collections.abc import Sequence

from mlm.experiment.grid import axis, named, product, without
from mlm.experiment.recipes import BERT, BERT_GRID, BEST, OWN, PAPER_TASKS, QUICK, SMALL, of_rows
from mlm.report import evaluation_columns, summary
from mlm.report.table import Column

DIRECTIONS = [{"name": "both", "objective": "mlm", "model.context": "both"},
              {"name": "masked-left", "objective": "mlm", "model.context": "left"},
              {"name": "left", "objective": "causal", "model.context": "left"},
              {"name": "apart", "objective": "causal", "model.context": "apart"}]
LABELS = {("mlm", "both"): "masked, both sides", ("mlm", "left"): "masked, the left alone",
          ("causal", "left"): "left to right", ("causal", "apart"): "left to right and right to left, apart"}
HEADS = {"": "each state", "finetune.head_dim=32": "two layers of BiLSTM"}
NAMES = {"mnli": "MNLI", "qnli": "QNLI", "mrpc": "MRPC", "sst2": "SST-2", "squad": "SQuAD 1.1"}
PAPER = {("mlm", "both"): (83.9, 84.9, 86.5, 92.6, 87.9), ("causal", "left"): (82.1, 84.3, 77.5, 92.1, 77.8)}
TASKS = {"downstream.tasks": "tag", "downstream.learning_rates": (1e-3,), "downstream.epochs": (1.0,),
         "downstream.variants": ",finetune.head=bilstm finetune.head_dim=32"}
SHORT = SMALL | OWN["transformer"] | {"model.size": "micro", "data.language.train_documents": 32_000,
                                      "mask.rate": 0.3} | of_rows(32_000, 6_400, BEST["transformer"])

SCALES = {
    "quick": {"fields": QUICK | OWN["transformer"] | TASKS, "seeds": 1, "ways": ("both", "left", "apart")},
    "laptop": {"fields": SHORT | TASKS, "seeds": 3, "ways": ("both", "masked-left", "left", "apart")},
    "paper": {"fields": without(BERT, "objective") | PAPER_TASKS | BERT_GRID | {
        "model.size": "base", "downstream.tasks": ",".join(NAMES)}, "seeds": 1,
        "ways": ("both", "masked-left", "left", "apart")},
}
COLUMNS = (Column("sees", "trained"), Column("size", "size"), Column("head", "words told by"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    ways = [way for way in DIRECTIONS if way["name"] in plan["ways"]]
    points = product(ways, axis("seed", *range(plan["seeds"]), name="seed{}"))
    return {name: (without(plan["fields"], "mask") if point["objective"] == "causal" else plan["fields"]) | point
            for name, point in named(points).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    way = config["objective"], config["model.context"]
    theirs = evaluation_columns.paper(NAMES, PAPER[way]) if config["model.size"] == "base" and way in PAPER else {}
    return {"sees": LABELS[way], "size": config["model.size"], "head": seeds[0].get("variant", ""), **theirs}


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each way of seeing and each head that words are told by."""
    return summary.table([part for result in results for part in evaluation_columns.apart(result, HEADS)], COLUMNS,
                         about, evaluation_columns.papers(NAMES))
