"""How much of a pretrained model must be trained for a task: all of it, its last layer, or nothing but the head?

Question   What pretraining put into the states themselves shows where they stay as they are: head alone. What it made
           easy to learn shows where all is trained. Both by family, at the same size, rows and steps of pretraining.
Source     Devlin et al. 2019 (arXiv:1810.04805) train all; Lee et al. 2019 ("What Would Elsa Do?", arXiv:1911.03090)
           find that the last quarter of the layers gives most of what all give. Neither has recurrent or feedforward
           models beside it.
Command    python -m mlm.launch.sweep run experiments/fine_tuning.py --scale=laptop --workers=2 --config.downstream.path=...
           (your own text: --config.data.path=... --config.tokenizer.vocab_size=2048)
Corpus     quick: the built-in language, and its task of a passage's topic, whose best possible score is known (more:
           --config.downstream.tasks=topic,pair,tag,subject). laptop: the documentation in Python's standard library,
           and six tasks whose files you bring, a folder each below downstream.path; MRPC is not split as GLUE's.
           paper: English Wikipedia, and four small sets of GLUE by the recipe of Mosbach et al. 2021 (MOSBACH).
How        A learning rate that suits all parameters is too low for a head alone: each has the same ones to choose from,
           on dev. Beside them the same model without its pretraining. One fine-tuning seed a point, three of
           pretraining. Failed ones are named below the table.
Hours      quick: two points, a minute or two each with 4 fine-tunings. laptop: 9 points of 48 fine-tunings, of which
           SST-2's 8 take most; some 20 hours on 2 CPU cores with --workers=2: an estimate from 20 ms a step. paper: 3
           points of the base model, an accelerator's; not reckoned.
"""
from collections.abc import Sequence

from mlm.experiment.grid import axis, named, product, without
from mlm.experiment.recipes import BERT, LAPTOP, MOSBACH, OWN, QUICK, QUICK_TASKS
from mlm.report import evaluation_columns, summary
from mlm.report.table import Column

MEMBERS = {"window": {"model.family": "feedforward", "model.cell": "window"},
           "lstm": {"model.family": "rnn", "model.cell": "lstm"}, "transformer": {"model.family": "transformer"}}
TRAINED = {"finetune.trainable_layers=-1": "all", "finetune.trainable_layers=1": "last layer",
           "finetune.trainable_layers=0": "head alone", "from_scratch": "all, nothing pretrained"}
# Few rows, seen a few times, so that dropout is as in the papers.
TEXT = {"data.corpus": "docstrings", "tokenizer.vocab_size": 2048, "eval.max_examples": 500, "model.dropout": 0.1,
        "train.batch_size": 16, "train.steps": 800, "train.eval_every": 100}
FILES = {"downstream.tasks": "sst2,cola,mrpc,rte,stsb,wnut17", "downstream.path": "tasks",
         "downstream.learning_rates": (1e-3, 4e-3)}

SCALES = {
    "quick": {"fields": QUICK | QUICK_TASKS, "members": ("lstm", "transformer"), "own": OWN, "seeds": 1},
    "laptop": {"fields": without(LAPTOP, "data.language") | TEXT | FILES, "members": tuple(MEMBERS), "own": OWN,
               "seeds": 3},
    "paper": {"fields": BERT | MOSBACH | {"model.size": "base", "downstream.tasks": "cola,mrpc,rte,stsb",
                                          "downstream.path": "tasks"},
              "members": ("transformer",), "own": {"transformer": {}}, "seeds": 3},
}

COLUMNS = (Column("model", "model"), Column("size", "size"), Column("trained", "trained for the task"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets: a pretraining, and all that is fine-tuned from it."""
    plan = SCALES[scale]
    members = [{"name": member} | MEMBERS[member] | plan["own"][member] for member in plan["members"]]
    points = product(members, axis("seed", *range(plan["seeds"]), name="seed{}"))
    always = plan["fields"].get("downstream.variants", "")
    variants = {"downstream.variants": ",".join(f"{always} {trained}".strip() for trained in TRAINED)}
    return {name: plan["fields"] | variants | point for name, point in named(points).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    return {"model": config["model.cell"] or config["model.family"], "size": config["model.size"],
            "trained": seeds[0]["variant"]}


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each model and what of it was trained for the tasks."""
    return summary.table([part for result in results for part in evaluation_columns.apart(result, TRAINED)], COLUMNS,
                         about)
