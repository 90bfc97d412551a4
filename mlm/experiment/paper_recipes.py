"""The papers' recipes: `mlm train --recipe=NAME` trains by one, `mlm recipes` lists them.

A recipe is the fields that its source gives (paper_recipes.toml), without a corpus: the text is the user's. What it
leaves out is the default.
"""

import functools
import operator
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

_CONTENT = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_ROWS = _CONTENT.pop("recipes")
_TABLES = {
    name: {field: tuple(value) if isinstance(value, list) else value for field, value in table.items()}
    for name, table in _CONTENT.items()
}
BERT_VOCABULARY, BERT, WETTIG = (_TABLES[name] for name in ("vocabulary", "bert", "wettig"))
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
