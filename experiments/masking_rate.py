"""Does masking 40% make a better model than masking 15%, and is the best rate higher for a larger model?

Paper      Wettig et al. 2022 ("Should You Mask 15%?", arXiv:2202.08005): yes for a large model, for which 40% is best;
           even 80% keeps most of the quality. [MASK] alone is as good as 80/10/10.
Method     A learning rate that was tuned at one masking rate favors that rate. So none is tuned: at scale laptop each
           masking rate is trained with the same three learning rates, at either size, a row of the table each, and
           rates are compared within a learning rate. paper: the paper's learning rate for all.
Run        mlm sweep run experiments/masking_rate.py --scale=laptop --workers=2
           (your own text: --config.data.path=... --config.tokenizer.vocab_size=2048 --config.workdir=runs/...)
Cost       quick: seconds per point. laptop: 81 points, 140 minutes on 2 CPU cores with --workers=2, estimated from the
           73 of 42 points with as many examples. paper: 60 points, some 660 hours of an H200 at 40% of its peak (5 per
           point at base size, 17 at large): an estimate from 6 FLOPs per parameter and token.
Published  large model, accuracy on the development sets after fine-tuning (the authors' README):
           rate           15    20    30    40    50    60    70    80 | 80/10/10: 15    40
           MNLI         84.2  84.1  84.2  84.5  84.1  83.2  82.3  80.8 |         83.7  84.3
           QNLI         90.9  91.3  91.6  91.6  91.1  90.7  89.4  87.9 |         90.4  91.2
           QQP          87.8  87.9  88.0  88.1  88.1  87.8  87.5  87.1 |         87.8  87.9
           SST-2        93.3  92.7  93.0  92.8  92.7  92.6  91.9  90.5 |         93.2  93.0
           They stand beside our scores at scale paper.
Columns    Held-out loss with 15% masked, and with every other rate masked: a row is a rate of training, a column a rate
           of evaluation.
Tasks      paper: the four tasks, from folders below --config.downstream.path=... (--config.downstream.tasks= skips
           them). quick, laptop: the topic of a passage of the built-in language, whose Bayes-optimal accuracy is known;
           at scale laptop 3 pretraining seeds x 3 fine-tuning seeds, half a minute each: 2 hours more. For models of
           your own text: --config.downstream.tasks=sst2,cola --config.downstream.path=...
"""

from collections.abc import Sequence

from mlm.experiment.grid import chain_points, cross_points, make_axis, make_seeds, name_points
from mlm.experiment.recipes import (
    ARCHITECTURE_FIELDS,
    LAPTOP,
    LAPTOP_TASKS,
    PAPER_TASKS,
    QUICK,
    QUICK_TASKS,
    TUNED_FIELDS,
    WETTIG,
    set_training_length,
)
from mlm.report import evaluation_columns, run_columns, summary
from mlm.report.table import Column

RATES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # to train at
EVAL_FIELDS = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # to judge at; apart: one more to train at redoes no run
MODELS = {
    "transformer": {"name": "transformer", "model.family": "transformer"},
    "lstm": {"name": "lstm", "model.family": "rnn", "model.cell": "lstm"},
}
MIXES = {
    "mask": {"name": "mask", "mask.mask_token_prob": 1.0, "mask.random_token_prob": 0.0},
    "80-10-10": {"name": "80-10-10", "mask.mask_token_prob": 0.8, "mask.random_token_prob": 0.1},
}

TASKS = {"mnli": "MNLI", "qnli": "QNLI", "qqp": "QQP", "sst2": "SST-2"}
PAPER = {  # large: [MASK] alone?, rate: accuracies of TASKS
    (True, 0.15): (84.2, 90.9, 87.8, 93.3),
    (True, 0.2): (84.1, 91.3, 87.9, 92.7),
    (True, 0.3): (84.2, 91.6, 88.0, 93.0),
    (True, 0.4): (84.5, 91.6, 88.1, 92.8),
    (True, 0.5): (84.1, 91.1, 88.1, 92.7),
    (True, 0.6): (83.2, 90.7, 87.8, 92.6),
    (True, 0.7): (82.3, 89.4, 87.5, 91.9),
    (True, 0.8): (80.8, 87.9, 87.1, 90.5),
    (False, 0.15): (83.7, 90.4, 87.8, 93.2),
    (False, 0.4): (84.3, 91.2, 87.9, 93.0),
}

# Of a laptop's runs: each model's own batch, and as many rows whatever that is.
TRAINING_FIELDS = {
    member: ARCHITECTURE_FIELDS[member]
    | set_training_length(44_800, 6_400, {"train.batch_size": TUNED_FIELDS[member]["train.batch_size"]})
    for member in MODELS
}

# Which rates to train at, by model, size and mix. Runs of seconds share one compiled program, with room for the highest
# rate; in longer ones a program for each rate costs less: 216 ms for 64 rows at 15%, and 315 with that room.
SCALES = {
    "quick": {
        "fields": QUICK | QUICK_TASKS | {"mask.max_rate": 0.8, "eval.mask_rates": (0.15, 0.4, 0.8)},
        "seeds": 1,
        "own": ARCHITECTURE_FIELDS,
        "learning_rates": (QUICK["optim.learning_rate"],),
        "rates": {("transformer", "micro", "mask"): (0.15, 0.4, 0.8), ("transformer", "micro", "80-10-10"): (0.4,)},
    },
    "laptop": {
        "fields": LAPTOP | LAPTOP_TASKS | {"eval.mask_rates": EVAL_FIELDS, "data.language.validation_documents": 300},
        "seeds": 3,
        "own": TRAINING_FIELDS,
        "learning_rates": (2e-3, 4e-3, 8e-3),
        "rates": {
            ("transformer", "micro", "mask"): (0.15, 0.4, 0.8),
            ("transformer", "micro", "80-10-10"): (0.15, 0.4),
            ("transformer", "tiny", "mask"): (0.15, 0.4),
            ("lstm", "micro", "mask"): (0.15, 0.4),
        },
    },
    "paper": {
        "fields": WETTIG | PAPER_TASKS | {"eval.mask_rates": EVAL_FIELDS},
        "seeds": 3,
        "own": {"transformer": {}},
        "learning_rates": (WETTIG["optim.learning_rate"],),
        "rates": {
            ("transformer", size, mix): rates
            for size in ("base", "large")
            for mix, rates in (("mask", RATES), ("80-10-10", (0.15, 0.4)))
        },
    },
}

COLUMNS = (
    *run_columns.select_columns("model", "size"),
    Column("masking", "masking"),
    *run_columns.select_columns("learning_rate"),
    Column("rate", "trained at"),
)
PAPER_COLUMNS = evaluation_columns.build_paper_columns(TASKS)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    seeds = make_seeds(plan["seeds"])
    learning_rates = make_axis("optim.learning_rate", *plan["learning_rates"], name="lr{}")
    points = chain_points(
        *(
            cross_points(
                [MODELS[member] | plan["own"][member]],
                make_axis("model.size", size, name="{}"),
                [MIXES[mix]],
                learning_rates,
                make_axis("mask.rate", *rates, name="{}"),
                seeds,
            )
            for (member, size, mix), rates in plan["rates"].items()
        )
    )
    return name_points(points, plan["fields"])


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    is_mask_only = config["mask.mask_token_prob"] == 1
    row = {"masking": "[MASK]" if is_mask_only else "80/10/10", "rate": f"{config['mask.rate']:.0%}"}
    paper = PAPER.get((is_mask_only, config["mask.rate"])) if config["model.size"] == "large" else None
    return row | (evaluation_columns.build_paper_cells(TASKS, paper) if paper else {})


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """At each learning rate 40% is better than 15%, and [MASK] alone better than 80/10/10."""
    return [(name, f"{name.removesuffix('-0.4')}-0.15") for name in names if name.endswith("-0.4")] + [
        (name, name.replace("-mask-", "-80-10-10-")) for name in names if "-mask-" in name
    ]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each model, mix, learning rate and masking rate of training."""
    return summary.build_table(results, COLUMNS, describe_row, PAPER_COLUMNS)
