"""The papers' recipes: `mlm train --recipe=NAME` trains by one, `mlm recipes` lists them.

A recipe is the fields that its source gives (paper_recipes.toml), without a corpus: the text is the user's. What it
leaves out is the default.
"""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import recipe_constants

_TABLES = {
    name: {field: tuple(value) if isinstance(value, list) else value for field, value in table.items()}
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
BERT_VOCABULARY, BERT, WETTIG, NANOGPT = (_TABLES[name] for name in ("vocabulary", "bert", "wettig", "nanogpt"))
# At every width, also where the default is a small model's.
ENCODER = {
    "model.dropout": recipe_constants.BERT_DROPOUT,
    "model.attention_dropout": recipe_constants.BERT_DROPOUT,
    "model.init_std": recipe_constants.BERT_INIT_STD,
}
MODERN_BERT_STEPS = {"warmup": 2_765, "batch_warmup": 18_165, "short": 372_083, "long": 52_982, "decay": 10_596}
MODERN_BERT_LENGTH = sum(MODERN_BERT_STEPS[name] for name in ("short", "long", "decay"))
MODERN_BERT_SHORT = MODERN_BERT_STEPS["short"] / MODERN_BERT_LENGTH
MODERN_BERT = _TABLES["modernbert"] | {
    "phases.shares": (MODERN_BERT_SHORT, 1 - MODERN_BERT_SHORT),
    "train.steps": MODERN_BERT_LENGTH,
    "train.batch_warmup_fraction": MODERN_BERT_STEPS["batch_warmup"] / MODERN_BERT_LENGTH,
    "train.initial_batch_fraction": 1 / 6,
    "optim.warmup_fraction": MODERN_BERT_STEPS["warmup"] / MODERN_BERT_LENGTH,
    "optim.decay_fraction": MODERN_BERT_STEPS["decay"] / MODERN_BERT_LENGTH,
}
NEO_BERT_SHORT = 1_000_000 / 1_050_000
NEO_BERT = _TABLES["neobert"] | {
    "phases.shares": (NEO_BERT_SHORT, 1 - NEO_BERT_SHORT),
    "optim.warmup_fraction": 2000 / 1_050_000,
}

SIZE_FIELDS = ("model.num_layers", "model.width", "model.mlp_dim", "model.num_heads")  # that model.size gives


class PaperRecipe(NamedTuple):
    """A paper's recipe: its fields by dotted name, and where they are from."""

    fields: dict[str, Any]
    source: str

    def drop_size(self) -> dict[str, Any]:
        """Returns the fields without the paper's size, for a model of another model.size."""
        return {name: value for name, value in self.fields.items() if name not in SIZE_FIELDS}


RECIPES = {
    "bert": PaperRecipe(
        BERT_VOCABULARY | BERT | _TABLES["bert_phases"] | ENCODER | {"model.size": "base"},
        "BERT-base (Devlin et al. 2019, arXiv 1810.04805; google-research/bert), rows of 128 tokens, then of 512",
    ),
    "roberta": PaperRecipe(
        _TABLES["roberta"] | ENCODER | {"model.size": "base"},
        "RoBERTa-base (Liu et al. 2019, arXiv 1907.11692, table 3: 2K x 125K steps), our tokenizer and warm-up",
    ),
    "wettig": PaperRecipe(
        BERT_VOCABULARY | WETTIG | ENCODER | {"model.size": "large"},
        "Should you mask 15%? (Wettig et al. 2022, arXiv 2202.08005; DinkyTrain), large",
    ),
    "modernbert": PaperRecipe(
        MODERN_BERT,
        "ModernBERT-base (Warner et al. 2024, arXiv 2412.13663), also by Ettin's configs (arXiv 2507.11412), 150M",
    ),
    "neobert": PaperRecipe(
        NEO_BERT, "NeoBERT (Breton et al. 2025, arXiv 2502.19587; chandar-lab/NeoBERT), rows of 1,024, then 4,096"
    ),
    "gpt-bert": PaperRecipe(
        _TABLES["gpt-bert"] | ENCODER,
        "GPT-BERT for 10M words (Charpentier & Samuel 2024, arXiv 2410.24159; ltgoslo/gpt-bert), small",
    ),
    "nanogpt": PaperRecipe(NANOGPT, "nanoGPT for a CPU (karpathy/nanoGPT README): characters of one text"),
}
