"""How much of a pretrained model must be trained for a task: all of it, its last layer, or the head alone?

Question   Training the head alone shows what pretraining put into the states themselves; training all layers shows what
           pretraining made easy to learn. Both are measured for each architecture, at the same size, examples and steps
           of pretraining.
Paper      Devlin et al. 2019 (arXiv:1810.04805) train all layers; Lee et al. 2019 ("What Would Elsa Do?",
           arXiv:1911.03090) find that the last quarter of the layers gives most of what all give. Neither compares
           recurrent or feedforward models.
Run        mlm sweep run experiments/fine_tuning.py --scale=laptop --workers=2 --config.downstream.path=...
           (your own text: --config.data.path=... --config.tokenizer.vocab_size=2048)
Data       quick: the built-in language and the topic of a passage, whose Bayes-optimal score is known (more tasks:
           --config.downstream.tasks=topic,pair,tag,subject). laptop: the documentation in Python's standard library,
           and six tasks whose files you bring, a folder each below downstream.path; MRPC is not split as in GLUE.
           paper: English Wikipedia, and four small sets of GLUE by the recipe of Mosbach et al. 2021 (MOSBACH).
Method     A learning rate that suits all parameters is too low for a head alone, so each variant has the same learning
           rates to choose from, on the dev split. The same model without pretraining stands beside them. Each point has
           one fine-tuning seed; there are three pretraining seeds. Failed fine-tunings are listed below the table.
Cost       quick: two points, a minute or two each with 4 fine-tunings. laptop: 9 points of 48 fine-tunings, of which
           the 8 of SST-2 take most; some 20 hours on 2 CPU cores with --workers=2: an estimate from 20 ms per step.
           paper: 3 points of the base model, for an accelerator; not estimated. text: 6 points of micro on WikiText-2,
           16,000 examples, two seeds, half an epoch of SST-2 and of the parts of speech of UD-EWT: 25 minutes,
           estimated.
Figures    none yet
"""

from collections.abc import Sequence

from mlm.experiment.grid import cross_points, drop_fields, make_seeds, name_points
from mlm.experiment.recipes import BERT, LAPTOP, QUICK, QUICK_TASKS, TEXT, TEXT_TASKS, make_member
from mlm.report import evaluation_scores, run_columns, summary
from mlm.report.table import Column

MEMBERS = ("window", "lstm", "transformer")
VARIANTS = {
    "finetune.trainable_layers=-1": "all",
    "finetune.trainable_layers=1": "last layer",
    "finetune.trainable_layers=0": "head alone",
    "from_scratch": "all, nothing pretrained",
}
# Few rows, seen a few times, so that dropout is as in the papers.
DOCSTRINGS = {
    "data.corpus": "docstrings",
    "tokenizer.vocab_size": 2048,
    "eval.max_examples": 500,
    "model.dropout": 0.1,
    "train.batch_size": 16,
    "train.steps": 800,
    "train.eval_every": 100,
}
# For sets of a few thousand examples Mosbach et al. 2021 (arXiv:2006.04884) take longer than BERT's grid, with more
# warm-up, and choose nothing: fewer of theirs fail.
MOSBACH = {
    "downstream.learning_rates": (2e-5,),
    "downstream.epochs": (20.0,),
    "downstream.batch_sizes": (16,),
    "downstream.variants": "optim.warmup_fraction=0.1 train.group_by_length=False",
}
FILE_TASKS = {
    "downstream.tasks": "sst2,cola,mrpc,rte,stsb,wnut17",
    "downstream.path": "tasks",
    "downstream.learning_rates": (1e-3, 4e-3),
}

SCALES = {
    "quick": {"fields": QUICK | QUICK_TASKS, "members": ("lstm", "transformer"), "seeds": 1},
    "laptop": {
        "fields": drop_fields(LAPTOP, "data.language") | DOCSTRINGS | FILE_TASKS,
        "members": MEMBERS,
        "seeds": 3,
    },
    "text": {
        "fields": TEXT
        | TEXT_TASKS
        | {"downstream.tasks": "sst2,ud_ewt", "downstream.learning_rates": FILE_TASKS["downstream.learning_rates"]},
        "members": MEMBERS,
        "seeds": 2,
    },
    "paper": {
        "fields": BERT
        | MOSBACH
        | {"model.size": "base", "downstream.tasks": "cola,mrpc,rte,stsb", "downstream.path": "tasks"},
        "members": ("transformer",),
        "seeds": 3,
    },
}

COLUMNS = (*run_columns.select_columns("model", "size"), Column("trained", "trained for the task"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets: a pretraining, and all that is fine-tuned from it."""
    plan = SCALES[scale]
    members = [make_member(member, scale) for member in plan["members"]]
    points = cross_points(members, make_seeds(plan["seeds"]))
    shared_settings = plan["fields"].get("downstream.variants", "")
    variants = {"downstream.variants": ",".join(f"{shared_settings} {variant}".strip() for variant in VARIANTS)}
    return name_points(points, plan["fields"] | variants)


def describe_row(seeds: Sequence[dict]) -> dict:
    return {"trained": seeds[0]["variant"]}


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each model and what of it was trained for the tasks."""
    return summary.build_table(
        [part for result in results for part in evaluation_scores.split_variants(result, VARIANTS)],
        COLUMNS,
        describe_row,
    )
