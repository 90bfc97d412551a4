"""What does translation gain from attention in place of recurrence, and from a wider beam search?

Question   A recurrent encoder-decoder with attention against the Transformer, on the same examples and with the same
           vocabulary; for each, translations by beams of 1, 2, 4 and 8, with and without length normalization.
Paper      Bahdanau et al. 2015 (arXiv:1409.0473); Vaswani et al. 2017 (arXiv:1706.03762). The recipe is that of the
           smallest Transformer for Multi30k in fairseq_mmt (libeineu/fairseq_mmt): 4+4 layers of width 128, FFN 256, 4
           heads, dropout 0.3, label smoothing 0.1, Adam (0.9, 0.98) at 5e-3, inverse square root, 2,000 steps of
           warm-up, shared embeddings, averaged checkpoints. Theirs has 8,192 tokens per update and up to 8,000 updates.
Run        mlm sweep run experiments/translation.py --scale=laptop --config.data.parallel_path=multi30k
Data       quick: the built-in language and its translations. laptop: Multi30k, English to German, whose files you bring
           (train, val, test_2016_flickr, each with .en and .de). paper: WMT 2014, with files named alike. BLEU needs
           sacrebleu: pip install -e '.[evaluate]'. An example of 64 tokens holds three or four pairs, so that a batch
           of 64 has 4,096 tokens on each side.
Cost       laptop: 0.8 s per step of the Transformer on two otherwise idle cores, an hour, and 1.0 s of the RNN. paper:
           for an accelerator; not estimated. text: Multi30k for 600 steps and beams of 1 and 4: 2 points, 24 minutes,
           estimated.
Published  Published figures of this size are BLEU of tokenized text with a beam of 5. Ours are sacrebleu's, of plain
           text, with its signature. The two scales do not compare.
Figures    experiments/results/objectives.md
"""

from collections.abc import Iterator, Sequence

from mlm.base.estimates import ItemInterval, estimate_mean
from mlm.experiment.grid import cross_points, make_seeds, name_points
from mlm.report import summary
from mlm.report.table import Column

MULTI30K = {
    "data.parallel_path": "multi30k",
    "data.parallel.source": "en",
    "data.parallel.target": "de",
    "data.parallel.test": "test_2016_flickr",
    "tokenizer.vocab_size": 8000,
    "pack.seq_len": 64,
}
GENERATED = {
    "data.corpus": "parallel",
    "data.language.train_documents": 2000,
    "data.language.validation_documents": 100,
    "pack.seq_len": 64,
}
RECIPE = {
    "objective": "causal",
    "model.family": "encoder_decoder",
    "model.width": 128,
    "model.dropout": 0.3,
    "model.init_std": 0.0,
    "optim.label_smoothing": 0.1,
    "optim.weight_decay": 0.0,
    "optim.learning_rate": 5e-3,
    "optim.schedule": "inverse_sqrt",
    "optim.eps": 1e-9,
    "train.batch_size": 64,
}
MODELS = {
    # Of as many parameters.
    "rnn": {
        "name": "rnn",
        "model.cell": "gru",
        "model.num_layers": 1,
        "model.rnn_dim": 256,
        "optim.learning_rate": 2e-3,
    },
    "transformer": {
        "name": "transformer",
        "model.cell": "transformer",
        "model.num_layers": 4,
        "model.num_heads": 4,
        "model.mlp_dim": 256,
        "model.attention_dropout": 0.0,
        "model.positions": "sinusoidal",
        "model.max_positions": 256,
    },
}


def set_training_steps(steps: int, warmup: int, average: int, every: int) -> dict:
    """So many steps, so many of them of warm-up, and the mean of so many moments, each `every` steps from the next."""
    return {
        "train.steps": steps,
        "optim.warmup_fraction": warmup / steps,
        "optim.average_checkpoints": average,
        "optim.average_every": every,
    }


SCALES = {
    "quick": GENERATED | RECIPE | set_training_steps(40, 20, 2, 5) | {"train.eval_every": 20, "eval.beams": (1, 2)},
    "laptop": MULTI30K
    | RECIPE
    | set_training_steps(4200, 2000, 10, 50)
    | {"train.eval_every": 200, "eval.beams": (1, 2, 4, 8)},
    "text": MULTI30K
    | RECIPE
    | set_training_steps(600, 300, 5, 25)
    | {"data.parallel_path": "texts/multi30k", "train.eval_every": 200, "eval.beams": (1, 4)},
    "paper": MULTI30K
    | RECIPE
    | set_training_steps(100_000, 4000, 5, 1000)
    | {
        "data.parallel_path": "wmt14",
        "data.parallel.test": "newstest2014",
        "tokenizer.vocab_size": 37_000,
        "pack.seq_len": 256,
        "model.dropout": 0.1,
        "model.dtype": "bfloat16",
        "optim.learning_rate": 7e-4,
        "train.batch_size": 100,
        "train.eval_every": 1000,
        "eval.beams": (1, 4),
    },
}
BASE = {
    "transformer": {"model.num_layers": 6, "model.width": 512, "model.mlp_dim": 2048, "model.num_heads": 8},
    "rnn": {"model.width": 512, "model.rnn_dim": 1024, "optim.learning_rate": 7e-4},
}  # at paper scale

COLUMNS = (Column("model", "model"), Column("beam", "beam", "d"), Column("normalised", "log P"))
SCORE_COLUMNS = (
    Column("bleu", "BLEU", ".1f"),
    Column("chrf", "chrF", ".1f"),
    Column("brevity", "length over the references'", ".3f"),
)
LENGTH_PENALTIES = {"mean": "over length", "none": "as it is"}  # by which texts of a beam are compared


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    members = [member | (BASE[name] if scale == "paper" else {}) for name, member in MODELS.items()]
    points = cross_points(members, make_seeds(1))
    return name_points(points, SCALES[scale])


def split_by_search(result: dict) -> Iterator[dict]:
    """For each search that a run translated by a run with that alone, as if it were one; the run where it did none."""
    folder, _, run_name = result["config"]["workdir"].rpartition("/")
    for name, translation in result["evaluations"].get("translation", {}).items():
        yield result | {"found": translation, "config": result["config"] | {"workdir": f"{folder}/{name} {run_name}"}}
    if not result["evaluations"].get("translation"):
        yield result


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    cell = {"gru": "GRU with attention", "transformer": "Transformer"}[config["model.cell"]]
    row = {"model": f"{cell}, {config['model.num_layers']} x {config['model.width']}"}
    if any("found" not in result for result in seeds):
        return row
    translations = [result["found"] for result in seeds]
    row |= {
        "beam": translations[0]["num_beams"],
        "normalised": LENGTH_PENALTIES[translations[0]["length_penalty"]] if translations[0]["num_beams"] > 1 else "",
    }
    for column in SCORE_COLUMNS:
        row[column.name] = estimate_mean(translation[column.name] for translation in translations)
    if len(translations) == 1:
        row["bleu"] = ItemInterval(translations[0]["bleu"], translations[0]["bleu_low"], translations[0]["bleu_high"])
    return row


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """Attention alone is better than recurrence with attention."""
    return [("transformer", "rnn")]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each model and search, with BLEU of the held-out pairs."""
    split_results = [part for result in results for part in split_by_search(result)]
    signatures = {
        (part["found"]["pairs_name"], part["found"]["signature"]) for part in split_results if "found" in part
    }
    notes = "; ".join(f"of {name}, by sacrebleu, {signature}" for name, signature in sorted(signatures))
    bleu, *other_columns = SCORE_COLUMNS
    return summary.build_table(
        split_results, COLUMNS, describe_row, (bleu._replace(note=notes and f"BLEU: {notes}."), *other_columns)
    )
