"""What is a result on the built-in language worth for text?

Question   An intervention is a change that researchers make: another architecture, position scheme, masking rate, size.
           Its difference in held-out loss is measured on texts and on languages. How often have the two the same sign,
           do they rank interventions alike, and how many nats on text is a nat on the language? The ceiling is one text
           against another: no language can be asked for more.
Paper      None that we know of: others show rankings on formal languages and hope that they carry over.
Method     Each intervention is a pair of points, a base and a changed one, with the default recipe of its family and
           size, at two lengths of training, a run with a schedule of its own for each. All corpora are packed alike:
           rows of 128 tokens, whole sentences of one document. Held-out loss alone, at 15% by [MASK], of the same 1,000
           examples for all. A difference is paired by seed.
Rule       Written before all runs. HALF_SEED divides the interventions in two: on the half "choose" the fields of the
           languages may be chosen, and every result is read on the half "report". Sign agreement is the share of
           interventions whose mean difference has one sign on both; Kendall's tau is tau-b; the slope is that of least
           squares through 0 of text on language. Each is the mean over the pairs of a language with every text, for the
           ceiling over all pairs of texts; intervals are over interventions (bootstrap, 95%), drawn once for all pairs.
Run        ln -s FOLDER texts  # wikitext-2 with train.txt, valid.txt; novels-en, textbooks-en, novels-hu with .txt.gz
           mlm sweep run experiments/transfer.py --scale=short --workers=2 workdir=runs/transfer-laptop
           so with --scale=long, then --scale=laptop, by --points='*-seed0' and so on a part at a time; without it for
           the table. After it
           mlm sweep run experiments/transfer.py --scale=removed --workers=2 workdir=runs/transfer-laptop
Scales     quick: five interventions, the language and Python's docstrings, one seed. laptop: all, four texts, today's
           language and its presets, three seeds, 3,200 and 9,600 examples. short: of these the first seed with 3,200
           examples. long: the first seed with 9,600. removed: the preset of novels, and without each of its ingredients
           (of its words 1,000 are left), 3,200 examples, beside the same runs on texts. text: quick's interventions on
           the language and WikiText-2.
Cost       quick: two minutes on 2 CPU cores. short: 217 points, 108 minutes with --workers=2 beside other work. long:
           210 points, three hours and ten minutes, so too. laptop: 1,281 points, 13 GB of checkpoints, 12 hours by an
           estimate from these; a part at a time, each resumes. removed: 372 more, an hour and a half. text: 24 points
           of 3,200 examples, two seeds, 5 minutes, estimated.
Data       laptop: WikiText-2, 83 English novels, 23 textbooks and 83 Hungarian novels, which the user provides.
Figures    experiments/results/transfer.md
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np

from mlm.base.estimates import Estimate, estimate_mean
from mlm.experiment.grid import chain_points, cross_points, drop_fields, make_seeds, name_points
from mlm.experiment.recipes import FAMILY_FIELDS, QUICK
from mlm.experiment.recipes import LANGUAGES as PRESETS
from mlm.experiment.recipes import TEXTS as USER_TEXTS
from mlm.report import compare, run_columns, series, specs, summary
from mlm.report.charts import RowChart
from mlm.report.table import Column, NamedTable


class Intervention(NamedTuple):
    """A change of a base, which is a model of another intervention or the plain Transformer."""

    base: str
    fields: dict


PLAIN = "transformer"  # the base of most: micro, with the default recipe
INTERVENTIONS = {
    "lstm": Intervention(PLAIN, FAMILY_FIELDS["lstm"]),
    "gru": Intervention(PLAIN, FAMILY_FIELDS["gru"]),
    "elman": Intervention(PLAIN, FAMILY_FIELDS["elman"]),
    "window": Intervention(PLAIN, FAMILY_FIELDS["window"]),
    "convolution": Intervention(PLAIN, {"model.family": "mixer", "model.cell": "conv"}),
    "learned-positions": Intervention(PLAIN, {"model.positions": "learned"}),
    "alibi": Intervention(PLAIN, {"model.positions": "alibi"}),
    "post-norm": Intervention(PLAIN, {"model.norm_placement": "post"}),
    "rmsnorm": Intervention(PLAIN, {"model.norm": "rmsnorm"}),
    "relu": Intervention(PLAIN, {"model.activation": "relu"}),
    "swiglu": Intervention(PLAIN, {"model.activation": "swiglu"}),
    "dropout": Intervention(PLAIN, {"model.dropout": 0.1}),
    "four-layers": Intervention(PLAIN, {"model.num_layers": 4, "model.mlp_dim": 64}),  # as many parameters as
    "one-layer": Intervention(PLAIN, {"model.num_layers": 1, "model.mlp_dim": 640}),  # two layers of 256
    "embedding-32": Intervention(PLAIN, {"model.embedding_dim": 32}),
    "untied": Intervention(PLAIN, {"model.tie_embeddings": False}),
    "linear-output": Intervention(PLAIN, {"model.lm_head": "linear"}),
    "masked-40": Intervention(PLAIN, {"mask.rate": 0.4}),
    "mask-tokens-alone": Intervention(PLAIN, {"mask.mask_token_prob": 1.0, "mask.random_token_prob": 0.0}),
    "spans": Intervention(PLAIN, {"mask.unit": "span"}),
    "context-32": Intervention(PLAIN, {"model.local_window": 16, "model.global_every": 0}),  # by two layers
    "lion": Intervention(PLAIN, {"optim.optimizer": "lion"}),
    "muon": Intervention(PLAIN, {"optim.optimizer": "muon"}),
    "constant-rate": Intervention(PLAIN, {"optim.schedule": "constant"}),
    "quarter-rate": Intervention(PLAIN, {"optim.learning_rate": 1e-3}),
    "batch-32": Intervention(PLAIN, {"train.batch_size": 32}),
    "init-0.02": Intervention(PLAIN, {"model.init_std": 0.02}),
    "tiny": Intervention(PLAIN, {"model.size": "tiny"}),
    "mini": Intervention("tiny", {"model.size": "mini"}),
    "lstm-short-gates": Intervention("lstm", {"model.chrono_init": 0}),
}
HALF_SEED = 60  # of the division, drawn before any result
CHOSEN = np.random.default_rng(HALF_SEED).permutation(sorted(INTERVENTIONS))[: len(INTERVENTIONS) // 2]
HALVES = {name: "choose" if name in CHOSEN else "report" for name in INTERVENTIONS}
TEXTS = USER_TEXTS | {"docstrings": {"data.corpus": "docstrings"}}
INGREDIENTS = {  # of a preset, each with its fields
    "favorites": ("num_favorites", "favorite_prob"),
    "ambiguity": ("ambiguity_prob",),
    "scenes": ("num_scenes", "scene_prob", "scene_keep_prob"),
}
REMOVED = {
    f"novels_without_{name}": drop_fields(PRESETS["novels"], *(f"data.language.{field}" for field in fields))
    for name, fields in INGREDIENTS.items()
} | {"novels_of_1000_words": PRESETS["novels"] | {"data.language.vocab_size": 1_000}}  # fewer leave scenes without
LANGUAGES = PRESETS | REMOVED
LENGTHS = {"short": 3_200, "long": 9_600}  # examples
SHORT_ALONE = ("mini",)  # which would take as long as all others
BATCH_SIZE = 16
SCALES = {
    "quick": {
        "corpora": ("language", "docstrings"),
        "interventions": ("lstm", "window", "learned-positions", "masked-40", "quarter-rate"),
        "examples": {"short": QUICK["train.steps"] * BATCH_SIZE},
        "documents": QUICK["train.steps"] * BATCH_SIZE,
        "seeds": 1,
        "eval_examples": 100,
    },
    "text": {
        "corpora": ("language", "wikitext"),
        "interventions": ("lstm", "window", "learned-positions", "masked-40", "quarter-rate"),
        "examples": {"short": LENGTHS["short"]},
        "documents": LENGTHS["short"],
        "seeds": 2,
        "eval_examples": 1_000,
    },
    "laptop": {
        "corpora": (*PRESETS, *USER_TEXTS),
        "interventions": tuple(INTERVENTIONS),
        "examples": LENGTHS,
        "documents": LENGTHS["long"],
        "seeds": 3,
        "eval_examples": 1_000,
    },
}
FIRST_SEED = SCALES["laptop"] | {"seeds": 1}
SCALES["short"] = FIRST_SEED | {"examples": {"short": LENGTHS["short"]}}
SCALES["long"] = FIRST_SEED | {"examples": {"long": LENGTHS["long"]}}
REMOVED_CORPORA = ("novels", *REMOVED, *USER_TEXTS)
SCALES["removed"] = SCALES["laptop"] | {"corpora": REMOVED_CORPORA, "examples": {"short": LENGTHS["short"]}}
FIRST_COLUMNS = (
    Column("corpus", "corpus"),
    Column("length", "training"),
    Column("change", "model"),
    *run_columns.select_columns("steps", "tokens", "tokens_per_second"),
)
MEASURE_COLUMNS = (
    Column("corpus", "compared with texts"),
    Column("length", "training"),
    Column("half", "interventions"),
    Column("count", "number", ",d"),
    Column("pairs", "pairs", ",d", note="pairs: of a language with a text, or of two texts; a row is their mean."),
    Column("agreement", "same sign", ".2f"),
    Column("tau", "Kendall's tau", "+.2f"),
    Column("slope", "slope of text on language", "+.2f"),
)
CEILING = "another text (ceiling)"
RESULT_TABLES = ("measure", "differences")


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, CORPUS-LENGTH-MODEL-SEED, each the fields it sets."""
    plan = SCALES[scale]
    models = dict.fromkeys([PLAIN, *plan["interventions"]])
    groups = [
        cross_points(
            [{"name": f"{corpus}-{length}-{model}"} | make_fields(plan, corpus, count, model)],
            make_seeds(plan["seeds"]),
        )
        for length, count in plan["examples"].items()
        for corpus in plan["corpora"]
        for model in models
        if length == "short" or model not in SHORT_ALONE
    ]
    return name_points(chain_points(*groups))


def make_fields(plan: Mapping, corpus: str, count: int, model: str) -> dict:
    """The fields of a model on a corpus, trained on `count` examples."""
    fields = {"model.size": "micro", "pack.mode": "doc_sentences", "train.batch_size": BATCH_SIZE}
    fields |= {"eval.max_examples": plan["eval_examples"]}
    if corpus in LANGUAGES:  # each document is read once
        fields |= LANGUAGES[corpus] | {"data.language.train_documents": plan["documents"]}
        fields |= {"data.language.validation_documents": plan["eval_examples"]}
    else:
        fields |= TEXTS[corpus]
    fields |= collect_changes(model)
    return fields | {"train.steps": count // fields["train.batch_size"]}


def collect_changes(model: str) -> dict:
    """What a model changes of the plain Transformer, with what its base does."""
    if model == PLAIN:
        return {}
    base, fields = INTERVENTIONS[model]
    return collect_changes(base) | fields


def find_group(result: Mapping) -> tuple[str, str, str]:
    """The corpus, the length and the model of a run by its folder's name, as no field names them."""
    corpus, length, model = series.group_name(result).split("-", 2)
    return corpus, length, model


def facet(result: Mapping) -> str:
    """The small multiple of a run's line: its corpus and length."""
    return ", ".join(find_group(result)[:2])


def collect_differences(results: Sequence[dict]) -> dict[tuple[str, str], dict[str, dict[int, float]]]:
    """By corpus and length the difference of each intervention, the changed loss minus the base's, by seed."""
    loss: dict[tuple[str, str, str], dict[int, float]] = {}
    for result in results:
        loss.setdefault(find_group(result), {})[result["config"]["seed"]] = result["evaluation"]["loss"]
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for corpus, length, model in loss:
        base = loss.get((corpus, length, INTERVENTIONS[model].base), {}) if model != PLAIN else {}
        by_seed = {seed: value - base[seed] for seed, value in loss[corpus, length, model].items() if seed in base}
        if by_seed:
            found.setdefault((corpus, length), {})[model] = by_seed
    return found


class ChangeInterval(Estimate):
    """A measure of agreement, with changes resampled."""

    __slots__ = ()
    bounds_title, bounds_method = "95% interval over changes", "bootstrap"


def compute_measures(x_PxN: np.ndarray, y_PxN: np.ndarray) -> dict[str, ChangeInterval]:
    """How far differences on two corpora agree: each measure the mean over pairs, with the pairs' changes resampled
    together. Letters in array names: N changes, P pairs of corpora, R resamples.

    Args:
        x_PxN: the difference of each change on the first corpus of each pair.
        y_PxN: that on the second corpus.

    Returns:
        "agreement", the share of changes with one sign on both; "tau", Kendall's tau-b; "slope", of y on x by least
        squares through 0.
    """
    count_RxN = compare.draw_counts(np.random.default_rng(0), x_PxN.shape[1], compare.RESAMPLES)
    count_RxN = np.concatenate([np.ones_like(count_RxN[:1]), count_RxN])  # first, each change once
    totals: dict[str, np.ndarray] = {}
    for x_N, y_N in zip(x_PxN, y_PxN, strict=True):
        order_x_NxN, order_y_NxN = (np.sign(values_N[:, None] - values_N) for values_N in (x_N, y_N))
        both_R, x_R, y_R = (
            ((count_RxN @ product_NxN) * count_RxN).sum(1)
            for product_NxN in (order_x_NxN * order_y_NxN, order_x_NxN**2, order_y_NxN**2)
        )
        pairs_R = np.sqrt(x_R * y_R)  # 0 where a resample has one change alone
        measures = {
            "agreement": count_RxN @ (np.sign(x_N) == np.sign(y_N)) / x_N.size,
            "tau": np.divide(both_R, pairs_R, out=np.zeros_like(both_R), where=pairs_R > 0),
            "slope": count_RxN @ (x_N * y_N) / (count_RxN @ x_N**2),
        }
        totals = {name: totals.get(name, 0.0) + value_R / len(x_PxN) for name, value_R in measures.items()}
    return {
        name: ChangeInterval(float(value_R[0]), *np.quantile(value_R[1:], (0.025, 0.975)).tolist())
        for name, value_R in totals.items()
    }


def build_measure_rows(differences: Mapping[tuple[str, str], Mapping[str, Mapping[int, float]]]) -> list[dict]:
    """A row for each language, and for the ceiling, by length and half of the interventions."""
    mean = {
        key: {name: float(np.mean([*seeds.values()])) for name, seeds in own.items()}
        for key, own in differences.items()
    }
    rows = []
    for length in dict.fromkeys(length for _, length in mean):
        corpora = [corpus for corpus, other in mean if other == length]
        texts = [corpus for corpus in corpora if corpus in TEXTS]
        pairs = {corpus: [(corpus, text) for text in texts] for corpus in corpora if corpus in LANGUAGES}
        pairs[CEILING] = [*permutations(texts, 2)]
        shared = [name for name in INTERVENTIONS if all(name in mean[corpus, length] for corpus in corpora)]
        for half in ("report", "choose"):
            names = [name for name in shared if HALVES[name] == half]
            for corpus, own in pairs.items():
                if len(names) > 1 and own:
                    x_PxN, y_PxN = (
                        np.array([[mean[one, length][name] for name in names] for one in side])
                        for side in zip(*own, strict=True)
                    )
                    row = {"corpus": corpus, "length": length, "half": half, "count": len(names), "pairs": len(own)}
                    rows.append(row | compute_measures(x_PxN, y_PxN))
    return rows


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each corpus, length and model."""
    return summary.build_table(
        results,
        FIRST_COLUMNS,
        lambda seeds: dict(zip(("corpus", "length", "change"), find_group(seeds[0]), strict=True)),
    )


def tables(results: Sequence[dict]) -> list[NamedTable]:
    """The difference of each intervention on each corpus, and what the languages' are worth for texts."""
    differences = collect_differences(results)
    corpora = dict.fromkeys(corpus for corpus, _ in differences)
    rows = [
        {"change": name, "base": INTERVENTIONS[name].base, "half": HALVES[name], "length": length}
        | {
            c: estimate_mean(differences[c, length][name].values())
            for c in corpora
            if name in differences.get((c, length), {})
        }
        for length in dict.fromkeys(length for _, length in differences)
        for name in INTERVENTIONS
    ]
    columns = [Column("change", "change"), Column("base", "of"), Column("half", "half"), Column("length", "training")]
    columns += [Column(corpus, corpus, "+.3f") for corpus in corpora]
    caption = "Held-out loss with the change minus without, in nats; below 0: the change is better."
    return [
        NamedTable("differences", "Differences", caption, [row for row in rows if len(row) > 4], columns),
        NamedTable(
            "measure",
            "What a language is worth",
            "Differences on a language compared with those on texts, beside one text compared with another.",
            build_measure_rows(differences),
            MEASURE_COLUMNS,
        ),
    ]


NEAR_ZERO = 0.02  # nats up to which the picture's axes are linear; logarithmic beyond
SIDE = 260  # CSS pixels of the plot of a language
PADDING = 12  # of them free at each end of an axis
TICKS = [-1, -0.3, -0.1, 0, 0.1, 0.3, 1]
SIGNED = "datum.value ? format(datum.value, '+~g') : '0'"
HALF_COLORS = {"report": specs.COLORS[0], "choose": specs.SOFT}
TEXT_SIZE, CHARACTER = 9, 5  # pixels of a name's height, and of a character's width
PLACES = (("left", 7, 0), ("right", -7, 0), ("center", 0, -9), ("center", 0, 10))  # a name's alignment, and its offset


def place_names(point_Nx2: np.ndarray, names: Sequence[str], candidates: Sequence[int]) -> dict[int, int]:
    """The place, an index into PLACES, of each name that has room in the plot: on no point, no other name, no diagonal.

    point_Nx2: in pixels, from the top left. candidates: the points whose names may be shown, the most important first.
    """
    taken, found = [(x - 4, y - 4, x + 4, y + 4) for x, y in point_Nx2], {}
    taken += [(x - 3, SIDE - x - 3, x + 3, SIDE - x + 3) for x in range(0, SIDE, 6)]
    for i in candidates:
        width = CHARACTER * len(names[i])
        for place, (align, dx, dy) in enumerate(PLACES):
            x, y = point_Nx2[i] + (dx, dy)
            left = x - {"left": 0, "center": width / 2, "right": width}[align]
            box = left, y - TEXT_SIZE / 2, left + width, y + TEXT_SIZE / 2
            is_free = all(box[0] >= x1 or x0 >= box[2] or box[1] >= y1 or y0 >= box[3] for x0, y0, x1, y1 in taken)
            if is_free and min(box) >= 0 and max(box) <= SIDE:
                taken.append(box)
                found[i] = place
                break
    return found


def draw_differences(language: str, rows: Sequence[dict], domain: Sequence[float]) -> dict:
    """The spec of differences on texts (x) and on a language (y), with intervals both ways and the line of equal ones.

    rows: each with "change", "half", and the estimates "text" and "difference"; domain: of both axes, in nats.
    """
    values = [
        {name: row[name] for name in ("change", "half")}
        | {
            f"{axis}_{end}": round(value, 6)
            for axis, name in (("x", "text"), ("y", "difference"))
            for end, value in row[name]._asdict().items()
            if value is not None
        }
        for row in rows
    ]
    scale = {"type": "symlog", "constant": NEAR_ZERO, "nice": False, "padding": PADDING, "domain": [*domain]}
    kind = {"type": "quantitative", "scale": scale, "axis": {"values": TICKS, "labelExpr": SIGNED}}

    def at(name):
        return {"field": name, "title": "on texts (nats)" if name[0] == "x" else f"on {language} (nats)", **kind}

    def warp(nats):
        return np.sign(nats) * np.log1p(np.abs(nats) / NEAR_ZERO)

    low, high = warp(np.array(domain))
    share_Nx2 = (warp(np.array([[value["x_mean"], value["y_mean"]] for value in values])) - low) / (high - low)
    place_Nx2 = PADDING + (SIDE - 2 * PADDING) * np.abs(share_Nx2 - [0, 1])
    reported = [i for i, row in enumerate(rows) if row["half"] == "report"]
    reported.sort(key=lambda i: -abs(values[i]["x_mean"]))
    for i, place in place_names(place_Nx2, [row["change"] for row in rows], reported).items():
        values[i]["place"] = place
    color = {"field": "half", "legend": None, "scale": {"domain": [*HALF_COLORS], "range": [*HALF_COLORS.values()]}}
    shape = {"field": "half", "legend": None, "scale": {"domain": [*HALF_COLORS], "range": ["circle", "cross"]}}
    rule = {"type": "rule", "opacity": 0.35}
    dashes = {"type": "line", "strokeDash": [4, 4], "color": specs.SOFT}
    return {
        "title": {
            "text": f"Held-out loss with a change minus without: {language}",
            "subtitle": ["circles: changes that are reported, named where there is room;", "crosses: the others"],
        },
        "data": {"values": values},
        "height": SIDE,
        "encoding": {"x": at("x_mean"), "y": at("y_mean")},
        "layer": [
            {"data": {"values": [{"x_mean": end, "y_mean": end} for end in domain]}, "mark": dashes},
            *(
                {"mark": {"type": "rule", "color": specs.SOFT}, "encoding": {axis: {"datum": 0}, other: None}}
                for axis, other in ("xy", "yx")
            ),
            {"mark": rule, "encoding": {"x": at("x_low"), "x2": {"field": "x_high"}, "color": color}},
            {"mark": rule, "encoding": {"y": at("y_low"), "y2": {"field": "y_high"}, "color": color}},
            {"mark": {"type": "point", "size": 40}, "encoding": {"color": color, "shape": shape}},
            *(
                specs.make_layer(
                    f"name_{place}",
                    {"type": "text", "align": align, "dx": dx, "dy": dy, "fontSize": TEXT_SIZE},
                    {"text": {"field": "change"}},
                    f"datum.place === {place}",
                )
                for place, (align, dx, dy) in enumerate(PLACES)
            ),
        ],
    }


def charts(results: Sequence[dict]) -> list[RowChart]:
    """A chart for each language: its differences against the mean of those on texts, after the longest training."""
    differences = collect_differences(results)
    length = [*dict.fromkeys(length for _, length in differences)][-1:]
    corpora = [corpus for corpus, other in differences if [other] == length]
    texts = [differences[corpus, *length] for corpus in corpora if corpus in TEXTS]
    rows: dict[str, list[dict]] = {}
    for corpus in corpora if texts else ():
        for name, by_seed in differences[corpus, *length].items() if corpus in LANGUAGES else ():
            seeds = [seed for seed in by_seed if all(seed in own.get(name, {}) for own in texts)]
            if seeds:
                x = estimate_mean(np.mean([own[name][seed] for own in texts]) for seed in seeds)
                y = estimate_mean(by_seed[seed] for seed in seeds)
                row = {"language": corpus, "change": name, "half": HALVES[name], "text": x, "difference": y}
                rows.setdefault(corpus, []).append(row)
    estimates = [row[name] for own in rows.values() for row in own for name in ("text", "difference")]
    ends = [value for estimate in estimates for value in estimate if value is not None]
    return [
        RowChart(f"transfer-{corpus}", "Transfer", draw_differences(corpus, own, (min(ends), max(ends))), own, SIDE)
        for corpus, own in rows.items()
    ]
