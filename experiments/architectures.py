"""Which architecture makes the best masked language model when nothing else differs?

Question   Feedforward (window, bag), recurrent (Elman, GRU, LSTM; both directions) and Transformer encoders: same rows,
           masks, loss, optimiser, number of tokens, and non-embedding parameters within 3%. Learning rate and batch are
           each family's own, chosen among the same trials.
Source     No paper has this table at matched size: it is this project's own. The sizes are BERT's.
Command    python -m mlm.launch.sweep run experiments/architectures.py --scale=laptop --workers=2
           (--budget=flops: matched by training FLOPs besides parameters)
Scales     quick: four models, one seed, for a first look. trials: four learning rates and two batches of each, three
           seeds, for recipes.BEST. laptop: all six, two sizes, three seeds. These take in the same 32,000 rows once, at
           30% masked; trials are of micro size alone, so tiny is not tuned. paper: all six at base size, three seeds,
           BERT's batch, on English Wikipedia, for an accelerator; all have BERT's learning rate, tuned for none.
Hours      quick: a minute or two a point on 2 CPU cores. trials: 144 points, two hours. laptop: 36 points, an
           hour. Both with --workers=2, reckoned from the time of a row.
Corpus     But for paper: the built-in language, where the least loss that any model can reach is known; your own text
           with --config.data.path=...
Columns    Where that is known: "gap" is its excess in nats, and beside it what the gap is made of, each part exact:
           telling the kind of a word (noun, preposition, ...), its number, and the word of that kind and number
           (mlm/data/language/word_classes.py). "plateau" is how many rows a model took in before its held-out loss was a tenth
           of the way from the unigram's to the optimum's, as seen at evaluations alone: the first at which it was.
"""
from collections.abc import Sequence
from itertools import pairwise

from mlm.base.estimates import Estimate, estimate
from mlm.experiment.grid import axis, chain, named, product
from mlm.experiment.recipes import BEST, LAPTOP_TASKS, OWN, PAPER_TASKS, QUICK_TASKS, SMALL, of_rows
from mlm.report import evaluation_columns, summary
from mlm.report.table import Column

MEMBERS = {"window": "feedforward", "bag": "feedforward", "elman": "rnn", "gru": "rnn", "lstm": "rnn",
           "transformer": "transformer"}
ROWS, EVERY = 32_000, 1_600  # taken in by a run, and between two evaluations

# Every member has the same trials, the scale `trials`. A part of them was run, at the rows and the masking rate of
# quick and laptop (b549542, 2026-11-22, a busy machine). Nats above the floor at 15%, of seeds 0, 1, 2 in this order:
#              window           bag              elman            gru              lstm             transformer
# 2e-3 x 16                                                                        .201 .243 .262   .389 .335 .246
# 4e-3 x 16    .474 .471 .499   1.35 1.36 1.36   .543 .532 .530   .196 .128 .154   .081 .111 .463   .303 .334 .156
# 8e-3 x 16    .476 .491 .525   1.36 1.36        .553 .543 .550   .167 .145 .146   .166 .446 .344   .408
# 1.6e-2 x 16                                    .667             .572             .511             .838
# 4e-3 x 32                                      .552             .239             .156             .378
# 8e-3 x 32                                      .545             .223             .394             .529
# 1.6e-2 x 32                                    .581             .602             .524             .833
# recipes.BEST has the lowest mean of those with three seeds; what has seed 0 alone was behind the same seed of it. The
# plateau, until a tenth of the way was made, was 1,600 rows for window, bag, elman, 1,600 or 3,200 for the gru, 3,200
# or 4,800 for the lstm, 3,200 to 6,400 for the Transformer. The LSTM's seed 2 is what one seed may hide: a fair search
# is still to come.
TRIALS = [{"name": f"lr{rate:g}-batch{size}", "optim.learning_rate": rate, "train.batch_size": size}
          for rate in (2e-3, 4e-3, 8e-3, 1.6e-2) for size in (16, 32)]
CHOSEN = {member: [OWN[member] | of_rows(ROWS, EVERY, best)] for member, best in BEST.items()}
TRIED = {member: [OWN[member] | of_rows(ROWS, EVERY, trial) for trial in TRIALS] for member in MEMBERS}
SHORT = SMALL | {"mask.rate": 0.3, "data.language.train_documents": ROWS}  # every row once
SCALES = {
    "quick": {"members": ("window", "bag", "lstm", "transformer"), "sizes": ("micro",), "seeds": 1, "own": CHOSEN,
              "fields": SHORT | QUICK_TASKS | {"eval.mask_rates": (0.05, 0.15, 0.3, 0.5, 0.8),
                                 "data.language.validation_documents": 500}},
    "trials": {"members": tuple(MEMBERS), "sizes": ("micro",), "seeds": 3, "own": TRIED, "fields": SHORT},
    "laptop": {"members": tuple(MEMBERS), "sizes": ("micro", "tiny"), "seeds": 3, "own": CHOSEN,
               "fields": SHORT | LAPTOP_TASKS},
    "paper": {"members": tuple(MEMBERS), "sizes": ("base",), "seeds": 3,
              "own": {member: [{"optim.learning_rate": 1e-4, "train.batch_size": 256}] for member in MEMBERS},
              "fields": PAPER_TASKS | {
                  "train.steps": 100_000, "data.corpus": "tfds", "data.tfds_name": "wiki40b/en",
                  "tokenizer.vocab_size": 30_522, "model.dtype": "bfloat16", "train.checkpoint_every": 5000}},
}

COLUMNS = (
    Column("model", "model"), Column("size", "size"), Column("learning_rate", "learning rate", "g"),
    Column("batch", "batch", ",d"), Column("non_embedding", "non-embedding", ",d"), Column("tokens", "tokens", ".3g"),
    Column("tokens_per_second", "tokens/s", ",.0f"),
)
PARTS = (Column("gap_kind", "gap: kind of word (nats)", ".3f"), Column("gap_number", "gap: its number (nats)", ".3f"),
         Column("gap_word", "gap: word among these (nats)", ".3f"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    seeds = axis("seed", *range(plan["seeds"]), name="seed{}")

    def points(size, member):
        model = {"name": f"{member}-{size}", "model.family": MEMBERS[member],
                 "model.cell": "" if member == "transformer" else member, "model.size": size}
        return product([model], plan["own"][member], seeds)

    every = chain(*(points(size, member) for size in plan["sizes"] for member in plan["members"]))
    return {name: plan["fields"] | point for name, point in named(every).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    return {"model": config["model.cell"] or config["model.family"], "size": config["model.size"],
            "learning_rate": config["optim.learning_rate"], "batch": config["train.batch_size"],
            "non_embedding": seeds[0]["non_embedding"],
            "tokens": float(sum(result["tokens"] for result in seeds) / len(seeds)),
            "tokens_per_second": estimate(result["tokens_per_second"] for result in seeds),
            **parts(seeds), **plateau(seeds), **evaluation_columns.probes(seeds, "accuracy")}


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """At each size attention is better than gates, gates than none, and a window that has an order than one without."""
    return [(f"{better}-{size}", f"{worse}-{size}")
            for size in dict.fromkeys(name.partition("-")[2] for name in names)
            for better, worse in (("transformer", "lstm"), ("lstm", "elman"), ("window", "bag"))]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """One row a model, size, learning rate and batch, with what its gap is made of, how long its plateau was, and its
    answers to the built-in language's probes beside the optimum's."""
    apart = max((later - earlier for result in results for (earlier, _), (later, _) in pairwise(evaluations(result))),
                default=0)
    rows, columns = summary.table(results, COLUMNS, about, (
        *PARTS, Column("plateau", f"plateau (rows, seen every {apart:,})", ",.0f"), *evaluation_columns.PROBES))
    best = evaluation_columns.probes(results[:1], "optimum")
    if any("gap_kind" in row for row in rows):
        best |= {column.name: 0.0 for column in PARTS}
    return [row | best if row["model"] == "exact optimum" and summary.JUDGED not in row else row
            for row in rows], columns


def parts(results: Sequence[dict]) -> dict[str, Estimate]:
    """What the gap is made of (mlm/evaluation/loss_decomposition.py), where all runs were asked."""
    each = [result["answers"].get("gap", {}).get("parts", {}) for result in results]
    return {f"gap_{name}": estimate(found[name]["excess"] for found in each)
            for name in ("kind", "number", "word") if all(name in found for found in each)}


def plateau(results: Sequence[dict]) -> dict[str, Estimate | str]:
    """How many rows it took until a tenth of the way was made; seed by seed where some run never made it.

    Nothing where the floor is not known, or where there is no evaluation but the last.
    """
    lengths, texts = [], []
    for result in results:
        found, losses = result["evaluation"], evaluations(result)
        if "floor" not in found or len(losses) < 2:
            return {}
        bar = 0.9 * found["unigram_loss"] + 0.1 * found["floor"]
        there = next((rows for rows, loss in losses if loss <= bar), None)
        lengths.append(there)
        texts.append(f"> {losses[-1][0]:,}" if there is None else f"{there:,}")
    return {"plateau": ", ".join(texts) if None in lengths else estimate(lengths)}


def evaluations(result: dict) -> list[tuple[int, float]]:
    """Rows taken in so far, and held-out loss, at each evaluation of a run."""
    return [(one["step"] * result["config"]["train.batch_size"], one["eval_loss"]) for one in result["history"]
            if "eval_loss" in one]
