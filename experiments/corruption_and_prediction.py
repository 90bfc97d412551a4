"""What does a higher masking rate bring: a harder task, as more is corrupted, or more training, as more is predicted?

Claim      Wettig et al. 2022 (arXiv:2202.08005) take the two apart: more corruption makes the task harder, more
           predictions make training better. Their public code cannot do it.
How        40% is masked and predicted; from there one of the two is changed. Less is predicted than corrupted: a random
           part of it. More: each row is seen under several masks that share no token, and what all of them hide is
           predicted, at a pass through the model for each (mlm/objectives/masking.py).
Command    python -m mlm.launch.sweep run experiments/corruption_and_prediction.py --scale=laptop --workers=2
Hours      quick: seconds a point. laptop: 21 points, about 50 minutes on 2 CPU cores with --workers=2, reckoned from
           the time of 64 rows (0.2 s a view on one core). paper: 7 points of the large model, 12 views in all, each
           about 17 hours of an H200 at 40% of its peak: 200 hours, an estimate.
Expected   no number of the paper's is at hand for this table; it was of scores after fine-tuning. Here: held-out loss,
           and what the model gives once fine-tuned: quick and laptop, for the topic of a passage of the built-in
           language (laptop: half a minute for each of 3 seeds); paper, for MNLI, QNLI, QQP, SST-2
           (--config.downstream.path=...).
"""
from collections.abc import Sequence

from mlm.base.estimates import estimate
from mlm.experiment.grid import axis, named, product
from mlm.experiment.recipes import LAPTOP, LAPTOP_TASKS, OWN, PAPER_TASKS, QUICK, QUICK_TASKS, WETTIG
from mlm.report import summary
from mlm.report.table import Column

PURE = {"mask.mask_token_prob": 1.0, "mask.random_token_prob": 0.0}
RATES = ((0.4, 0.1), (0.4, 0.2), (0.4, 0.4), (0.4, 0.8), (0.1, 0.4), (0.2, 0.4), (0.8, 0.4))  # corruption, prediction

SCALES = {
    "quick": {"fields": QUICK | QUICK_TASKS | OWN["transformer"], "rates": ((0.4, 0.4), (0.4, 0.2), (0.2, 0.4)),
              "seeds": 1},
    "laptop": {"fields": LAPTOP | LAPTOP_TASKS | OWN["transformer"], "rates": RATES, "seeds": 3},
    "paper": {"fields": WETTIG | PAPER_TASKS | {"model.size": "large"}, "rates": RATES, "seeds": 1},
}

COLUMNS = (Column("corrupted", "corrupted"), Column("predicted", "predicted"), Column("views", "masks of a row", "d"),
           Column("realised_rate", "corrupted, realised", ".4f"),
           Column("realised_predict", "predicted, realised", ".4f"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    rates = [{"name": f"corrupt-{rate}-predict-{predict}", "mask.rate": rate, "mask.predict_rate": predict}
             for rate, predict in plan["rates"]]
    points = product(rates, axis("seed", *range(plan["seeds"]), name="seed{}"))
    return {name: plan["fields"] | PURE | point for name, point in named(points).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    return {"corrupted": f"{config['mask.rate']:.0%}", "predicted": f"{config['mask.predict_rate']:.0%}",
            "views": config["mask.masks_per_example"],
            **{name: estimate(result[name] for result in seeds) for name in ("realised_rate", "realised_predict")}}


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """More prediction is better at the same corruption, and less corruption at the same prediction."""
    pairs = (((0.4, 0.4), (0.4, 0.2)), ((0.4, 0.8), (0.4, 0.4)), ((0.2, 0.4), (0.4, 0.4)), ((0.4, 0.4), (0.8, 0.4)))
    return [tuple(f"corrupt-{rate}-predict-{predict}" for rate, predict in pair) for pair in pairs]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each pair of a corruption rate and a prediction rate."""
    return summary.table(results, COLUMNS, about)
