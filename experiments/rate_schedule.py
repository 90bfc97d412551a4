"""Should the masking rate fall during training?

Paper      Ankner et al. 2023 (arXiv:2305.15096): yes; a linear fall from 30% to 15% is better than a constant rate, and
           better than a rise.
Run        mlm sweep run experiments/rate_schedule.py --scale=laptop --workers=2
Cost       quick: seconds per point. laptop: 18 points, about 25 minutes on 2 CPU cores with --workers=2, estimated from
           the time of 64 examples (0.2 s on one core). paper: 36 points, about 400 hours of an H200 at 40% of its peak
           (5 per point at base size, 17 at large): an estimate from 6 FLOPs per parameter and token. text: 18 points of
           micro on WikiText-2, 16,000 examples, three seeds, then half an epoch of SST-2: 24 minutes, measured
           beside other work.
Published  GLUE, base size: the fall gains 0.46 points over a constant 15% (abstract of the first version) and 0.17 over
           the better constant rate, 30%; large: up to 0.25 over constant rates (abstract). Tables 1 to 4, with the step
           and the subset of predictions that we have no rows for, stand beside our effects, second hand: from a note
           on the paper, unchecked in it. GPT-BERT's table 2 and BabyLM 2025's stand there, too.
Columns    Held-out loss with 15% and with 30% masked, and the score after fine-tuning: quick and laptop on the topic of
           a passage of the built-in language (laptop: half a minute for each of 3 seeds); text on SST-2; paper on MNLI,
           QNLI, QQP and SST-2 (--config.downstream.path=...). The recipe at scale paper is that of masking_rate.py
           (Wettig et al.), not this paper's own.
Figures    experiments/results/rate_schedule.md
"""

from collections.abc import Sequence

from mlm.base.estimates import estimate_mean
from mlm.experiment.grid import cross_points, make_axis, make_seeds, name_points
from mlm.experiment.recipes import PAPER_TASKS, TRANSFORMERS, WETTIG
from mlm.report import run_columns, summary
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column

SCHEDULES = [
    {"name": "constant-15", "mask.rate": 0.15},
    {"name": "constant-22.5", "mask.rate": 0.225},  # as many predictions as those that change
    {"name": "constant-30", "mask.rate": 0.3},
    {"name": "linear-30-15", "mask.rate": 0.3, "mask.schedule": "linear", "mask.final_rate": 0.15},
    {"name": "linear-15-30", "mask.rate": 0.15, "mask.schedule": "linear", "mask.final_rate": 0.3},
    {"name": "cosine-30-15", "mask.rate": 0.3, "mask.schedule": "cosine", "mask.final_rate": 0.15},
]
PAPER_TABLES = (
    PaperTable(
        "Ankner et al. 2023, tables 1 to 4, base; second hand",
        ("GLUE",),
        {
            "15%": (83.83,),
            "30%": (84.12,),
            "15 to 30%": (83.71,),
            "30 to 15%": (84.29,),
            "30 to 15%, of which 15% predicted": (83.71,),
            "30 to 15% by a cosine": (84.27,),
            "30 to 15% in one step halfway": (84.23,),
        },
        {
            "15%": "constant-15",
            "30%": "constant-30",
            "15 to 30%": "linear-15-30",
            "30 to 15%": "linear-30-15",
            "30 to 15% by a cosine": "cosine-30-15",
        },
    ),
    PaperTable(
        "Ankner et al. 2023, base; second hand",
        ("GLUE", "BLiMP", "loss at 15%"),
        {"30%": (84.12, 82.13, 1.56), "15%": (83.83, 82.44, 1.59), "30 to 15%": (84.29, 82.70, 1.56)},
        {"30%": "constant-30", "15%": "constant-15", "30 to 15%": "linear-30-15"},
    ),
    PaperTable("Ankner et al. 2023, large; second hand", ("GLUE",), {"40%": (86.97,), "40 to 25%": (87.22,)}),
    PaperTable(
        "Charpentier & Samuel 2024 (GPT-BERT), table 2, base",
        ("perplexity", "BLiMP", "MNLI", "EWoK"),
        {"a constant rate": (10.9, 81.1, 79.4, 54.0), "30 to 15%": (10.8, 81.2, 80.1, 54.6)},
    ),
    PaperTable("BabyLM 2025", ("GLUE", "BLiMP"), {"a constant rate": (68.5, 70.7), "a falling one": (69.4, 70.8)}),
)
SHARED_FIELDS = {"mask.max_rate": 0.3, "eval.mask_rates": (0.15, 0.3)}  # one compiled program serves all

SCALES = {
    "quick": {"fields": TRANSFORMERS["quick"] | SHARED_FIELDS, "sizes": ("micro",), "seeds": 1},
    "laptop": {"fields": TRANSFORMERS["laptop"] | SHARED_FIELDS, "sizes": ("micro",), "seeds": 3},
    "text": {"fields": TRANSFORMERS["text"] | SHARED_FIELDS, "sizes": ("micro",), "seeds": 3},
    "paper": {"fields": WETTIG | PAPER_TASKS | SHARED_FIELDS, "sizes": ("base", "large"), "seeds": 3},
}

COLUMNS = (
    *run_columns.select_columns("size"),
    Column("schedule", "masking rate"),
    Column("realised_rate", "realised", ".4f"),
)
RESULT_TABLES = ("papers",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    points = cross_points(make_axis("model.size", *plan["sizes"], name="{}"), SCHEDULES, make_seeds(plan["seeds"]))
    return name_points(points, plan["fields"])


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    name, first, last = (config[f"mask.{field}"] for field in ("schedule", "rate", "final_rate"))
    return {
        "schedule": f"{name}, {first:.3g}" + (f" to {last:.3g}" if last else ""),
        "realised_rate": estimate_mean(result["realised_rate"] for result in seeds),
    }


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """The linear fall is better than every other schedule of its size."""
    return [
        (best, name)
        for best in names
        if best.endswith("-linear-30-15")
        for name in names
        if name != best and name.startswith(best.removesuffix("linear-30-15"))
    ]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each schedule."""
    return summary.build_table(results, COLUMNS, describe_row)
