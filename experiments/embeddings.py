"""How much of a state is its word alone, and how well do states tell how alike sentences are, by family?

Claim      Ethayarajh 2019 (EMNLP, arXiv:1909.00512): in every layer of ELMo, BERT and GPT-2 the states of two random
           words point the same way, and one static vector explains less than 5% of the variance of a word's states,
           that of random states taken off. No masked model of his is matched in size or data: families here are.
Command    python -m mlm.launch.sweep run experiments/embeddings.py --scale=laptop --workers=2
           for the similarity of sentences, English: --config.data.path=TEXT --config.eval.sts=FOLDER of STS-B
Hours      quick: seconds a point, of which the questions are one or two. laptop: 15 points, about half an hour on 2 CPU
           cores with --workers=2, reckoned from the time of a row. paper: 3 points at base size, BERT's batch.
Columns    All are of the last layer, of states of held-out text with nothing masked (mlm/evaluation/embeddings.py). "cosine of
           two words' states" is anisotropy; "more of one word in two rows" is his self-similarity less that; "share of
           one static vector, above random" his maximum explainable variance less that of as many random states. Where
           STS-B is given: Spearman of the cosine of two sentences' [CLS], mean states, and mean rows of the table of
           embeddings, with what people said. Errors of a single seed are over rows, words and pairs.
"""
from collections.abc import Sequence

from mlm.experiment.grid import axis, chain, named, product
from mlm.experiment.recipes import LAPTOP, LARGE, OWN, QUICK
from mlm.report import summary
from mlm.report.table import Column

MEMBERS = {"bag": "feedforward", "window": "feedforward", "gru": "rnn", "lstm": "rnn", "transformer": "transformer"}
ASKED = {"eval.anisotropy": True}

SCALES = {
    "quick": {"fields": QUICK | ASKED, "members": ("window", "transformer"), "seeds": 1},
    "laptop": {"fields": LAPTOP | ASKED, "members": tuple(MEMBERS), "seeds": 3},
    "paper": {"fields": LARGE | ASKED | {"model.size": "base", "optim.learning_rate": 1e-4, "train.batch_size": 256,
                                         "train.steps": 100_000, "train.checkpoint_every": 5000},
              "members": ("window", "lstm", "transformer"), "seeds": 1},
}

COLUMNS = (Column("model", "model"), Column("layers", "layers", ",d"), Column("width", "width", ",d"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    seeds = axis("seed", *range(plan["seeds"]), name="seed{}")

    def points(member):
        cell = "" if member == "transformer" else member
        model = {"name": member, "model.family": MEMBERS[member], "model.cell": cell}
        return product([model | (OWN[member] if scale != "paper" else {})], seeds)

    every = chain(*map(points, plan["members"]))
    return {name: plan["fields"] | point for name, point in named(every).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    return {"model": config["model.cell"] or config["model.family"], "layers": config["model.num_layers"],
            "width": config["model.width"]}


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each family; what its runs were asked stands in the columns of mlm/report/evaluation_columns.py."""
    return summary.table(results, COLUMNS, about)
