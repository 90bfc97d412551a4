"""Which optimizer comes closest to the floor, and which one soonest?

Papers     AdamW (Loshchilov & Hutter 2019), StableAdamW (Wortsman et al. 2023, arXiv:2304.13013; ModernBERT's), LAMB
           (You et al. 2020; GPT-BERT's), Lion (Chen et al. 2023, arXiv:2302.06675), Adafactor (Shazeer & Stern 2018),
           Muon (Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982), and AdamW whose parameters are averaged
           exponentially. Optimizers are mostly compared with a baseline that had fewer trials; here all have the same.
Trials     Each has eight trials around its centre (`search_space`: learning rate, weight decay, warm-up, b2), at micro
           size, with a seed that no table has and on rows that no table reads; both sizes have what they chose. The
           centres: AdamW and StableAdamW 4e-3, the small recipe's, near Ettin's 3e-3 for its smallest encoder; LAMB
           1.41e-2 (GPT-BERT); Lion a quarter of AdamW's, with four times its weight decay (Chen et al.: 3 to 10 times).
           Muon began with AdamW's, since its updates have the same size (Liu et al. 2025), Adafactor with 1e-2, of
           the size of each tensor (Shazeer & Stern): both chose a rate at the upper edge, so that their centres were
           doubled and their eight trials made anew. Schedule and clipping are the same for all. paper: five learning
           rates around half the centres, as Wettig et al. 2022 have 2e-3.
Search     mlm sweep search experiments/optimizers.py --scale=trials --trials=8 --workers=2
           --out=experiments/searches/optimizers-trials.json
Thresholds Steps and seconds of training until an evaluation is at most 0.5, 0.2, 0.1 or 0.05 nats above the floor, on
           15% masked; there is one each 100 steps, so that steps are known to 100. The schedule is that of the whole
           run for all: what a shorter one would reach is another question. Seconds are steps times the run's own
           seconds of a step, without compilation and evaluation: compare them where the machine was idle.
Rule       Written before the runs. For each size, optimizers are rows and seeds are blocks (randomized block design,
           mlm/report/compare.py). Each is compared with AdamW in the excess loss at the end, and in the logarithm of
           the steps to each threshold that all seeds of both reached. The p-values (two-sided) have Holm's correction
           for all these comparisons of a size, 30 at most. It is better, or sooner, at a size if the p is below 0.05;
           in general only if so at both sizes. A threshold that one reaches with every seed and the other with none is
           reported as that. Seconds are a column and no test.
Run        mlm sweep run experiments/optimizers.py --scale=laptop --workers=2
Scales     quick: AdamW and Muon, one seed, micro. trials: seven members, one seed, micro, for the search. laptop:
           seven members, micro and tiny, three seeds. paper: seven members at five learning rates, base size, English
           Wikipedia, whose floor nobody knows: the held-out loss alone.
Cost       quick: a minute and a half on 2 CPU cores. The search: as much as 28 points of full length, three quarters of
           an hour with --workers=2. laptop: 42 points, two hours with --workers=2: two points of micro take 2.5
           minutes, two of tiny 9. paper: 35 points of some 5 hours of an H200 at 40% of its peak: an estimate from 6
           FLOPs per parameter and token. text: 21 points of micro on WikiText-2, 32,000 examples, three seeds, with
           what the search on the language chose; the held-out loss alone: 16 minutes, estimated.
Published  Steps to one loss of a causal model (modded-nanogpt, track 3): Adam 5,625 (likely undertuned, as its authors
           say), Shampoo 4,100, Muon 3,250, SOAP 3,125: beside our effects.
Figures    experiments/results/optimizers.md
"""

import math
from collections.abc import Sequence

from mlm.base import phases
from mlm.base.estimates import Estimate
from mlm.experiment import searches
from mlm.experiment.grid import chain_points, cross_points, drop_fields, make_axis, name_points
from mlm.experiment.recipes import ARCHITECTURE_FIELDS, PAPER_TASKS, SMALL, WETTIG, read_text, set_training_length
from mlm.experiment.search_space import Choice, LogUniform
from mlm.report import compare, excess_loss, run_columns, series, summary
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column

BASELINE = "adamw"
MEMBERS = {
    "adamw": {"optim.optimizer": "adamw"},
    "adamw_ema": {"optim.optimizer": "adamw", "optim.ema_decay": 0.999},
    "stable_adamw": {"optim.optimizer": "stable_adamw"},
    "lamb": {"optim.optimizer": "lamb"},
    "lion": {"optim.optimizer": "lion", "optim.b2": 0.99, "optim.weight_decay": 0.04},
    "adafactor": {"optim.optimizer": "adafactor"},
    "muon": {"optim.optimizer": "muon"},
}
CENTRES = dict.fromkeys(MEMBERS, 4e-3) | {"lamb": 1.41e-2, "lion": 1e-3, "adafactor": 2e-2, "muon": 8e-3}
PAPER_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0)  # of the centres
PAPER_TABLES = (
    PaperTable(
        "modded-nanogpt, track 3, a causal model; Adam likely undertuned, say its authors",
        ("steps to one loss",),
        {"Adam": (5_625,), "Shampoo": (4_100,), "Muon": (3_250,), "SOAP": (3_125,)},
        {"Adam": "adamw", "Muon": "muon"},
    ),
)

SEARCHES = searches.read_searches(__file__)
TRIAL_SEED = 3  # of no table, so that nothing is chosen by the runs that are compared
THRESHOLDS = (0.5, 0.2, 0.1, 0.05)  # nats above the floor
NUM_EXAMPLES, EVAL_INTERVAL = 64_000, 1_600  # taken in by a run, and between two evaluations

SMALL_FIELDS = (
    SMALL
    | ARCHITECTURE_FIELDS["transformer"]
    | {"mask.rate": 0.3, "data.language.train_documents": NUM_EXAMPLES}  # every row once
    | set_training_length(NUM_EXAMPLES, EVAL_INTERVAL, {"train.batch_size": 16})
)
SCALES = {
    "quick": {
        "members": (BASELINE, "muon"),
        "sizes": ("micro",),
        "seeds": (0,),
        "fields": SMALL_FIELDS
        | set_training_length(8_000, EVAL_INTERVAL, {"train.batch_size": 16})
        | {"data.language.train_documents": 8_000, "data.language.validation_documents": 200},
    },
    "trials": {"members": tuple(MEMBERS), "sizes": ("micro",), "seeds": (TRIAL_SEED,), "fields": SMALL_FIELDS},
    "laptop": {
        "members": tuple(MEMBERS),
        "sizes": ("micro", "tiny"),
        "seeds": (0, 1, 2),
        "search": "trials",
        "fields": SMALL_FIELDS,
    },
    "text": {
        "members": tuple(MEMBERS),
        "sizes": ("micro",),
        "seeds": (0, 1, 2),
        "search": "trials",
        "fields": read_text(SMALL_FIELDS) | set_training_length(32_000, EVAL_INTERVAL, {"train.batch_size": 16}),
    },
    "paper": {
        "members": tuple(MEMBERS),
        "sizes": ("base",),
        "seeds": (0,),
        "factors": PAPER_FACTORS,
        "fields": WETTIG | PAPER_TASKS,
    },
}

RULE = (
    "p: against AdamW, seeds as blocks, their spread pooled over the optimizers; two-sided, with Holm's correction for "
    "all of a size. Steps: their logarithm, of the optimizers that reached the threshold with every seed."
)
COLUMNS = (
    Column("optimizer", "optimizer"),
    *run_columns.select_columns("size", "learning_rate", "tokens_per_second"),
    Column("difference", "loss minus AdamW's (nats)", "+.3f"),
    Column("p", "p of the loss (Holm)", ".2g", note=RULE),
    *(
        Column(f"{unit}_{threshold:g}", f"{unit} to {threshold:g} nats above the floor", form)
        for unit, form in (("steps", ",.0f"), ("seconds", ",.1f"))
        for threshold in THRESHOLDS
    ),
    *(Column(f"p_{threshold:g}", f"p of the steps to {threshold:g} (Holm)", ".2g") for threshold in THRESHOLDS),
)
RESULT_TABLES = ("papers",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    seeds = make_axis("seed", *plan["seeds"], name="seed{}")
    groups = []
    for size in plan["sizes"]:
        for member in plan["members"]:
            rates = [float(f"{CENTRES[member] * factor:.4g}") for factor in plan.get("factors", ())]
            fields = plan["fields"] | MEMBERS[member] | {"name": f"{member}-{size}", "model.size": size}
            trials = (
                make_axis("optim.learning_rate", *rates, name="lr{:g}")
                if rates
                else make_axis("optim.learning_rate", CENTRES[member])
            )
            points = cross_points([drop_fields(fields, "optim.learning_rate")], trials, seeds)
            chosen = searches.find_chosen(SEARCHES, plan.get("search", ""), f"{member}-micro")
            groups.append([point | chosen for point in points])
    return name_points(chain_points(*groups))


def search_space(point: dict) -> dict:
    """What mlm sweep search tries for a row; a row that does not read a field leaves it out."""
    centre = point["optim.learning_rate"]
    return {
        "optim.learning_rate": LogUniform(centre / 8, centre * 4),
        "optim.weight_decay": LogUniform(point.get("optim.weight_decay", 0.01) / 10, 0.3),
        "optim.warmup_fraction": Choice((0.06, 0.2)),
        "optim.b2": Choice((0.98, 0.99, 0.999)),
    }


def find_member(config: dict) -> str:
    """The member of a run."""
    return config["optim.optimizer"] + ("_ema" if config["optim.ema_decay"] else "")


def compute_tests(results: Sequence[dict]) -> dict[str, dict[str, compare.BlockTest]]:
    """For each size and member, as SIZE-MEMBER, its tests against AdamW: of the loss, and of each threshold."""
    primary = series.select_primary_score(results).name
    found: dict[str, dict[str, compare.BlockTest]] = {}
    for size in dict.fromkeys(result["config"]["model.size"] for result in results):
        runs = [result for result in results if result["config"]["model.size"] == size]
        values = {"end": arrange_by_seed(runs, [run["evaluation"][primary] for run in runs])}
        if excess_loss.has_curves(runs):
            for threshold in THRESHOLDS:
                steps = find_steps(runs, threshold)
                by_member = arrange_by_seed(runs, [math.log(step) if step else math.inf for step in steps])
                values[f"{threshold:g}"] = {
                    member: by_seed for member, by_seed in by_member.items() if math.inf not in by_seed.values()
                }
        tests = {
            (name, pair[0]): test
            for name, by_member in values.items()
            for pair, test in compare.compare_rows(
                by_member, [(member, BASELINE) for member in by_member if member != BASELINE]
            ).items()
        }
        for (name, member), test in compare.correct_p(tests).items():
            found.setdefault(f"{size}-{member}", {})[name] = test
    return found


def find_steps(results: Sequence[dict], threshold: float) -> list[int | None]:
    """For each run the first evaluated step that was at most `threshold` nats above the floor; None: none was."""
    return [excess_loss.find_step(result, result["evaluation"]["floor"] + threshold) for result in results]


def measure_seconds(result: dict, step: int) -> float:
    """Seconds of a run's first steps."""
    cfg, seconds = series.read_config(result), result["tokens"] / result["tokens_per_second"]
    return seconds / phases.count_work(cfg, range(result["steps"])) * phases.count_work(cfg, range(step))


def measure_thresholds(results: Sequence[dict]) -> dict[str, Estimate | str]:
    """Steps and seconds of training to each of THRESHOLDS; seed by seed where one never came so close.

    Nothing where the floor is not known, or where there is no evaluation but the last.
    """
    cells: dict[str, Estimate | str] = {}
    for threshold in THRESHOLDS if excess_loss.has_curves(results) else ():
        steps = find_steps(results, threshold)
        cells[f"steps_{threshold:g}"] = excess_loss.summarize(results, steps, lambda result, step: step, ",d")
        cells[f"seconds_{threshold:g}"] = excess_loss.summarize(results, steps, measure_seconds, ",.1f")
    return cells


def arrange_by_seed(runs: Sequence[dict], values: Sequence[float]) -> dict[str, dict[int, float]]:
    """The values of runs, by member and seed."""
    arranged: dict[str, dict[int, float]] = {}
    for run, value in zip(runs, values, strict=True):
        arranged.setdefault(find_member(run["config"]), {})[run["config"]["seed"]] = value
    return arranged


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each optimizer, size and learning rate, with how soon it came how close to the floor."""
    tests = compute_tests(results)

    def describe_row(seeds):
        config = seeds[0]["config"]
        own = tests.get(f"{config['model.size']}-{find_member(config)}", {})
        return {
            "optimizer": find_member(config),
            **measure_thresholds(seeds),
            **({"difference": own["end"].difference, "p": own["end"].p} if "end" in own else {}),
            **{f"p_{name}": test.p for name, test in own.items()},
        }

    return summary.build_table(results, COLUMNS, describe_row)
