"""How much of a contextual state is the word alone, and how well do states measure sentence similarity?

Paper      Ethayarajh 2019 (EMNLP, arXiv:1909.00512): in every layer of ELMo, BERT and GPT-2 the states of two random
           words point in similar directions, and one static vector explains less than 5% of the variance of a word's
           states, after subtracting that of random states. His masked models differ in size and data; ours are matched.
           His code centers each word's states, ours does not: the shares do not compare.
Run        mlm sweep run experiments/embeddings.py --scale=laptop --workers=2
           for sentence similarity in English: --config.data.path=TEXT --config.eval.sts=FOLDER of STS-B
Cost       quick: seconds per point, of which the evaluation takes one or two. laptop: 15 points, about half an hour on
           2 CPU cores with --workers=2, estimated from the time per example. paper: 3 points at base size, BERT's batch
           size. text: 15 points of micro on WikiText-2, 16,000 examples, three seeds, with STS-B: 26 minutes, measured.
Columns    All columns are about the last layer's states of unmasked held-out text (mlm/evaluation/anisotropy.py).
           "cosine of two words' states" is anisotropy. "more of one word in two rows" is his self-similarity minus
           anisotropy. "share of one static vector, above random" is his maximum explainable variance minus that of as
           many random states. With STS-B the table has Spearman's correlation of people's similarity scores with the
           cosine of two sentences' [CLS] states, mean states, and mean input embeddings. Errors of a single seed are
           over examples, words and pairs.
Figures    experiments/results/embeddings.md
"""

from collections.abc import Sequence

from mlm.experiment.grid import cross_points, make_seeds, name_points
from mlm.experiment.recipes import LAPTOP, LARGE, QUICK, TEXT, make_member
from mlm.report import evaluation_scores, run_columns, summary
from mlm.report.table import Column, NamedTable

MEMBERS = ("bag", "window", "gru", "lstm", "transformer")
EVALUATION_FIELDS = {"eval.anisotropy": True}

SCALES = {
    "quick": {"fields": QUICK | EVALUATION_FIELDS, "members": ("window", "transformer"), "seeds": 1},
    "laptop": {"fields": LAPTOP | EVALUATION_FIELDS, "members": MEMBERS, "seeds": 3},
    "text": {"fields": TEXT | EVALUATION_FIELDS | {"eval.sts": "texts/stsb"}, "members": MEMBERS, "seeds": 3},
    "paper": {
        "fields": LARGE
        | EVALUATION_FIELDS
        | {
            "model.size": "base",
            "optim.learning_rate": 1e-4,
            "train.batch_size": 256,
            "train.steps": 100_000,
            "train.checkpoint_every": 5000,
        },
        "members": ("window", "lstm", "transformer"),
        "seeds": 1,
    },
}

COLUMNS = (*run_columns.select_columns("model"), Column("layers", "layers", ",d"), Column("width", "width", ",d"))
RESULT_TABLES = ("states",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    members = [make_member(member, scale) for member in plan["members"]]
    return name_points(cross_points(members, make_seeds(plan["seeds"])), plan["fields"])


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    return {"layers": config["model.num_layers"], "width": config["model.width"]}


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each family; what its runs were asked stands in the columns of mlm/evaluation."""
    return summary.build_table(results, COLUMNS, describe_row)


def tables(results: Sequence[dict]) -> list[NamedTable]:
    """All that was measured of the states, of which the headline has room for two columns."""
    rows, _ = table(results)
    measured = evaluation_scores.build_columns(results).values()
    columns = [*run_columns.select_columns("model"), *(column for column in measured if "/dev:" not in column.title)]
    caption = "Means over seeds of what was measured of the last layer's states."
    return [NamedTable("states", "States", caption, [row for row in rows if "seeds" in row], columns)]
