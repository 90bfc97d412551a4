"""The config.json and the tensor names of GPT-2, mapped to our config fields and parameters.

Its matrices have shape (inputs, outputs) and one matrix holds query, key and value, as in our parameters. Its
vocabulary has one special token, which separates texts; our other four are appended to its embedding table.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.special import CLS, SEP
from mlm.models.hub import settings
from mlm.models.hub.architecture import HubArchitecture

LAYER_PARAMS = {
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.down",
    "ln_1": "attention_norm",
    "ln_2": "mlp_norm",
}
NAMES = settings.EntryNames(
    {"num_layers": "n_layer", "width": "n_embd", "num_heads": "n_head"},
    {"dropout": "resid_pdrop", "attention_dropout": "attn_pdrop"},
    *("layer_norm_epsilon", "activation_function", 1e-5, "gelu_new"),
)
ARCHITECTURES = {
    "gpt2": HubArchitecture(
        "transformer",
        "GPT2LMHeadModel",
        NAMES,
        "pre",
        {"wte": "token", "wpe": "position"},
        "h",
        LAYER_PARAMS,
        lm_head={},
        lm_head_bias="",
        decoder="lm_head",
        heads={},
        stack_params={"ln_f": "norm"},
        transposed=False,
        buffers=(".attn.bias", ".attn.masked_bias"),
    )
}
REQUIRED_SETTINGS = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
MODEL_FIELDS: dict[str, Any] = {
    "family": "transformer",
    "norm_placement": "pre",
    "positions": "learned",
    "directionality": "causal",
    "embed_norm": False,
    "lm_head": "linear",
    "type_vocab_size": 0,
}  # of every GPT-2


def read_model(where: str, config_json: Mapping[str, Any]) -> tuple[config.Model, int, int]:
    """(config.model, size of the vocabulary, 0) of a config.json, as settings.read_model."""
    settings.require_settings(where, config_json, REQUIRED_SETTINGS)
    names = config_json.get("architectures") or [ARCHITECTURES["gpt2"].model_class]
    errors.require(names[0] in ("GPT2LMHeadModel", "GPT2Model"), f"{where}: architectures", names, "GPT2LMHeadModel")
    fields = settings.read_fields(where, config_json, NAMES)
    has_inner = config_json.get("n_inner") is not None
    mlp_dim = settings.get_integer(where, config_json, "n_inner", 1) if has_inner else 4 * fields["width"]
    max_positions = settings.get_integer(where, config_json, "n_positions", 1)
    model = config.Model(**MODEL_FIELDS, **fields, mlp_dim=mlp_dim, max_positions=max_positions)
    return model, settings.get_integer(where, config_json, "vocab_size", 1), 0


def build_config_json(model: config.Model, order_V: np.ndarray) -> dict[str, Any]:
    """The config.json of a model of ours; raises ConfigError if the model is not a GPT-2."""
    settings.require_fields(model, MODEL_FIELDS, "transformers' GPT-2 needs")
    settings.require_default_blocks(model, "gpt2")
    return {
        **settings.build_entries(model, "gpt2", ARCHITECTURES["gpt2"].model_class, NAMES, order_V),
        "embd_pdrop": model.dropout,
        "n_inner": model.mlp_dim,
        "n_positions": model.max_positions,
        **REQUIRED_SETTINGS,
    }


def extend_embeddings(table_NxD: np.ndarray, order_V: np.ndarray) -> np.ndarray:
    """The table with rows for the missing special tokens: [CLS] as [SEP], the others as the mean of all."""
    num_missing = len(order_V) - len(table_NxD)
    table = np.concatenate([table_NxD, np.tile(table_NxD.mean(0), (num_missing, 1))])
    if order_V[CLS] >= len(table_NxD):
        table[order_V[CLS]] = table[order_V[SEP]]
    return table
