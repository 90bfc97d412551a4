"""Does masking 40% make a better model than masking 15%, and is the best rate higher for a larger model?

Paper      Wettig et al. 2022 ("Should You Mask 15%?", arXiv:2202.08005): yes for a large model, for which 40% is best;
           even 80% keeps most of the quality. [MASK] alone is as good as 80/10/10.
Method     A learning rate that was tuned at one masking rate favors that rate, and one tuned at one size that size. So
           each masking rate has the same search of learning rate and warm-up at each size, with a seed that no table
           has and on rows that no table reads; it is made at the middle budget, and all budgets have what it chose, and
           so has scale text. (A search at micro size alone, in a first run, chose 0.012 for 15% and 30%, at which some
           tiny models stayed on the unigram's plateau.) A budget is a number of examples; every point is a run of its
           own, with a schedule of that length. The built-in language has as many, so that each is read once; a text of
           fewer is read several times. paper: the paper's learning rate for all.
Rule       Written before all runs, that first one too. For each size and budget, seeds are blocks and rates are
           treatments (randomized block design, mlm/report/compare.py); each rate is compared with 15%, and the
           two-sided p has Holm's correction for the rates of that size and budget. A rate is better or worse if its p
           is below 0.05. Whether 40% is worth more at a larger size or budget: the loss at 40% less that at 15% is a
           row for each size and budget, seeds are blocks, and neighboring sizes and budgets are compared, with Holm's
           correction for all these pairs; so it is if p is below 0.05. Between budgets it may be the rates' learning
           rates, which the middle one chose. All else is a difference with its interval, and no sentence.
Run        mlm sweep run experiments/masking_rate.py --scale=laptop --workers=2
           Your own text: --scale=text --config.data.path=... --config.tokenizer.vocab_size=8192
           --config.downstream.path=FOLDER of the tasks; after it mlm evaluate runs/masking_rate-text/*/ --blimp=FOLDER,
           and the table has the accuracy on BLiMP.
Search     mlm sweep search experiments/masking_rate.py --scale=trials --trials=8 --rungs=1 --workers=2
           --out=experiments/searches/masking_rate-trials.json; before it, the default learning rate and warm-up hold.
Scales     quick: three rates, one seed. trials: five rates, one seed, micro and tiny, the middle budget, for the
           search. laptop: the same rates and sizes, three budgets, three seeds. text: three rates, tiny, three seeds,
           fine-tuned on five tasks. paper: base and large, eight rates and two of 80/10/10, three seeds.
Cost       quick: seconds per point. The search: 80 points, an hour and a half on 2 CPU cores with --workers=2.
           laptop: 90 points, two hours and a quarter. text: 9 points, about 70 minutes, half of it fine-tuning: all
           estimated from 48,000 and 12,500 tokens a second of a core. On an H200, where mask.max_rate=0.8 lets all
           rates share a program, the search took 112 s and laptop 155 s (docs/guides/devices.md), and text, with
           --workers=9, 445 s. paper: 60 points, some 660 hours of an H200 at 40% of its peak (5 per point at base
           size, 17 at large): an estimate from 6 FLOPs per parameter and token.
Published  large model, accuracy on the development sets after fine-tuning (the authors' README):
           rate           15    20    30    40    50    60    70    80 | 80/10/10: 15    40
           MNLI         84.2  84.1  84.2  84.5  84.1  83.2  82.3  80.8 |         83.7  84.3
           QNLI         90.9  91.3  91.6  91.6  91.1  90.7  89.4  87.9 |         90.4  91.2
           QQP          87.8  87.9  88.0  88.1  88.1  87.8  87.5  87.1 |         87.8  87.9
           SST-2        93.3  92.7  93.0  92.8  92.7  92.6  91.9  90.5 |         93.2  93.0
           They stand beside our scores at scale paper, and beside our effects at all scales; so do the test scores of
           table 2, second hand: from a note on the paper, unchecked in it. By it the best rate (figure 2, average of
           GLUE) is 15% for a medium model of 51M, 20% for base and 40% for large.
Columns    Held-out loss with 15% masked, and with other rates masked: a row is a rate of training, a column a rate of
           evaluation. "difference" and p are those of the rule.
Tasks      paper: the four tasks, from folders below --config.downstream.path=... (--config.downstream.tasks= skips
           them). text: SST-2, CoLA, MRPC, RTE and STS-B, one fine-tuning of each model. quick: the topic of a passage
           of the built-in language, whose Bayes-optimal accuracy is known.
Figures    experiments/results/masking_rate.md
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from mlm.base.estimates import estimate_mean
from mlm.experiment import searches
from mlm.experiment.grid import chain_points, cross_points, make_axis, name_points
from mlm.experiment.recipes import (
    ARCHITECTURE_FIELDS,
    LAPTOP,
    PAPER_TASKS,
    QUICK,
    TRANSFORMERS,
    WETTIG,
    set_training_length,
)
from mlm.experiment.search_space import Choice, LogUniform
from mlm.report import charts as report_charts
from mlm.report import compare, run_columns, series, summary
from mlm.report.charts import LineChart
from mlm.report.paper_tables import PaperTable
from mlm.report.series import Series
from mlm.report.table import Column, NamedTable, build_paper_cells, build_paper_columns

RATES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # to train at
EVAL_RATES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # to judge at; apart: one more to train at redoes no run
TRANSFORMER = {"name": "transformer", "model.family": "transformer"}
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
PAPER_TABLES = (
    PaperTable(
        "Wettig et al. 2022, table 2, large, test sets (SQuAD: dev); second hand",
        ("MNLI", "QNLI", "RTE", "SST-2", "SQuAD F1"),
        {"15% masked": (84.2, 90.9, 73.5, 92.8, 88.0), "40% masked": (84.7, 91.3, 75.5, 92.6, 89.8)},
        {"15% masked": "0.15", "40% masked": "0.4"},
    ),
    PaperTable(
        "Wettig et al. 2022, large (the authors' README)",
        tuple(TASKS.values()),
        {f"{rate:.0%} masked": scores for (is_mask_only, rate), scores in PAPER.items() if is_mask_only},
        {f"{rate:.0%} masked": f"{rate:g}" for rate in RATES},
    ),
    *(
        PaperTable(
            "Wettig et al. 2022, large (the authors' README)",
            tuple(TASKS.values()),
            {f"[MASK] alone at {rate:.0%}": PAPER[True, rate], "80/10/10": PAPER[False, rate]},
            {f"[MASK] alone at {rate:.0%}": f"mask-{rate:g}", "80/10/10": f"80-10-10-{rate:g}"},
        )
        for rate in (0.15, 0.4)
    ),
)

SEARCHES = searches.read_searches(__file__)
TRIAL_SEED = 3  # of no table, so that nothing is chosen by the runs that are compared
LAPTOP_RATES, TEXT_RATES = (0.15, 0.3, 0.4, 0.6, 0.8), (0.15, 0.4, 0.8)  # to train at
BASELINE, CONTENDER = 0.15, 0.4  # BERT's rate, and the paper's
BUDGETS, MIDDLE = (8_000, 20_000, 50_000), 20_000  # examples
NUM_EVALUATIONS = 5  # of a run
LAPTOP_FIELDS = (
    LAPTOP
    | ARCHITECTURE_FIELDS["transformer"]
    | {"eval.mask_rates": EVAL_RATES, "data.language.validation_documents": 300}
)
TEXT_TASKS = {
    "downstream.tasks": "sst2,cola,mrpc,rte,stsb",
    "downstream.path": "tasks",
    "downstream.learning_rates": (1e-3,),
    "downstream.epochs": (3.0,),
}

# Which rates to train at, by size and mix. Runs of seconds share one compiled program, with room for the highest rate;
# in longer ones a program for each rate costs less: 216 ms for 64 rows at 15%, and 315 with that room.
SCALES = {
    "quick": {
        "fields": TRANSFORMERS["quick"] | {"mask.max_rate": 0.8, "eval.mask_rates": (0.15, 0.4, 0.8)},
        "seeds": (0,),
        "learning_rate": QUICK["optim.learning_rate"],
        "rates": {("micro", "mask"): (0.15, 0.4, 0.8), ("micro", "80-10-10"): (0.4,)},
    },
    "trials": {
        "fields": LAPTOP_FIELDS,
        "seeds": (TRIAL_SEED,),
        "budgets": (MIDDLE,),
        "rates": {(size, "mask"): LAPTOP_RATES for size in ("micro", "tiny")},
    },
    "laptop": {
        "fields": LAPTOP_FIELDS,
        "seeds": (0, 1, 2),
        "search": "trials",
        "budgets": BUDGETS,
        "rates": {(size, "mask"): LAPTOP_RATES for size in ("micro", "tiny")},
    },
    "text": {
        "fields": LAPTOP_FIELDS | TEXT_TASKS,
        "seeds": (0, 1, 2),
        "search": "trials",
        "budgets": BUDGETS[-1:],
        "rates": {("tiny", "mask"): TEXT_RATES},
    },
    "paper": {
        "fields": WETTIG | PAPER_TASKS | {"eval.mask_rates": EVAL_RATES},
        "seeds": (0, 1, 2),
        "learning_rate": WETTIG["optim.learning_rate"],
        "rates": {
            (size, mix): rates
            for size in ("base", "large")
            for mix, rates in (("mask", RATES), ("80-10-10", (0.15, 0.4)))
        },
    },
}

COLUMNS = (
    *run_columns.select_columns("model", "size"),
    Column("masking", "masking"),
    *run_columns.select_columns("learning_rate"),
    Column("examples", "examples", ",d"),
    Column("rate", "trained at"),
    Column("difference", "loss minus that at 15% (nats)", "+.3f"),
    Column("p", "p (Holm)", ".2g", note="p: two-sided, seeds as blocks; Holm's correction for a size and budget."),
)
PAPER_COLUMNS = build_paper_columns(TASKS)
RESULT_TABLES = ("moves", "papers", "search-trials")


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    points = chain_points(
        *(
            cross_points(
                [TRANSFORMER],
                make_axis("model.size", size, name="{}"),
                [MIXES[mix]],
                make_lengths(plan),
                [make_rate(plan, size, rate) for rate in rates],
                make_axis("seed", *plan["seeds"], name="seed{}"),
            )
            for (size, mix), rates in plan["rates"].items()
        )
    )
    return name_points(points, plan["fields"])


def make_lengths(plan: Mapping) -> list[dict]:
    """A point for each budget of a scale; one that sets nothing where the scale has none."""
    return [
        {"name": f"{count}"} | set_training_length(count, count // NUM_EVALUATIONS, {"train.batch_size": 16})
        for count in plan.get("budgets", ())
    ] or [{}]


def make_rate(plan: Mapping, size: str, rate: float) -> dict:
    """The point of a masking rate, with what the scale's search chose for it at this size."""
    rates = {"optim.learning_rate": plan["learning_rate"]} if "learning_rate" in plan else {}
    chosen = searches.find_chosen(SEARCHES, plan.get("search", ""), f"transformer-{size}-mask-{MIDDLE}-{rate:g}")
    return {"name": f"{rate:g}", "mask.rate": rate} | rates | chosen


def search_space(point: dict) -> dict:
    """What mlm sweep search tries for a row."""
    return {"optim.learning_rate": LogUniform(1e-3, 1.6e-2), "optim.warmup_fraction": Choice((0.06, 0.2))}


def group_by_rate(results: Sequence[dict]) -> dict[tuple, dict[float, dict[int, float]]]:
    """The primary score of runs by size, mix and budget; then by masking rate; then by seed."""
    primary = series.select_primary_score(results).name
    groups: dict[tuple, dict[float, dict[int, float]]] = {}
    for result in results:
        by_rate = groups.setdefault(find_group(result), {})
        by_rate.setdefault(result["config"]["mask.rate"], {})[result["config"]["seed"]] = result["evaluation"][primary]
    return groups


def find_group(result: Mapping) -> tuple[str, bool, int]:
    """The size, whether [MASK] alone hides tokens, and the budget of a run by its name, 0 where its scale has none.

    The examples that it took in say less: by --budget=flops or predictions each rate takes in others.
    """
    config, name = result["config"], series.group_name(result)
    budget = next((count for count in BUDGETS if f"-{count}-" in name), 0)
    return config["model.size"], config["mask.mask_token_prob"] == 1, budget


def facet(result: Mapping) -> str:
    """The small multiple of a run's line: its size, mix and budget."""
    size, is_mask_only, budget = find_group(result)
    return describe_budget(size, budget) + ("" if is_mask_only else ", 80/10/10")


def describe_budget(size: str, budget: int) -> str:
    return f"{size}, {budget:,} examples" if budget else size


def compute_tests(results: Sequence[dict]) -> dict[tuple, compare.BlockTest]:
    """The test of each rate against 15%, by group and rate."""
    tests = {}
    for group, by_rate in group_by_rate(results).items():
        pairs = [(rate, BASELINE) for rate in by_rate if rate != BASELINE]
        corrected = compare.correct_p(compare.compare_rows(by_rate, pairs))
        tests |= {(group, rate): test for (rate, _), test in corrected.items()}
    return tests


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """40% is better than 15%, and [MASK] alone better than 80/10/10, as the paper says; its rule has own tests."""
    pairs = [(name, f"{name.removesuffix('-0.4')}-0.15") for name in names if name.endswith("-0.4")]
    pairs += [(name, name.replace("-mask-", "-80-10-10-")) for name in names if "-mask-" in name]
    return [pair for pair in pairs if pair[1] in names]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each size, mix, budget and masking rate of training."""
    tests = compute_tests(results)

    def describe_row(seeds):
        config = seeds[0]["config"]
        size, is_mask_only, _ = group = find_group(seeds[0])
        test = tests.get((group, config["mask.rate"]))
        row = {
            "masking": "[MASK]" if is_mask_only else "80/10/10",
            "examples": config["train.steps"] * config["train.batch_size"],
            "rate": f"{config['mask.rate']:.0%}",
        }
        paper = PAPER.get((is_mask_only, config["mask.rate"])) if size == "large" else None
        return row | ({} if test is None else test._asdict()) | (build_paper_cells(TASKS, paper) if paper else {})

    return summary.build_table(results, COLUMNS, describe_row, PAPER_COLUMNS)


def tables(results: Sequence[dict]) -> list[NamedTable]:
    """How much more 40% is worth at the next larger size or budget, with [MASK] alone."""
    gains = {
        (size, budget): {
            seed: by_rate[CONTENDER][seed] - by_rate[BASELINE][seed]
            for seed in by_rate[CONTENDER].keys() & by_rate[BASELINE].keys()
        }
        for (size, is_mask_only, budget), by_rate in group_by_rate(results).items()
        if is_mask_only and {BASELINE, CONTENDER} <= by_rate.keys()
    }
    sizes, budgets = (list(dict.fromkeys(values)) for values in zip(*gains, strict=True)) if gains else ((), ())
    pairs = [((size, few), (size, many)) for size in sizes for few, many in pairwise(sorted(budgets))]
    pairs += [((small, budget), (large, budget)) for budget in budgets for small, large in pairwise(sizes)]
    tests = compare.compare_rows(gains, [(more, less) for less, more in pairs])
    rows = [
        {"less": describe_budget(*less), "more": describe_budget(*more)} | test._asdict()
        for (more, less), test in compare.correct_p(tests).items()
    ]
    columns = [
        Column("less", "from"),
        Column("more", "to"),
        Column("difference", "change of (loss at 40% minus loss at 15%) (nats)", "+.3f"),
        Column("p", "p (Holm)", ".2g", note="p: two-sided, seeds as blocks; Holm's correction for these rows."),
    ]
    caption = "Negative: 40% is worth more at the larger size or budget."
    return [NamedTable("moves", "Is 40% worth more at a larger size or budget?", caption, rows, columns)]


def charts(results: Sequence[dict]) -> list[LineChart]:
    """The primary score against the masking rate of training: a line for each size, mix and budget."""
    score = series.select_primary_score(results)
    lines = [
        Series(
            describe_budget(size, budget) + ("" if is_mask_only else ", 80/10/10"),
            [100 * rate for rate in sorted(by_rate)],
            [estimate_mean(by_rate[rate].values()) for rate in sorted(by_rate)],
        )
        for (size, is_mask_only, budget), by_rate in group_by_rate(results).items()
    ]
    y = f"{score.title} (nats)"
    x, limits = "masking rate of training (%)", report_charts.find_limits(score)
    return [LineChart(score.name, "training_rate", "Masking rate", x, y, lines, limits=limits)]
