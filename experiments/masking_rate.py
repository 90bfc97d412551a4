"""Does masking 40% make a better model than masking 15%, and does a larger model want more?

Claim      Wettig et al. 2022 ("Should You Mask 15%?", arXiv:2202.08005): yes for a large model, which 40% serves best;
           even 80% keeps most of what it learns. [MASK] alone is as good as 80/10/10.
How        A learning rate that was chosen at one masking rate favours that rate. So none is chosen: at laptop scale
           every rate of training has the same three learning rates, at either size, a row of the table each, and rates
           are compared at each of them. paper: the paper's one for all.
Command    python -m mlm.launch.sweep run experiments/masking_rate.py --scale=laptop --workers=2
           (your own text: --config.data.path=... --config.tokenizer.vocab_size=2048 --config.workdir=runs/...)
Hours      quick: seconds a point. laptop: 81 points, 140 minutes on 2 CPU cores with --workers=2, reckoned from 73 for
           42 points of as many rows. paper: 60 points, some 660 hours of an H200 at 40% of its peak (5 a point at base
           size, 17 at large): an estimate from 6 FLOPs a parameter and token.
Expected   paper, large, accuracy on the development sets after fine-tuning (the authors' README):
           rate           15    20    30    40    50    60    70    80 | 80/10/10: 15    40
           MNLI         84.2  84.1  84.2  84.5  84.1  83.2  82.3  80.8 |         83.7  84.3
           QNLI         90.9  91.3  91.6  91.6  91.1  90.7  89.4  87.9 |         90.4  91.2
           QQP          87.8  87.9  88.0  88.1  88.1  87.8  87.5  87.1 |         87.8  87.9
           SST-2        93.3  92.7  93.0  92.8  92.7  92.6  91.9  90.5 |         93.2  93.0
           They stand beside ours at paper scale. The table shows held-out loss on masks of 15%, too, and at every
           other rate: a row is a rate of training, a column one of evaluation.
Tasks      paper: the four, from folders of --config.downstream.path=... (--config.downstream.tasks= does without).
           quick, laptop: the topic of a passage of the built-in language, whose best possible accuracy is known; at
           laptop scale over 3 seeds of pretraining x 3 of fine-tuning, half a minute each: 2 hours more. Of models of
           your own text: --config.downstream.tasks=sst2,cola --config.downstream.path=...
"""
from collections.abc import Sequence

from mlm.experiment.grid import axis, chain, named, product
from mlm.experiment.recipes import BEST, LAPTOP, LAPTOP_TASKS, OWN, PAPER_TASKS, QUICK, QUICK_TASKS, WETTIG, of_rows
from mlm.report import evaluation_columns, summary
from mlm.report.table import Column

RATES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)   # to train at
JUDGED = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # to judge at; apart: one more to train at redoes no run
MEMBERS = {"transformer": {"name": "transformer", "model.family": "transformer"},
           "lstm": {"name": "lstm", "model.family": "rnn", "model.cell": "lstm"}}
MIXES = {"mask": {"name": "mask", "mask.mask_token_prob": 1.0, "mask.random_token_prob": 0.0},
         "80-10-10": {"name": "80-10-10", "mask.mask_token_prob": 0.8, "mask.random_token_prob": 0.1}}

TASKS = {"mnli": "MNLI", "qnli": "QNLI", "qqp": "QQP", "sst2": "SST-2"}
PAPER = {  # large: [MASK] alone?, rate: accuracies of TASKS
    (True, 0.15): (84.2, 90.9, 87.8, 93.3), (True, 0.2): (84.1, 91.3, 87.9, 92.7),
    (True, 0.3): (84.2, 91.6, 88.0, 93.0), (True, 0.4): (84.5, 91.6, 88.1, 92.8),
    (True, 0.5): (84.1, 91.1, 88.1, 92.7), (True, 0.6): (83.2, 90.7, 87.8, 92.6),
    (True, 0.7): (82.3, 89.4, 87.5, 91.9), (True, 0.8): (80.8, 87.9, 87.1, 90.5),
    (False, 0.15): (83.7, 90.4, 87.8, 93.2), (False, 0.4): (84.3, 91.2, 87.9, 93.0)}

# Of a laptop's runs: each model's own batch, and as many rows whatever that is.
LONG = {member: OWN[member] | of_rows(44_800, 6_400, {"train.batch_size": BEST[member]["train.batch_size"]})
        for member in MEMBERS}

# Which rates to train at, by model, size and mix. Runs of seconds share one compiled program, with room for the highest
# rate; in longer ones a program for each rate costs less: 216 ms for 64 rows at 15%, and 315 with that room.
SCALES = {
    "quick": {"fields": QUICK | QUICK_TASKS | {"mask.max_rate": 0.8, "eval.mask_rates": (0.15, 0.4, 0.8)}, "seeds": 1,
              "own": OWN, "learning_rates": (QUICK["optim.learning_rate"],),
              "rates": {("transformer", "micro", "mask"): (0.15, 0.4, 0.8),
                        ("transformer", "micro", "80-10-10"): (0.4,)}},
    "laptop": {"fields": LAPTOP | LAPTOP_TASKS | {"eval.mask_rates": JUDGED, "data.language.validation_documents": 300},
               "seeds": 3,
               "own": LONG, "learning_rates": (2e-3, 4e-3, 8e-3),
               "rates": {("transformer", "micro", "mask"): (0.15, 0.4, 0.8),
                         ("transformer", "micro", "80-10-10"): (0.15, 0.4),
                         ("transformer", "tiny", "mask"): (0.15, 0.4),
                         ("lstm", "micro", "mask"): (0.15, 0.4)}},
    "paper": {"fields": WETTIG | PAPER_TASKS | {"eval.mask_rates": JUDGED}, "seeds": 3,
              "own": {"transformer": {}}, "learning_rates": (WETTIG["optim.learning_rate"],),
              "rates": {("transformer", size, mix): rates for size in ("base", "large")
                        for mix, rates in (("mask", RATES), ("80-10-10", (0.15, 0.4)))}},
}

COLUMNS = (Column("model", "model"), Column("size", "size"), Column("masking", "masking"),
           Column("learning_rate", "learning rate", "g"), Column("rate", "trained at"))
PAPERS = evaluation_columns.papers(TASKS)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    seeds = axis("seed", *range(plan["seeds"]), name="seed{}")
    learning_rates = axis("optim.learning_rate", *plan["learning_rates"], name="lr{}")
    points = chain(*(product([MEMBERS[member] | plan["own"][member]], axis("model.size", size, name="{}"), [MIXES[mix]],
                             learning_rates, axis("mask.rate", *rates, name="{}"), seeds)
                     for (member, size, mix), rates in plan["rates"].items()))
    return {name: plan["fields"] | point for name, point in named(points).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    pure = config["mask.mask_token_prob"] == 1
    row = {"model": config["model.cell"] or config["model.family"], "size": config["model.size"],
           "masking": "[MASK]" if pure else "80/10/10", "learning_rate": config["optim.learning_rate"],
           "rate": f"{config['mask.rate']:.0%}"}
    theirs = PAPER.get((pure, config["mask.rate"])) if config["model.size"] == "large" else None
    return row | (evaluation_columns.paper(TASKS, theirs) if theirs else {})


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """At each learning rate 40% is better than 15%, and [MASK] alone better than 80/10/10."""
    return [(name, f"{name.removesuffix('-0.4')}-0.15") for name in names if name.endswith("-0.4")] + [
        (name, name.replace("-mask-", "-80-10-10-")) for name in names if "-mask-" in name]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each model, mix, learning rate and masking rate of training."""
    return summary.table(results, COLUMNS, about, PAPERS)
