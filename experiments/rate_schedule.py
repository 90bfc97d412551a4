"""Should the masking rate fall while a model is trained?

Claim      Ankner et al. 2023 (arXiv:2305.15096): yes; a linear fall from 30% to 15% is better than a constant rate, and
           better than a rise.
Command    python -m mlm.launch.sweep run experiments/rate_schedule.py --scale=laptop --workers=2
Hours      quick: seconds a point. laptop: 18 points, about 25 minutes on 2 CPU cores with --workers=2, reckoned from
           the time of 64 rows (0.2 s on one core). paper: 36 points, about 400 hours of an H200 at 40% of its peak (5 a
           point at base size, 17 at large): an estimate from 6 FLOPs a parameter and token.
Expected   paper: the fall gives +0.46 points of GLUE at base size and +0.25 at large over constant rates. The table
           shows held-out loss at 15% and at 30%, and what the model gives once fine-tuned: quick and laptop, for the
           topic of a passage of the built-in language (laptop: half a minute for each of 3 seeds); paper, for MNLI,
           QNLI, QQP, SST-2 (--config.downstream.path=...). The recipe at paper scale is that of masking_rate.py
           (Wettig et al.), not the paper's own.
"""
from collections.abc import Sequence

from mlm.base.estimates import estimate
from mlm.experiment.grid import axis, named, product
from mlm.experiment.recipes import LAPTOP, LAPTOP_TASKS, OWN, PAPER_TASKS, QUICK, QUICK_TASKS, WETTIG
from mlm.report import summary
from mlm.report.table import Column

SCHEDULES = [
    {"name": "constant-15", "mask.rate": 0.15},
    {"name": "constant-22.5", "mask.rate": 0.225},  # as many predictions as those that change
    {"name": "constant-30", "mask.rate": 0.3},
    {"name": "linear-30-15", "mask.rate": 0.3, "mask.schedule": "linear", "mask.final_rate": 0.15},
    {"name": "linear-15-30", "mask.rate": 0.15, "mask.schedule": "linear", "mask.final_rate": 0.3},
    {"name": "cosine-30-15", "mask.rate": 0.3, "mask.schedule": "cosine", "mask.final_rate": 0.15},
]
ALL = {"mask.max_rate": 0.3, "eval.mask_rates": (0.15, 0.3)}  # one compiled program serves all

SCALES = {
    "quick": {"fields": QUICK | QUICK_TASKS | OWN["transformer"] | ALL, "sizes": ("micro",), "seeds": 1},
    "laptop": {"fields": LAPTOP | LAPTOP_TASKS | OWN["transformer"] | ALL, "sizes": ("micro",), "seeds": 3},
    "paper": {"fields": WETTIG | PAPER_TASKS | ALL, "sizes": ("base", "large"), "seeds": 3},
}

COLUMNS = (Column("size", "size"), Column("schedule", "masking rate"), Column("realised_rate", "realised", ".4f"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    points = product(axis("model.size", *plan["sizes"], name="{}"), SCHEDULES,
                     axis("seed", *range(plan["seeds"]), name="seed{}"))
    return {name: plan["fields"] | point for name, point in named(points).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    name, first, last = (config[f"mask.{field}"] for field in ("schedule", "rate", "final_rate"))
    return {"size": config["model.size"], "schedule": f"{name}, {first:.3g}" + (f" to {last:.3g}" if last else ""),
            "realised_rate": estimate(result["realised_rate"] for result in seeds)}


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """The linear fall is better than every other schedule of its size."""
    return [(fall, name) for fall in names if fall.endswith("-linear-30-15")
            for name in names if name != fall and name.startswith(fall.removesuffix("linear-30-15"))]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each schedule."""
    return summary.table(results, COLUMNS, about)
