"""How much does a language model gain from more context: n-grams, a window of n words, a recurrent state, attention?

Paper      Bengio et al. 2003 (JMLR 3): a feedforward network over the last n - 1 words is better than smoothed n-grams
           of the same n, and still gains from a larger n where n-grams no longer do. Mikolov et al. 2010 and later:
           recurrent networks are better still.
Method     All models predict the same words and train for the same steps.
Run        mlm sweep run experiments/ngram.py --scale=laptop --workers=2
           (your own text by the word: --config.data.path=... --config.tokenizer.kind=words
           --config.tokenizer.vocab_size=10000)
Data       quick and laptop: the built-in language, whose floors given all previous words and given the last five stand
           in the table. paper: lm1b by the word.
Cost       quick: a minute per point on 2 CPU cores. laptop: 33 points, about an hour with --workers=2, estimated from
           the time per example in architectures.py. paper: 11 points of some 10 hours of an H200 at 40% of its peak, an
           estimate from 6 FLOPs per parameter and token; its n-grams are of order 3, since those of order 5 would fill
           the memory of a host. text: 14 points of micro on WikiText-2 by the word, 32,000 examples, two seeds: 71
           minutes, measured.
Not run    laptop, paper.
Published  Penn Treebank by the word, test perplexity and its nats per word: LSTM of 20M parameters 82.7 (4.42), of 66M
           78.4 (4.36), AWD-LSTM of 24M 57.3 (4.05). That text is not available here, so these are no column of ours.
Columns    The n-gram rows are interpolated modified Kneser-Ney (Chen & Goodman 1999), as good as KenLM's. Where a word
           has several tokens, one column has nats per word and one nats per token.
Figures    experiments/results/ngram.md
"""

from collections.abc import Sequence

from mlm.experiment.grid import cross_points, drop_fields, make_seeds, name_points
from mlm.experiment.recipes import (
    ARCHITECTURE_FIELDS,
    FAMILY_FIELDS,
    SMALL,
    TUNED_FIELDS,
    read_text,
    set_training_length,
)
from mlm.report import run_columns, summary
from mlm.report.table import Column

NUM_EXAMPLES, EVAL_INTERVAL = 32_000, 6_400  # taken in by a run, and between two evaluations
CAUSAL = drop_fields(SMALL, "mask") | {
    "objective": "causal",
    "eval.ngram_order": 5,
    "data.language.train_documents": NUM_EXAMPLES,
}
# A window of n sees the last n - 1 words.
MEMBERS = {f"window{n}": FAMILY_FIELDS["window"] | {"model.window": n - 1} for n in range(2, 9)}
MEMBERS |= {name: FAMILY_FIELDS[name] for name in ("elman", "gru", "lstm", "transformer")}
TUNED_POINTS = {
    name: ARCHITECTURE_FIELDS.get(name, {})
    | set_training_length(NUM_EXAMPLES, EVAL_INTERVAL, TUNED_FIELDS["window" if name.startswith("window") else name])
    for name in MEMBERS
}
SCALES = {
    "quick": {
        "members": ("window5", "lstm", "transformer"),
        "seeds": 1,
        "own": TUNED_POINTS,
        "fields": CAUSAL | {"model.size": "micro", "data.language.validation_documents": 500},
    },
    "laptop": {"members": tuple(MEMBERS), "seeds": 3, "own": TUNED_POINTS, "fields": CAUSAL | {"model.size": "micro"}},
    "text": {
        "members": ("window2", "window5", "window8", "elman", "gru", "lstm", "transformer"),
        "seeds": 2,
        "own": TUNED_POINTS,
        "fields": read_text(CAUSAL)
        | {"model.size": "micro", "tokenizer.kind": "words", "tokenizer.vocab_size": 10_000},
    },
    "paper": {
        "members": tuple(MEMBERS),
        "seeds": 1,
        "own": {name: {"optim.learning_rate": 5e-4, "train.batch_size": 256} for name in MEMBERS},
        "fields": {
            "objective": "causal",
            "eval.ngram_order": 3,
            "model.size": "medium",
            "train.steps": 100_000,
            "data.corpus": "tfds",
            "data.tfds_name": "lm1b",
            "tokenizer.kind": "words",
            "tokenizer.vocab_size": 60_000,
            "model.dtype": "bfloat16",
            "eval.batch_size": 256,
            "eval.max_examples": 10_000,
            "train.checkpoint_every": 5000,
        },
    },
}

COLUMNS = (
    *run_columns.select_columns("model"),
    Column("sees", "sees"),
    *run_columns.select_columns("non_embedding", "tokens_per_second"),
)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    members = [{"name": member} | MEMBERS[member] | plan["own"][member] for member in plan["members"]]
    return name_points(cross_points(members, make_seeds(plan["seeds"])), plan["fields"])


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    feedforward = config["model.family"] == "feedforward"
    return {
        "model": f"feedforward, n = {config['model.window'] + 1}" if feedforward else run_columns.name_model(config),
        "sees": f"{config['model.window']} before" if feedforward else "all before",
    }


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """A wider window is better than a narrow one, a state than a window, gates than none."""
    return [
        ("window5", "window2"),
        ("window8", "window5"),
        ("lstm", "window8"),
        ("lstm", "elman"),
        ("transformer", "window8"),
    ]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each net, with the n-gram models and the Bayes optimum below."""
    return summary.build_table(results, COLUMNS, describe_row)
