"""What should stand where a token is to be predicted: [MASK], the token itself, or a random one?

Claim      Devlin et al. 2019 (BERT, arXiv:1810.04805, table 8): 80/10/10 is a good choice, yet fine-tuning hardly
           cares as long as there is some [MASK].
Command    python -m mlm.launch.sweep run experiments/masking_mix.py --scale=laptop --workers=2
Hours      quick: seconds a point. laptop: 18 points, about 25 minutes on 2 CPU cores with --workers=2, reckoned from
           the time of 64 rows (0.2 s on one core). paper: 6 points of the base model, each about 54 hours of an H200 at
           40% of its peak: 320 hours, an estimate from 6 FLOPs a parameter and token.
Expected   paper, development sets:     MNLI  NER   NER from features
           80% [MASK] 10% same 10% random  84.2  95.4  94.9
           100  0   0                      84.3  94.9  94.0
            80  0  20                      84.1  95.2  94.6
            80 20   0                      84.4  95.2  94.7
             0 20  80                      83.7  94.8  94.6
             0  0 100                      83.6  94.9  94.6
           MNLI and NER (CoNLL-2003) stand beside ours at paper scale (--config.downstream.path=...); the features are
           features.py's question. quick, laptop: fine-tuned for the topic of a passage of the built-in language
           (laptop: half a minute for each of 3 seeds). Beside it held-out loss under [MASK] alone, which the last two
           never saw in training: that alone makes theirs worse.
"""
from collections.abc import Sequence

from mlm.experiment.grid import axis, named, product
from mlm.experiment.recipes import BERT, BERT_GRID, LAPTOP, LAPTOP_TASKS, OWN, PAPER_TASKS, QUICK, QUICK_TASKS
from mlm.report import evaluation_columns, summary
from mlm.report.table import Column

MIXES = [{"name": f"mask{mask}-same{same}-random{random}", "mask.mask_token_prob": mask / 100,
          "mask.random_token_prob": random / 100}
         for mask, same, random in ((80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100))]

TASKS = {"mnli": "MNLI", "conll2003": "NER"}
PAPER = {  # [MASK] / same / random: scores of TASKS, of the base model
    "80 / 10 / 10": (84.2, 95.4), "100 / 0 / 0": (84.3, 94.9), "80 / 0 / 20": (84.1, 95.2),
    "80 / 20 / 0": (84.4, 95.2), "0 / 20 / 80": (83.7, 94.8), "0 / 0 / 100": (83.6, 94.9)}

SCALES = {
    "quick": {"fields": QUICK | QUICK_TASKS | OWN["transformer"], "seeds": 1},
    "laptop": {"fields": LAPTOP | LAPTOP_TASKS | OWN["transformer"], "seeds": 3},
    "paper": {"fields": BERT | PAPER_TASKS | BERT_GRID | {"model.size": "base", "downstream.tasks": ",".join(TASKS)},
              "seeds": 1},
}

COLUMNS = (Column("mix", "[MASK] / same / random"),)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    points = product(MIXES, axis("seed", *range(plan["seeds"]), name="seed{}"))
    return {name: plan["fields"] | point for name, point in named(points).items()}


def about(seeds: Sequence[dict]) -> dict:
    mask, random = (100 * seeds[0]["config"][f"mask.{name}_share"] for name in ("mask", "random"))
    mix = f"{mask:.0f} / {100 - mask - random:.0f} / {random:.0f}"
    theirs = evaluation_columns.paper(TASKS, PAPER[mix]) if seeds[0]["config"]["model.size"] == "base" else {}
    return {"mix": mix, **theirs}


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """BERT's mix is better than [MASK] alone, and than random tokens alone."""
    return [("mask80-same10-random10", other) for other in ("mask100-same0-random0", "mask0-same0-random100")]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each mix."""
    return summary.table(results, COLUMNS, about, evaluation_columns.papers(TASKS))
