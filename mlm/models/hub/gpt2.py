"""The config.json and the tensor names of GPT-2, mapped to our config fields and parameters.

Its matrices have shape (inputs, outputs) and one matrix holds query, key and value, as in our parameters. Its
vocabulary has one special token, which separates texts; our other four are appended to its embedding table.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.special import CLS, PAD, SEP
from mlm.models.hub import settings
from mlm.models.hub.bert import LEAVES, HubArchitecture, TensorMapping

LAYER_PARAMS = {
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.down",
    "ln_1": "attention_norm",
    "ln_2": "mlp_norm",
}
ARCHITECTURES = {
    "gpt2": HubArchitecture("transformer", "GPT2LMHeadModel", "pre", LAYER_PARAMS, {}, "", "lm_head", False, {})
}
BUFFERS = (".attn.bias", ".attn.masked_bias")
SIZE_FIELDS = {"num_layers": "n_layer", "width": "n_embd", "num_heads": "n_head"}
DROPOUT_FIELDS = {"dropout": "resid_pdrop", "attention_dropout": "attn_pdrop"}
REQUIRED_SETTINGS = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
MODEL_FIELDS: dict[str, Any] = {
    "norm_placement": "pre",
    "positions": "learned",
    "directionality": "causal",
    "embed_norm": False,
    "lm_head": "linear",
    "type_vocab_size": 0,
}  # of every GPT-2


def read_model(where: str, config_json: Mapping[str, Any]) -> tuple[config.Model, int, int]:
    """(config.model, size of the vocabulary, 0) of a config.json, as settings.read_model."""
    for name, expected in REQUIRED_SETTINGS.items():
        value = config_json.get(name, expected)
        errors.require(value == expected, f"{where}: {name}", value, f"{expected!r}")
    names = config_json.get("architectures") or [ARCHITECTURES["gpt2"].model_class]
    errors.require(names[0] in ("GPT2LMHeadModel", "GPT2Model"), f"{where}: architectures", names, "GPT2LMHeadModel")
    sizes: dict[str, Any] = {
        field: settings.get_integer(where, config_json, name, 1) for field, name in SIZE_FIELDS.items()
    }
    width = sizes["width"]
    errors.require(
        width % sizes["num_heads"] == 0, f"{where}: n_head", sizes["num_heads"], f"a divisor of n_embd = {width}"
    )
    mlp_dim = (
        4 * width if config_json.get("n_inner") is None else settings.get_integer(where, config_json, "n_inner", 1)
    )
    eps = settings.get_fraction(where, config_json, "layer_norm_epsilon", 1e-5)
    errors.require(eps > 0, f"{where}: layer_norm_epsilon", eps, "0 < value < 1")
    dropout: dict[str, Any] = {
        field: settings.get_fraction(where, config_json, name, 0.1) for field, name in DROPOUT_FIELDS.items()
    }
    model = config.Model(
        family="transformer",
        activation=settings.get_activation(where, config_json, "activation_function", "gelu_new"),
        tie_embeddings=settings.is_tied(where, config_json),
        norm_eps=eps,
        mlp_dim=mlp_dim,
        **MODEL_FIELDS,
        **sizes,
        max_positions=settings.get_integer(where, config_json, "n_positions", 1),
        init_std=settings.get_fraction(where, config_json, "initializer_range", 0.02),
        **dropout,
    )
    return model, settings.get_integer(where, config_json, "vocab_size", 1), 0


def build_config_json(model: config.Model, order_V: np.ndarray) -> dict[str, Any]:
    """The config.json of a model of ours; raises ConfigError if the model is not a GPT-2."""
    for field, expected in ({"family": "transformer"} | MODEL_FIELDS).items():
        value = getattr(model, field)
        errors.require(
            value == expected, f"config.model.{field}", value, f"{expected}, which transformers' GPT-2 needs"
        )
    settings.require_default_blocks(model, "gpt2")
    return {
        "architectures": [ARCHITECTURES["gpt2"].model_class],
        "model_type": "gpt2",
        **{name: getattr(model, field) for field, name in (SIZE_FIELDS | DROPOUT_FIELDS).items()},
        "embd_pdrop": model.dropout,
        "n_inner": model.mlp_dim,
        "n_positions": model.max_positions,
        "layer_norm_epsilon": model.norm_eps,
        "initializer_range": model.init_std or 0.02,
        "activation_function": settings.ACTIVATION_NAMES[model.activation],
        "tie_word_embeddings": model.tie_embeddings,
        **REQUIRED_SETTINGS,
        "dtype": "float32",
        **vocabulary_settings(order_V),
    }


def vocabulary_settings(order_V: np.ndarray) -> dict[str, Any]:
    """The entries of config.json that describe a vocabulary with all our special tokens."""
    return {
        "vocab_size": len(order_V),
        "pad_token_id": int(order_V[PAD]),
        "bos_token_id": int(order_V[CLS]),
        "eos_token_id": int(order_V[SEP]),
    }


def map_tensors(architecture: HubArchitecture, num_layers: int, *, is_tied: bool = True) -> Iterator[TensorMapping]:
    """All tensors of a model with num_layers layers; is_tied: the output layer's table is that of the embeddings."""
    yield TensorMapping(f"{architecture.prefix}.wte.weight", ("token", "embedding"))
    yield TensorMapping(f"{architecture.prefix}.wpe.weight", ("position", "embedding"))
    for layer in range(num_layers):
        for name, path in architecture.layer_params.items():
            yield from _map_leaves(f"{architecture.prefix}.h.{layer}.{name}", f"body.stack.layers.layer.{path}", layer)
    yield from _map_leaves(f"{architecture.prefix}.ln_f", "body.norm")
    if not is_tied:
        yield TensorMapping(f"{architecture.decoder}.weight", ("output", "embedding"), lm_head=True)


def _map_leaves(name, path, layer=None) -> Iterator[TensorMapping]:
    for tensor, leaf in LEAVES["norm" if path.endswith("norm") else "dense"].items():
        yield TensorMapping(f"{name}.{tensor}", (*path.split("."), leaf), layer)


def canonical_name(name: str, architecture: HubArchitecture, *, is_tied: bool = True) -> str:
    """The name that transformers saves today: the first released files lack the prefix."""
    return f"{architecture.prefix}.{name}" if re.match(r"(wte|wpe|h|ln_f)\.", name) else name


def extend_embeddings(table_NxD: np.ndarray, order_V: np.ndarray) -> np.ndarray:
    """The table with rows for the missing special tokens: [CLS] as [SEP], the others as the mean of all."""
    num_missing = len(order_V) - len(table_NxD)
    table = np.concatenate([table_NxD, np.tile(table_NxD.mean(0), (num_missing, 1))])
    if order_V[CLS] >= len(table_NxD):
        table[order_V[CLS]] = table[order_V[SEP]]
    return table
