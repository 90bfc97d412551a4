"""What of a frozen model should a tagger read: its last layer, another, or several at once?

Claim      Devlin et al. 2019 (arXiv:1810.04805, table 7): of BERT base as it is, under two layers of BiLSTM, the last
           four layers side by side serve nearly as well as training all of it; the embeddings fall far behind.
Command    python -m mlm.launch.sweep run experiments/features.py --scale=laptop --workers=2
           (your own text: --config.data.path=... --config.tokenizer.vocab_size=2048, and
           --config.downstream.tasks=wnut17 --config.downstream.path=... of entities)
Corpus     quick, laptop: the built-in language, and its task of each word's class and number, whose best possible
           accuracy is known. paper: English Wikipedia, and the entities of CoNLL-2003, a folder of its files below
           downstream.path.
How        Models of four layers, so that there are four to read. Each way of reading has the same learning rates to
           choose from, on dev; so has the model of which all is trained, under a linear head.
Hours      quick: a minute a point. laptop: 6 points, half an hour each on 2 CPU cores: an estimate from 20 ms a step.
           paper: one point of the base model, an accelerator's; not reckoned.
Expected   paper, dev F1: fine-tuned 96.4; embeddings 91.0; second-to-last 95.6; last 94.9; weighted sum of the last
           four 95.9; those side by side 96.1; weighted sum of all twelve 95.5.
"""
from collections.abc import Sequence

from mlm.experiment.grid import axis, named, product
from mlm.experiment.recipes import BERT, LAPTOP, OWN, QUICK
from mlm.report import evaluation_columns, summary
from mlm.report.table import Column

MEMBERS = {"lstm": {"model.family": "rnn", "model.cell": "lstm"}, "transformer": {"model.family": "transformer"}}
ROWS = {"": "none: all is trained", "finetune.layer_features=0": "embeddings",
        "finetune.layer_features=second_to_last": "second-to-last layer", "finetune.layer_features=last": "last layer",
        "finetune.layer_features=sum4": "weighted sum of last four",
        "finetune.layer_features=concat4": "last four side by side",
        "finetune.layer_features=mix": "weighted sum of all layers"}
PAPERS = {"conll2003": "CoNLL-2003, F1"}
PAPER = dict(zip(ROWS.values(), (96.4, 91.0, 95.6, 94.9, 95.9, 96.1, 95.5), strict=True))  # of BERT base
# A BiLSTM as wide as a small model is, not as BERT's.
NARROW = {"width": 64, "learning_rates": (1e-3, 4e-3)}
SHAPE = {"model.num_layers": 4, "downstream.tasks": "tag"}

SCALES = {
    "quick": {"fields": QUICK | SHAPE | {"downstream.epochs": (1.0,)}, "bilstm": NARROW | {"learning_rates": (4e-3,)},
              "members": ("transformer",), "own": OWN, "seeds": 1},
    "laptop": {"fields": LAPTOP | SHAPE, "bilstm": NARROW, "members": tuple(MEMBERS), "own": OWN, "seeds": 3},
    "paper": {"fields": BERT | {"model.size": "base", "downstream.tasks": "conll2003", "downstream.path": "tasks",
                                "downstream.seeds": 5},
              "bilstm": {"width": 768, "learning_rates": (3e-5, 5e-5, 1e-3)}, "members": ("transformer",),
              "own": {"transformer": {}}, "seeds": 1},
}

COLUMNS = (Column("model", "model"), Column("size", "size"), Column("features", "features"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets: a pretraining, and every way of reading it."""
    plan = SCALES[scale]
    members = [{"name": member} | MEMBERS[member] | plan["own"][member] for member in plan["members"]]
    points = product(members, axis("seed", *range(plan["seeds"]), name="seed{}"))
    head = f"finetune.trainable_layers=0 finetune.head=bilstm finetune.head_dim={plan['bilstm']['width']}"
    grid = {"downstream.variants": ",".join(f"{head} {read}" if read else "" for read in ROWS),
            "downstream.learning_rates": plan["bilstm"]["learning_rates"]}
    return {name: plan["fields"] | grid | point for name, point in named(points).items()}


def about(seeds: Sequence[dict]) -> dict:
    config, read = seeds[0]["config"], seeds[0]["variant"]
    return {"model": config["model.cell"] or config["model.family"], "size": config["model.size"], "features": read,
            **(evaluation_columns.paper(PAPERS, [PAPER[read]]) if config["model.size"] == "base" and
               read in PAPER else {})}


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each model and what of it is read."""
    return summary.table([part for result in results for part in evaluation_columns.apart(result, ROWS)], COLUMNS,
                         about, evaluation_columns.papers(PAPERS))
