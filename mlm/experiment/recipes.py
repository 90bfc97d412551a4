"""Recipes as the fields that experiments set: the papers', and a small budget's.

A paper's recipe is the fields that its source gives (paper_recipes.toml), without a corpus: the text is the user's.
What it leaves out is the default. `mlm train --recipe=NAME` trains by one, `mlm recipes` lists them.
"""

import functools
import operator
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import recipe_constants
from mlm.experiment import grid


def _read_tables(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


_CONTENT = _read_tables("paper_recipes.toml")
_ROWS = _CONTENT.pop("recipes")
_TABLES = {
    name: {field: tuple(value) if isinstance(value, list) else value for field, value in table.items()}
    for name, table in _CONTENT.items()
}
MODERN_BERT_STEPS = {"warmup": 2_765, "batch_warmup": 18_165, "short": 372_083, "long": 52_982, "decay": 10_596}
MODERN_BERT_LENGTH = sum(MODERN_BERT_STEPS[name] for name in ("short", "long", "decay"))
MODERN_BERT_SHORT = MODERN_BERT_STEPS["short"] / MODERN_BERT_LENGTH
_TABLES["modernbert"] |= {
    "phases.shares": (MODERN_BERT_SHORT, 1 - MODERN_BERT_SHORT),
    "train.steps": MODERN_BERT_LENGTH,
    "train.batch_warmup_fraction": MODERN_BERT_STEPS["batch_warmup"] / MODERN_BERT_LENGTH,
    "train.initial_batch_fraction": 1 / 6,
    "optim.warmup_fraction": MODERN_BERT_STEPS["warmup"] / MODERN_BERT_LENGTH,
    "optim.decay_fraction": MODERN_BERT_STEPS["decay"] / MODERN_BERT_LENGTH,
}
NEO_BERT_SHORT = 1_000_000 / 1_050_000
_TABLES["neobert"] |= {"phases.shares": (NEO_BERT_SHORT, 1 - NEO_BERT_SHORT), "optim.warmup_fraction": 2000 / 1_050_000}
SIZE_FIELDS = ("model.num_layers", "model.width", "model.mlp_dim", "model.num_heads")  # that model.size gives


class PaperRecipe(NamedTuple):
    """A paper's recipe: its fields by dotted name, and where they are from."""

    fields: dict[str, Any]
    source: str

    def drop_size(self) -> dict[str, Any]:
        """Returns the fields without the paper's size, for a model of another model.size."""
        return {name: value for name, value in self.fields.items() if name not in SIZE_FIELDS}


RECIPES = {
    name: PaperRecipe(functools.reduce(operator.or_, (_TABLES[table] for table in row["tables"])), row["source"])
    for name, row in _ROWS.items()
}

# The family and the cell of each architecture that experiments compare.
FAMILY_FIELDS = {
    "window": {"model.family": "feedforward", "model.cell": "window"},
    "bag": {"model.family": "feedforward", "model.cell": "bag"},
    "elman": {"model.family": "rnn", "model.cell": "elman"},
    "gru": {"model.family": "rnn", "model.cell": "gru"},
    "lstm": {"model.family": "rnn", "model.cell": "lstm"},
    "transformer": {"model.family": "transformer"},
}

# A small budget's recipe: no dropout (no row is seen often), [MASK] only (Wettig et al. 2022 find no use for the other
# ways), and initial weights of 0.08. Rotary positions let a small Transformer find its neighbours within a hundred
# steps; with sinusoidal ones it took six hundred, with learned ones most of the run. Gates that start with memories of
# all lengths let an LSTM recall a name from sentences ago: 99% of them after 1,500 steps, and 35% without.
SMALL = {
    "model.dropout": recipe_constants.SMALL_DROPOUT,
    "mask.mask_token_prob": 1.0,
    "mask.random_token_prob": 0.0,
    "model.init_std": recipe_constants.SMALL_INIT_STD,
    "optim.warmup_fraction": recipe_constants.WARMUP_FRACTION,
    "data.language.train_documents": 80_000,
}
# What it says of fields that one architecture alone reads, to be added for that one:
# SMALL | ARCHITECTURE_FIELDS["lstm"]. The numbers are those of the default recipe of small models, stated for sweeps
# over sizes.
GATES = {"model.chrono_init": recipe_constants.GATE_MEMORY}
ARCHITECTURE_FIELDS = {name: {} for name in FAMILY_FIELDS} | {
    "gru": GATES,
    "lstm": GATES,
    "transformer": {
        "model.attention_dropout": recipe_constants.SMALL_DROPOUT,
        "model.positions": recipe_constants.SMALL_POSITIONS,
    },
}

# What each architecture learned best by in it, of what experiments/architectures.py tried (scale trials; its table).
TUNED_FIELDS = {
    member: {"optim.learning_rate": 8e-3 if member == "gru" else 4e-3, "train.batch_size": 16}
    for member in ARCHITECTURE_FIELDS
}

LANGUAGES = _read_tables("languages.toml")


def make_member(name: str, scale: str) -> dict:
    """The point of an architecture, with the fields that it alone reads; those are the defaults at scale paper."""
    return {"name": name} | FAMILY_FIELDS[name] | ({} if scale == "paper" else ARCHITECTURE_FIELDS[name])


def set_training_length(num_examples: int, eval_interval: int, fields: dict) -> dict:
    """The fields, with as many steps as read num_examples examples, and an evaluation after each eval_interval."""
    batch_size = fields["train.batch_size"]
    return fields | {"train.steps": num_examples // batch_size, "train.eval_every": eval_interval // batch_size}


# A model in minutes, as a Transformer learns best, and in seconds: to see that an experiment runs, not what it finds.
LAPTOP = SMALL | {"model.size": "micro"} | set_training_length(51_200, 6_400, TUNED_FIELDS["transformer"])
QUICK = LAPTOP | {
    "data.language.train_documents": 2000,
    "data.language.validation_documents": 100,
    "train.batch_size": 16,
    "train.steps": 40,
    "train.log_every": 10,
    "train.eval_every": 20,
}


def make_text(folder: str, train: str, validation: str, boundary: str) -> dict:
    """The fields of a text in the folder `texts`, which the user provides."""
    paths = {"data.path": f"texts/{folder}/{train}", "data.validation_path": f"texts/{folder}/{validation}"}
    return paths | {"data.document_boundary": boundary, "tokenizer.sample_characters": 2**23}


TEXTS = {"wikitext": make_text("wikitext-2", "train.txt", "valid.txt", " = [^=]+ = ")} | {
    name: make_text(folder, "train.txt.gz", "validation.txt.gz", r"=== \S+")
    for name, folder in (("novels_en", "novels-en"), ("textbooks", "textbooks-en"), ("novels_hu", "novels-hu"))
}


def read_text(fields: dict) -> dict:
    """The fields with WikiText-2 in place of their corpus, without its tokenizer and its tasks."""
    text = TEXTS["wikitext"] | {"eval.max_examples": 1_000}
    return grid.drop_fields(fields, "data", "tokenizer", "downstream") | text


# With the defaults' learning rates and warm-up, which default_recipe.py searched on this text, of which it reads half.
TEXT = grid.drop_fields(read_text(LAPTOP), "optim") | set_training_length(16_000, 3_200, {"train.batch_size": 16})

# What a model is fine-tuned for once it is trained. Of the built-in language, where the best possible score is known: a
# grid of one point, in seconds and in half a minute. The papers': the tasks' files lie in folders mnli, sst2, ... of a
# folder "tasks", or of --config.downstream.path=...; --config.downstream.tasks= leaves all that out. On text: `texts`.
QUICK_TASKS = {"downstream.tasks": "topic", "downstream.learning_rates": (1e-3,), "downstream.epochs": (1.0,)}
TEXT_TASKS = QUICK_TASKS | {"downstream.tasks": "sst2", "downstream.path": "texts", "downstream.epochs": (0.5,)}
LAPTOP_TASKS = {"downstream.tasks": "topic", "downstream.learning_rates": (1e-3,), "downstream.seeds": 3}
PAPER_TASKS = {"downstream.tasks": "mnli,qnli,qqp,sst2", "downstream.path": "tasks", "downstream.seeds": 3}

# A Transformer that is trained and then fine-tuned, where a paper's question is not one of architecture.
TRANSFORMERS = {
    "quick": QUICK | QUICK_TASKS | ARCHITECTURE_FIELDS["transformer"],
    "laptop": LAPTOP | LAPTOP_TASKS | ARCHITECTURE_FIELDS["transformer"],
    "text": TEXT | TEXT_TASKS | ARCHITECTURE_FIELDS["transformer"],
}

# The grid of fine-tuning of Devlin et al. 2019, appendix A.3.
BERT_GRID = {
    "downstream.learning_rates": (5e-5, 3e-5, 2e-5),
    "downstream.epochs": (2.0, 3.0, 4.0),
    "downstream.batch_sizes": (16, 32),
}

# An accelerator's: English Wikipedia as prepared by TensorFlow Datasets, whose size and contents are not those of the
# papers' own corpora (with books, news or the web beside), and WordPiece of BERT's size.
LARGE = _TABLES["vocabulary"] | {
    "data.corpus": "tfds",
    "data.tfds_name": "wiki40b/en",
    "model.dtype": "bfloat16",
    "model.scan_unroll": 1,
    "eval.batch_size": 512,
    "eval.max_examples": 10_000,
}
BERT = LARGE | _TABLES["bert"] | {"train.checkpoint_every": 10_000}
WETTIG = LARGE | _TABLES["wettig"] | {"train.checkpoint_every": 1000}
