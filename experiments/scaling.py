"""How does the loss fall with parameters, data and compute where the irreducible loss is known exactly?

Question   Everywhere else the constant E of L = E + A N^-alpha + B D^-beta is fitted, and the exponents with it. Here
           it is the floor of the very examples and masks; of a window, that of all models which see no further. What
           are the exponents by family and by objective (masked, causal, diffusion), which size is best for a compute,
           where do families cross, and how wrong is a fit that has to guess E?
Paper      Kaplan et al. 2020 (arXiv:2001.08361), Hoffmann et al. 2022 (arXiv:2203.15556). 2305.17266 says that the law
           breaks below 2.2e15 FLOPs for encoders; OptiBERT claims 10 to 100 times as many tokens a parameter as causal
           models need.
Points     Every kind of model at four widths (layers: two) and four numbers of examples, each example read at most
           once; each point is a run of its own with a schedule of its own length, no part of a longer one. Widths have
           a factor of 8, parameters of some 60, tokens of 16. N is the number of parameters outside the embeddings,
           C the FLOPs that XLA counts of the step, the output layer's with them.
Fit        mlm/report/scaling_law.py: least squares of the logarithm; intervals over seeds. "E fitted" is
           the same law on the loss, as if nobody knew the floor. "Broken?" compares the frontier's exponent by the law
           of the half of the points with less compute with that of the other half: an interval without 0 says that one
           law does not hold for both. Crossings are of the fitted frontiers, where both kinds were measured.
Recipe     The small recipe (mlm/experiment/recipes.py) at every width, or what a search chose: mlm sweep search
           experiments/scaling.py --scale=laptop --trials=16 --out=experiments/searches/scaling-laptop.json. Exponents
           are those of the recipe. A learning rate tuned at one width favours that width.
Run        mlm sweep run experiments/scaling.py --scale=laptop --workers=2
Scales     quick: a window at three widths and three numbers of examples, one seed: no interval, for a first look.
           laptop: five families masked, a Transformer and an LSTM causal and diffusion; two seeds. paper: masked and
           causal, mini to base, English Wikipedia, whose floor nobody knows: E fitted alone.
Cost       quick: a minute on 2 CPU cores. laptop: 288 points, two and a half hours with --workers=2: estimated from
           70,000 tokens a second of a core at width 64, 20,000 at 128, and 15 s to compile each program. Measured: 224
           of them took 14 minutes of an H200 with 7 to 13 processes (docs/guides/devices.md), 64 small ones 19 minutes
           of 2 CPU cores. paper: 32 points, 200 hours of an H200 at 40% of its peak, by 6 FLOPs per parameter and
           token. text: 36 points on WikiText-2, a Transformer and an LSTM at three widths and three numbers of
           examples, two seeds, E fitted alone: 12 minutes, estimated.
Figures    experiments/results/scaling.md
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize

from mlm.base.estimates import Estimate, estimate_mean
from mlm.experiment import searches
from mlm.experiment.grid import chain_points, cross_points, drop_fields, make_seeds, name_points
from mlm.experiment.recipes import (
    ARCHITECTURE_FIELDS,
    FAMILY_FIELDS,
    LARGE,
    SMALL,
    TUNED_FIELDS,
    read_text,
    set_training_length,
)
from mlm.experiment.search_space import Choice, LogUniform
from mlm.report import excess_loss, run_columns, scaling_law, series, summary
from mlm.report.charts import LineChart
from mlm.report.series import Series
from mlm.report.table import Column, NamedTable

HEAD_WIDTH = 16
FAMILIES = {
    "window": FAMILY_FIELDS["window"] | {"model.window": 5},
    "gru": FAMILY_FIELDS["gru"],
    "lstm": FAMILY_FIELDS["lstm"],
    "transformer": FAMILY_FIELDS["transformer"],
    "modern": FAMILY_FIELDS["transformer"]
    | {"model.norm": "rmsnorm", "model.activation": "geglu", "model.bias": "output", "model.qk_norm": True},
}
# Units of a layer for a width, so that families of a width have about as many parameters (mlm/models: SIZES).
UNITS = {
    "window": ("model.mlp_dim", 3.5),
    "gru": ("model.rnn_dim", 0.906),
    "lstm": ("model.rnn_dim", 0.75),
    "transformer": ("model.mlp_dim", 4),
    "modern": ("model.mlp_dim", 8 / 3),
}
OBJECTIVES = {
    "masked": {"objective": "mlm", "mask.rate": 0.3},
    "causal": {"objective": "causal"},
    "diffusion": {"objective": "diffusion"},
}
MASKED = [("masked", family) for family in FAMILIES]
OTHERS = [(objective, family) for objective in ("causal", "diffusion") for family in ("transformer", "lstm")]
BATCH = 16
MAX_EXAMPLES = 50_000
FIELDS = SMALL | {"data.language.train_documents": MAX_EXAMPLES}  # a shorter run reads a part of them
SCALES = {
    "quick": {
        "kinds": [("masked", "window")],
        "sizes": (16, 24, 32),
        "examples": (2_000, 4_000, 8_000),
        "seeds": 1,
        "fields": SMALL | {"data.language.train_documents": 8_000, "data.language.validation_documents": 200},
    },
    "laptop": {
        "kinds": MASKED + OTHERS,
        "sizes": (16, 32, 64, 128),
        "examples": (3_200, 8_000, 20_000, 50_000),
        "seeds": 2,
        "fields": FIELDS,
    },
    "text": {
        "kinds": [("masked", "transformer"), ("masked", "lstm")],
        "sizes": (16, 32, 64),
        "examples": (4_000, 8_000, 16_000),
        "seeds": 2,
        "fields": read_text(FIELDS),
    },
    "paper": {
        "kinds": [("masked", "transformer"), ("causal", "transformer")],
        "sizes": ("mini", "small", "medium", "base"),
        "examples": (400_000, 1_600_000, 6_400_000, 25_600_000),
        "seeds": 1,
        "fields": LARGE | {"train.batch_size": 256, "optim.learning_rate": 5e-4, "train.checkpoint_every": 5000},
    },
}
SEARCHES = searches.read_searches(__file__)
COLUMNS = (
    Column("model", "model"),
    Column("objective", "objective"),
    Column("layout", "layers x width"),
    Column("examples", "examples", ",d"),
    *run_columns.select_columns("non_embedding", "tokens"),
    Column("tokens_per_parameter", "tokens a parameter", ".3g"),
)
KIND_COLUMNS = COLUMNS[:2]
RESULT_TABLES = ("laws", "sizes", "crossings", "parts")
BOUND_NOTE = (
    f"An exponent of {scaling_law.MAX_EXPONENT:g} or 0 is a bound of the fit, and so is E = 0 (minus the floor): the "
    "points do not determine it."
)
LAW_COLUMNS = (
    *KIND_COLUMNS,
    Column("alpha", "alpha (parameters)", ".3f", note=BOUND_NOTE),
    Column("beta", "beta (tokens)", ".3f"),
    Column("frontier", "exponent of the frontier", ".3f"),
    Column("size", "exponent of the best size", ".3f"),
    Column("free_floor", "E fitted minus the floor (nats)", "+.3f"),
    Column("free_alpha", "alpha, E fitted", ".3f"),
    Column("free_beta", "beta, E fitted", ".3f"),
    Column("free_frontier", "exponent of the frontier, E fitted", ".3f"),
    Column("small", "exponent of the frontier, less compute", ".3f"),
    Column("large", "exponent of the frontier, more compute", ".3f"),
    Column("break", "broken? more minus less", "+.3f"),
)
SIZE_COLUMNS = (
    *KIND_COLUMNS,
    Column("flops", "FLOPs", ".2e"),
    Column("best_size", "best number of parameters", ".3g"),
    Column("ratio", "tokens a parameter", ".3g"),
    Column("loss", "loss above E (nats)", ".3f"),
    Column("free_size", "best number of parameters, E fitted", ".3g"),
)
PART_COLUMNS = (
    *COLUMNS[:4],
    Column("flops", "FLOPs", ".2e"),
    Column("excess_loss", "loss above the floor (nats)", ".3f"),
    *excess_loss.PARTS,
)
CROSSING_COLUMNS = (Column("first", "better below"), Column("second", "better above"), Column("flops", "FLOPs", ".2e"))


def make_size(family: str, size: int | str) -> dict:
    """The fields of a size: a width in two layers, or a named one."""
    if isinstance(size, str):
        return {"name": size, "model.size": size}
    field, factor = UNITS[family]
    heads = {"model.num_heads": max(1, size // HEAD_WIDTH)} if field == "model.mlp_dim" and family != "window" else {}
    return {"name": f"width{size}", "model.num_layers": 2, "model.width": size, field: round(factor * size)} | heads


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets; what an objective does not read of the scale's is left out."""
    plan = SCALES[scale]
    seeds = make_seeds(plan["seeds"])
    groups = []
    for objective, family in plan["kinds"]:
        fields = plan["fields"] | FAMILIES[family] | OBJECTIVES[objective]
        if scale != "paper":
            member = "transformer" if family == "modern" else family
            fields |= ARCHITECTURE_FIELDS[member] | TUNED_FIELDS[member]
        if "mask.rate" not in OBJECTIVES[objective]:
            fields = drop_fields(fields, "mask")
        batch = fields["train.batch_size"]
        lengths = [
            {"name": f"examples{count}"} | set_training_length(count, count, {"train.batch_size": batch})
            for count in plan["examples"]
        ]
        sizes = [make_size(family, size) for size in plan["sizes"]]
        kind = [{"name": f"{objective}-{family}"} | drop_fields(fields, "train.batch_size")]
        groups.append(cross_points(kind, sizes, lengths, seeds))
    return searches.apply_choices(name_points(chain_points(*groups)), SEARCHES, scale)


def search_space(point: dict) -> dict:
    """What mlm sweep search tries for a row; a row that does not read a field leaves it out."""
    return {
        "optim.learning_rate": LogUniform(5e-4, 3e-2),
        "optim.warmup_fraction": Choice((0.06, 0.2)),
        "model.init_std": Choice((0.04, 0.08)),
    }


def find_kind(config: dict) -> tuple[str, str]:
    """The model and the objective of a run."""
    model = run_columns.name_model(config)
    model = "modern transformer" if config["model.qk_norm"] else model
    names = {fields["objective"]: name for name, fields in OBJECTIVES.items()}
    return model, names[config["objective"]]


def facet(result: dict) -> str:
    """The small multiple of a run's line."""
    return ", ".join(find_kind(result["config"]))


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    model, objective = find_kind(config)
    tokens = sum(result["tokens"] for result in seeds) / len(seeds)
    return {
        "model": model,
        "objective": objective,
        "layout": f"{config['model.num_layers']} x {config['model.width']}",
        "examples": config["train.steps"] * config["train.batch_size"],
        "tokens_per_parameter": tokens / seeds[0]["non_embedding"],
    }


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each kind of model, size and number of examples."""
    return summary.build_table(results, COLUMNS, describe_row)


def find_floor(result: dict, first: str, excess: str) -> float:
    """The lowest loss that a run's model can have: a window's is that of all models that see no further."""
    evaluation = result["evaluation"]
    if result["config"]["model.family"] == "feedforward" and "window_floor" in evaluation:
        return float(evaluation["window_floor"])
    return float(evaluation[first] - evaluation[excess])


def select_kind(results: Sequence[dict], kind: tuple[str, str]) -> list[dict]:
    return [result for result in results if find_kind(result["config"]) == kind]


def collect_cells(results: Sequence[dict]) -> dict[tuple[str, str], scaling_law.Cells]:
    """The cells of each kind of model."""
    cells = {}
    kinds = dict.fromkeys(find_kind(result["config"]) for result in results)
    for kind in kinds:
        runs = select_kind(results, kind)
        groups = list(series.group_runs(runs).values())
        first, primary = series.collect_scores(runs)[0].name, series.select_primary_score(runs)
        is_excess = primary.columns[0] == series.EXCESS
        floor = find_floor(runs[0], first, primary.name) if is_excess else None
        cells[kind] = scaling_law.Cells(
            np.array([seeds[0]["non_embedding"] for seeds in groups], np.float64),
            np.array([np.mean([result["tokens"] for result in seeds]) for seeds in groups]),
            np.array([seeds[0]["flops"] for seeds in groups], np.float64),
            [np.array([result["evaluation"][first] - (floor or 0.0) for result in seeds]) for seeds in groups],
            floor,
        )
    return cells


def fit_laws(cells: dict) -> dict[tuple[tuple[str, str], bool], scaling_law.LawFit]:
    """The laws of the kinds that have enough cells, by kind and whether E is fitted."""
    fits = {
        (kind, fits_floor): scaling_law.fit_law(own, fits_floor=fits_floor)
        for kind, own in cells.items()
        for fits_floor in (False, True)
        if fits_floor or own.floor is not None
    }
    return {key: fit for key, fit in fits.items() if fit is not None}


def find_frontier(flops_P: np.ndarray, loss_P: np.ndarray) -> np.ndarray:
    """The cells, by compute, that no cell with as little compute is better than."""
    order = np.lexsort((loss_P, flops_P))
    best_P = np.minimum.accumulate(loss_P[order])
    return order[(loss_P[order] <= best_P) & np.append(True, np.diff(best_P) < 0)]


def compare_halves(cells: scaling_law.Cells) -> dict[str, Estimate]:
    """Whether one law holds for all compute: the frontier's exponent by the half of the cells with less compute
    ("small"), by the other ("large"), and the second less the first ("break").

    The exponents of the measured frontier would differ even under one law, since sizes are few and the cells of most
    compute are not compute-optimal. Empty where the floor is not known, or where a half has too few cells for a law.
    """
    if cells.floor is None:
        return {}
    order, half = np.argsort(cells.flops_P), len(cells.losses) // 2
    small, large = (scaling_law.fit_law(cells.select(part), fits_floor=False) for part in (order[:half], order[-half:]))
    if small is None or large is None:
        return {}
    read_exponent = lambda law: law.frontier_exponent
    change = scaling_law.estimate_number(
        lambda a, b: b.frontier_exponent - a.frontier_exponent, [small, large], positive=False
    )
    return {"small": small.estimate(read_exponent), "large": large.estimate(read_exponent), "break": change}


def find_crossing(a: scaling_law.LawFit, b: scaling_law.LawFit, low: float, high: float) -> Estimate | None:
    """The compute between low and high at which both frontiers have the same loss; None if there is none."""

    def solve(first: scaling_law.ScalingLaw, second: scaling_law.ScalingLaw) -> float:
        def compute_difference(log_c):
            flops = math.exp(log_c)
            return first.floor + first.predict_frontier(flops) - second.floor - second.predict_frontier(flops)

        ends = math.log(low), math.log(high)
        if compute_difference(ends[0]) * compute_difference(ends[1]) >= 0:
            return math.nan
        return math.exp(float(np.asarray(optimize.brentq(compute_difference, *ends))))

    crossing = scaling_law.estimate_number(solve, [a, b])
    return None if math.isnan(crossing.mean) else crossing


def describe_law(kind: tuple[str, str], cells: scaling_law.Cells, laws: dict) -> dict:
    """The cells of a kind's row in the table of laws."""
    row: dict = dict(zip(("model", "objective"), kind, strict=True))
    known, free = laws.get((kind, False)), laws.get((kind, True))
    if known:
        row |= {name: known.estimate(lambda law, name=name: getattr(law, name)) for name in ("alpha", "beta")}
        row |= {
            "frontier": known.estimate(lambda law: law.frontier_exponent),
            "size": known.estimate(lambda law: law.size_exponent),
        }
    if free:
        row |= {f"free_{name}": free.estimate(lambda law, name=name: getattr(law, name)) for name in ("alpha", "beta")}
        row["free_frontier"] = free.estimate(lambda law: law.frontier_exponent)
        if cells.floor is not None:
            row["free_floor"] = free.estimate(lambda law: law.floor - cells.floor, positive=False)
    return row | compare_halves(cells)


def describe_sizes(kind: tuple[str, str], cells: scaling_law.Cells, laws: dict) -> list[dict]:
    """The rows of a kind in the table of compute-optimal sizes: four computes within those measured."""
    rows = []
    known, free = laws.get((kind, False)), laws.get((kind, True))
    main = known or free
    for flops in np.geomspace(cells.flops_P.min(), cells.flops_P.max(), 4).tolist() if main else ():
        row = dict(zip(("model", "objective"), kind, strict=True)) | {"flops": flops}
        row["best_size"] = main.estimate(lambda law, flops=flops: law.find_optimal_size(flops))
        row["ratio"] = main.estimate(
            lambda law, flops=flops: law.find_tokens(flops, size := law.find_optimal_size(flops)) / size
        )
        row["loss"] = main.estimate(lambda law, flops=flops: law.predict_frontier(flops))
        if known and free:
            row["free_size"] = free.estimate(lambda law, flops=flops: law.find_optimal_size(flops))
        rows.append(row)
    return rows


def describe_crossings(cells: dict, laws: dict) -> list[dict]:
    """The crossings of two kinds of one objective where both were measured."""
    rows = []
    for first, second in itertools.combinations([kind for kind, fitted in laws if not fitted], 2):
        if first[1] != second[1]:
            continue
        a, b = laws[first, False], laws[second, False]
        low = max(cells[kind].flops_P.min() for kind in (first, second))
        high = min(cells[kind].flops_P.max() for kind in (first, second))
        crossing = find_crossing(a, b, low, high) if low < high else None
        if crossing is not None:
            names = [f"{model}, {objective}" for model, objective in (first, second)]
            losses = [fit.law.floor + fit.law.predict_frontier(low) for fit in (a, b)]
            names = names if losses[0] < losses[1] else names[::-1]
            rows.append({"first": names[0], "second": names[1], "flops": crossing})
    return rows


def describe_parts(results: Sequence[dict], cells: dict) -> list[dict]:
    """What the loss above the floor is made of along each kind's frontier, where its runs were evaluated for it."""
    rows = []
    for kind, own in cells.items():
        groups = list(series.group_runs(select_kind(results, kind)).values())
        for cell in find_frontier(own.flops_P, own.mean_losses()):
            if parts := excess_loss.compute_parts(groups[cell]):
                excess = estimate_mean(one["evaluation"]["excess_loss"] for one in groups[cell])
                row = dict(zip(("model", "objective"), kind, strict=True)) | describe_row(groups[cell])
                rows.append(row | {"flops": own.flops_P[cell], "excess_loss": excess} | parts)
    return rows


def tables(results: Sequence[dict]) -> list[NamedTable]:
    """The laws, the compute-optimal sizes, the crossings, and what is left of the loss along the frontier."""
    cells = collect_cells(results)
    laws = fit_laws(cells)
    law_rows = [
        describe_law(kind, own, laws) for kind, own in cells.items() if (kind, True) in laws or (kind, False) in laws
    ]
    size_rows = [row for kind, own in cells.items() for row in describe_sizes(kind, own, laws)]
    return [
        NamedTable(
            "laws", "Laws", "L = E + A N^-alpha + B D^-beta, with E known and with E fitted.", law_rows, LAW_COLUMNS
        ),
        NamedTable(
            "sizes", "Best size by compute", "By the laws, within the computes measured.", size_rows, SIZE_COLUMNS
        ),
        NamedTable(
            "crossings",
            "Crossings",
            "Compute at which the fitted frontiers of two models have one loss.",
            describe_crossings(cells, laws),
            CROSSING_COLUMNS,
        ),
        NamedTable(
            "parts",
            "What is left above the floor",
            "Of each model and objective the points that no point of as little compute is better than.",
            describe_parts(results, cells),
            PART_COLUMNS,
        ),
    ]


def charts(results: Sequence[dict]) -> list[LineChart]:
    """The frontier of each kind of model: the cells that no cell of as little compute is better than."""
    lines = []
    cells = collect_cells(results)
    for kind, own in cells.items():
        frontier = find_frontier(own.flops_P, own.mean_losses())
        values = [estimate_mean(np.maximum(own.losses[cell], scaling_law.MIN_LOSS)) for cell in frontier]
        lines.append(Series(", ".join(kind), own.flops_P[frontier].tolist(), values))
    is_known = all(own.floor is not None for own in cells.values())
    title = "excess loss (nats)" if is_known else "held-out loss (nats)"
    return [LineChart("frontier", "flops", "Frontier", "training FLOPs", title, lines, log_x=True, log_y=True)]
