"""Which defaults learn? One search for every family and size, on a text of your own.

Question   A newcomer's first training must leave the unigram's loss with no flag. The defaults of learning rate,
           initial weights, warm-up and dropout (mlm/training/run/default_recipe.py) are to be the best of one small
           search, the same for the Transformer, the LSTM and the GRU at micro and tiny size.
Paper      None: it is our own search.
Star       The centre, which is the default as it was, and the centre with each other value of learning rate, init_std,
           warm-up and dropout, one at a time (VALUES). Positions, gates, masks, batch, packing, tokenizer and the
           dropout of attention's weights are the defaults.
Rule       Written before the runs. For each family and size the combination with the lowest held-out loss is the
           candidate, on two texts. The default is the combination with the lowest mean, over texts and sizes, of the
           loss less the lowest one of that text, family and size: not the best of any single one. It is checked on a
           third text, which the search never saw, before it becomes the default.
Run        mlm sweep run experiments/default_recipe.py --scale=trials --workers=2
           It reads texts/wikitext-2/train.txt and texts/multi30k-de/train.txt (the German side of Multi30k), which are
           yours to put there. Scales quick, laptop and paper read the built-in language, or your text:
           --config.data.path=...
Scales     quick: two learning rates of a micro Transformer, 40 steps. trials: 36 points on each text, of 500 steps,
           half of the default's length, one seed. check: what the rule chose, and the default before it, on
           texts/tinyshakespeare/input.txt, 1,000 steps; text: the same for micro on textbooks-en. laptop: 36 points on
           one text, of 1,000 steps. paper: the star at base size, 10,000 steps, English Wikipedia.
Cost       quick: seconds per point. trials: an hour on 2 CPU cores with --workers=2, and so is laptop. check: 15
           minutes. paper: 18 points of some 30 minutes of an H200 at 40% of its peak: an estimate from 6 FLOPs per
           parameter and token. text: 5 points, 8 minutes, estimated.
Columns    The held-out loss; the rows of a text, family and size are sorted by it. "On the unigram's plateau" names the
           runs that had not left it after a tenth of the steps. The second table is that of the rule.
Figures    experiments/results/default_recipe.md
"""

from collections.abc import Sequence

import numpy as np

from mlm.experiment.grid import Points, chain_points, cross_points, make_axis, name_points
from mlm.experiment.recipes import FAMILY_FIELDS, LARGE, QUICK, TEXTS
from mlm.report import run_columns, summary
from mlm.report.table import Column, NamedTable

FAMILIES = ("transformer", "lstm", "gru")
VALUES = {  # the first value of each is the centre
    "optim.learning_rate": (4e-3, 2e-3, 8e-3),
    "model.init_std": (0.08, 0.04),
    "optim.warmup_fraction": (0.06, 0.2),
    "model.dropout": (0.0, 0.1),
}
NAMES = dict(zip(VALUES, ("lr{:g}", "init{:g}", "warmup{:g}", "dropout{:g}"), strict=True))
EVAL_EVERY = 100  # steps
SEARCHED_TEXTS = (
    {"name": "wikitext-2", "data.path": "texts/wikitext-2/*.txt", "data.document_boundary": "blank_line"},
    {"name": "multi30k-de", "data.path": "texts/multi30k-de/*.txt", "data.document_boundary": "line"},
)
THIRD_TEXT = {
    "name": "tinyshakespeare",
    "data.path": "texts/tinyshakespeare/*.txt",
    "data.document_boundary": "blank_line",
}
# The default before the search, and what the rule chose where it chose another.
BEFORE = {"name": "before", "optim.learning_rate": 4e-3, "optim.warmup_fraction": 0.06}
GRU = BEFORE | {"optim.learning_rate": 8e-3}
CHECKED = {
    "transformer": [BEFORE, BEFORE | {"name": "after", "optim.warmup_fraction": 0.2}],
    "lstm": [BEFORE, BEFORE | {"name": "after", "optim.learning_rate": 8e-3}],
    "gru": [GRU],
}


def build_star(values: dict[str, tuple] = VALUES) -> Points:
    """The centre, and the centre with each other value, one at a time."""
    centre = {field: choices[0] for field, choices in values.items()}
    changed = [{field: value} for field, choices in values.items() for value in choices[1:]]
    return [
        cross_points(*(make_axis(field, value, name=NAMES[field]) for field, value in (centre | change).items()))[0]
        for change in ({}, *changed)
    ]


SCALES = {
    "quick": {
        "sizes": ("micro",),
        "trials": {"transformer": make_axis("optim.learning_rate", *VALUES["optim.learning_rate"][:2], name="lr{:g}")},
        "fields": QUICK,
    },
    "trials": {
        "texts": SEARCHED_TEXTS,
        "sizes": ("micro", "tiny"),
        "trials": dict.fromkeys(FAMILIES, build_star()),
        "fields": {"train.steps": 500, "train.eval_every": EVAL_EVERY},
    },
    "check": {
        "texts": (THIRD_TEXT,),
        "sizes": ("micro", "tiny"),
        "trials": CHECKED,
        "fields": {"train.eval_every": EVAL_EVERY},
    },
    "laptop": {
        "sizes": ("micro", "tiny"),
        "trials": dict.fromkeys(FAMILIES, build_star()),
        "fields": {"train.steps": 1000, "train.eval_every": EVAL_EVERY},
    },
    "text": {
        "texts": ({"name": "textbooks"} | TEXTS["textbooks"],),
        "sizes": ("micro",),
        "trials": CHECKED,
        "fields": {"train.eval_every": EVAL_EVERY},
    },
    "paper": {
        "sizes": ("base",),
        "trials": dict.fromkeys(
            FAMILIES, build_star(VALUES | {"optim.learning_rate": (1e-3, 5e-4, 2e-3), "model.init_std": (0.02, 0.04)})
        ),
        "fields": LARGE | {"train.steps": 10_000, "train.batch_size": 256, "train.checkpoint_every": 1000},
    },
}

COLUMNS = (
    *run_columns.select_columns("model", "size"),
    Column("text", "text"),
    *run_columns.select_columns("learning_rate"),
    Column("init_std", "initial weights", "g"),
    Column("warmup", "warm-up", "g"),
    Column("dropout", "dropout", "g"),
    *run_columns.select_columns("tokens_per_second"),
)
CHOICE_COLUMNS = COLUMNS[3:7]  # a combination
RESULT_TABLES = ("rule",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    texts, sizes = plan.get("texts", [{}]), make_axis("model.size", *plan["sizes"], name="{}")
    points = (
        cross_points(texts, [{"name": member} | FAMILY_FIELDS[member]], sizes, trials)
        for member, trials in plan["trials"].items()
    )
    return name_points(chain_points(*points), plan["fields"])


def facet(result: dict) -> str:
    """The small multiple of a run's line: its text, model and size."""
    config = result["config"]
    text = config["data.path"] or config["data.tfds_name"] or "built-in language"
    return ", ".join([text, run_columns.name_model(config), config["model.size"]])


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    return {
        "text": config["data.path"] or config["data.tfds_name"] or "built-in language",
        "init_std": config["model.init_std"],
        "warmup": config["optim.warmup_fraction"],
        "dropout": config["model.dropout"],
    }


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each point, the best of each text, family and size first; then the unigram's."""
    rows, columns = summary.build_table(results, COLUMNS, describe_row)
    trials = [row for row in rows if "seeds" in row]
    groups = list(dict.fromkeys(map(find_group, trials)))
    trials.sort(key=lambda row: (groups.index(find_group(row)), row["loss"].mean))
    return trials + [row for row in rows if "seeds" not in row], columns


def find_group(row: dict) -> tuple:
    """The text, the model and the size of a row, within which combinations are compared."""
    return row["text"], row["model"], row["size"]


def tables(results: Sequence[dict]) -> list[NamedTable]:
    """The mean of each combination's loss less the lowest one of its text, family and size, where all of them ran."""
    rows, _ = table(results)
    groups: dict[tuple, dict[tuple, float]] = {}
    for row in rows:
        if "seeds" in row:
            combination = tuple(row[column.name] for column in CHOICE_COLUMNS)
            groups.setdefault(find_group(row), {})[combination] = row["loss"].mean
    models = list(dict.fromkeys(model for _, model, _ in groups))
    ranks = []
    for combination in sorted(set.intersection(*map(set, groups.values()))):
        above = {group: losses[combination] - min(losses.values()) for group, losses in groups.items()}
        means = {model: np.mean([value for group, value in above.items() if group[1] == model]) for model in models}
        names = [column.name for column in CHOICE_COLUMNS]
        ranks.append(
            dict(zip(names, combination, strict=True))
            | means
            | {"all": np.mean([*above.values()]), "groups": len(above)}
        )
    ranks.sort(key=lambda row: row["all"])
    columns = [*CHOICE_COLUMNS, *(Column(model, model, ".3f") for model in models), Column("all", "all", ".3f")]
    caption = "Loss less the lowest of its text, family and size, in nats: means over texts and sizes."
    return [
        NamedTable(
            "rule", "Which default?", caption, ranks, [*columns, Column("groups", "texts, models and sizes", ",d")]
        )
    ]
