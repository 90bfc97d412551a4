"""How much does a language model gain by seeing further: n-grams, a window of n words, a recurrent state, attention?

Claim      Bengio et al. 2003 (JMLR 3): a feedforward net over the last n - 1 words is better than smoothed n-grams of
           the same n, and gains by a larger n where these have long stopped. Mikolov et al. 2010 and after: recurrent
           nets are better still. Here all are asked for the same words and get the same steps.
Command    python -m mlm.launch.sweep run experiments/ngram.py --scale=laptop --workers=2
           (your own text by the word: --config.data.path=... --config.tokenizer.kind=words
           --config.tokenizer.vocab_size=10000)
Corpus     quick and laptop: the built-in language, where the exact optimum given all words before, and given the last
           five, stand beside. paper: lm1b by the word.
Hours      quick: a minute a point on 2 CPU cores. laptop: 33 points, about an hour with --workers=2, reckoned from the
           time of a row in architectures.py. paper: 11 points of some 10 hours of an H200 at 40% of its peak, an
           estimate from 6 FLOPs a parameter and token; its n-grams are of order 3, those of order 5 would fill the
           memory of a host.
Expected   Penn Treebank by the word, test perplexity as published, with its nats a word: LSTM of 20M parameters 82.7
           (4.42), of 66M 78.4 (4.36), AWD-LSTM of 24M 57.3 (4.05). That text is nowhere at hand here, so these are no
           column of ours. n-gram rows are interpolated modified Kneser-Ney (Chen & Goodman 1999), as good as KenLM's.
           Where words have several pieces a column has the nats of a word beside those of a piece.
"""
from collections.abc import Sequence

from mlm.base.estimates import estimate
from mlm.experiment.grid import axis, chain, named, product, without
from mlm.experiment.recipes import BEST, OWN, SMALL, of_rows
from mlm.report import summary
from mlm.report.table import Column

ROWS, EVERY = 32_000, 6_400  # taken in by a run, and between two evaluations
CAUSAL = without(SMALL, "mask") | {"objective": "causal", "eval.ngram_order": 5, "data.language.train_documents": ROWS}


def window(n: int) -> dict:
    """A feedforward net that sees the last n - 1 words."""
    return {"name": f"window{n}", "model.family": "feedforward", "model.cell": "window", "model.window": n - 1}


MEMBERS = {f"window{n}": window(n) for n in range(2, 9)} | {
    cell: {"name": cell, "model.family": "rnn", "model.cell": cell} for cell in ("elman", "gru", "lstm")} | {
    "transformer": {"name": "transformer", "model.family": "transformer"}}
CHOSEN = {name: OWN.get(name, {}) | of_rows(ROWS, EVERY, BEST["window" if name.startswith("window") else name])
          for name in MEMBERS}
SCALES = {
    "quick": {"members": ("window5", "lstm", "transformer"), "seeds": 1, "own": CHOSEN,
              "fields": CAUSAL | {"model.size": "micro", "data.language.validation_documents": 500}},
    "laptop": {"members": tuple(MEMBERS), "seeds": 3, "own": CHOSEN, "fields": CAUSAL | {"model.size": "micro"}},
    "paper": {"members": tuple(MEMBERS), "seeds": 1,
              "own": {name: {"optim.learning_rate": 5e-4, "train.batch_size": 256} for name in MEMBERS},
              "fields": {"objective": "causal", "eval.ngram_order": 3, "model.size": "medium", "train.steps": 100_000,
                         "data.corpus": "tfds", "data.tfds_name": "lm1b", "tokenizer.kind": "words",
                         "tokenizer.vocab_size": 60_000, "model.dtype": "bfloat16", "eval.batch_size": 256,
                         "eval.max_examples": 10_000, "train.checkpoint_every": 5000}},
}

COLUMNS = (Column("model", "model"), Column("sees", "sees"), Column("non_embedding", "non-embedding", ",d"),
           Column("tokens_per_second", "tokens/s", ",.0f"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    seeds = axis("seed", *range(plan["seeds"]), name="seed{}")
    every = chain(*(product([MEMBERS[member]], [plan["own"][member]], seeds) for member in plan["members"]))
    return {name: plan["fields"] | point for name, point in named(every).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    feedforward = config["model.family"] == "feedforward"
    return {"model": f"feedforward, n = {config['model.window'] + 1}" if feedforward else
            config["model.cell"] or config["model.family"],
            "sees": f"{config['model.window']} before" if feedforward else "all before",
            "non_embedding": seeds[0]["non_embedding"],
            "tokens_per_second": estimate(result["tokens_per_second"] for result in seeds)}


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """A wider window is better than a narrow one, a state than a window, gates than none."""
    return [("window5", "window2"), ("window8", "window5"), ("lstm", "window8"), ("lstm", "elman"),
            ("transformer", "window8")]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each net, with the n-gram models and the exact optimum below."""
    return summary.table(results, COLUMNS, about)
