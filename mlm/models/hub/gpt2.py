"""The config.json of GPT-2, mapped to our config fields.

Its vocabulary has one special token, which separates texts; our other four are appended to its embedding table.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.special import CLS, SEP
from mlm.models.hub import settings
from mlm.models.hub.architecture import ARCHITECTURES

ARCHITECTURE = ARCHITECTURES["gpt2"]


def read_model(where: str, config_json: Mapping[str, Any]) -> tuple[config.Model, int, int]:
    """(config.model, size of the vocabulary, 0) of a config.json, as settings.read_model."""
    settings.require_settings(where, config_json, ARCHITECTURE.required_settings)
    names = config_json.get("architectures") or [ARCHITECTURE.model_class]
    errors.require(names[0] in ("GPT2LMHeadModel", "GPT2Model"), f"{where}: architectures", names, "GPT2LMHeadModel")
    fields = settings.read_fields(where, config_json, ARCHITECTURE.names)
    has_inner = config_json.get("n_inner") is not None
    mlp_dim = settings.get_integer(where, config_json, "n_inner", 1) if has_inner else 4 * fields["width"]
    max_positions = settings.get_integer(where, config_json, "n_positions", 1)
    model = config.Model(**ARCHITECTURE.model, **fields, mlp_dim=mlp_dim, max_positions=max_positions)
    return model, settings.get_integer(where, config_json, "vocab_size", 1), 0


def build_config_json(model: config.Model, order_V: np.ndarray) -> dict[str, Any]:
    """The config.json of a model of ours; raises ConfigError if the model is not a GPT-2."""
    settings.require_fields(model, ARCHITECTURE.model, "transformers' GPT-2 needs")
    settings.require_default_blocks(model, "gpt2")
    return {
        **settings.build_entries(model, "gpt2", ARCHITECTURE.model_class, ARCHITECTURE.names, order_V),
        "embd_pdrop": model.dropout,
        "n_inner": model.mlp_dim,
        "n_positions": model.max_positions,
        **ARCHITECTURE.required_settings,
    }


def extend_embeddings(table_NxD: np.ndarray, order_V: np.ndarray) -> np.ndarray:
    """The table with rows for the missing special tokens: [CLS] as [SEP], the others as the mean of all."""
    num_missing = len(order_V) - len(table_NxD)
    table = np.concatenate([table_NxD, np.tile(table_NxD.mean(0), (num_missing, 1))])
    if order_V[CLS] >= len(table_NxD):
        table[order_V[CLS]] = table[order_V[SEP]]
    return table
