"""The config.json of BERT and similar models: reads it as config.model, and builds it for our models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlm.base import config, errors, files
from mlm.base.special import CLS, PAD, SEP
from mlm.models.hub.bert import ARCHITECTURES, BERT_LM_HEAD, SIZE_FIELDS

CONFIG_FILE = "config.json"
OWN_MODEL_TYPE = "mlm"  # the model_type of a model that no class of transformers can read
MAX_INT = 2**31 - 1
DROPOUT_FIELDS = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
# config.model.activation by the name in a config.json; of two names for one activation the first is written.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
ACTIVATION_NAMES = {activation: name for name, activation in reversed(ACTIVATIONS.items())}
# Fields of config.model that choose a block; every class but ModernBERT's has their defaults.
BLOCK_FIELDS = (
    "norm",
    "first_norm",
    "bias",
    "layer_scale",
    "qk_norm",
    "attention_gate",
    "local_window",
    "embedding_dim",
)
REQUIRED_SETTINGS = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}  # our models have no other values


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ConfigError if the file is missing or holds anything else."""
    try:
        content = json.loads(files.read_regular_file(path))
    except OSError as error:
        raise errors.ConfigError(f"{path}: expected a file ({files.describe_error(error)})") from None
    except (ValueError, RecursionError) as error:
        raise errors.ConfigError(f"{path}: expected JSON ({errors.first_line(error)})") from None
    errors.require(isinstance(content, dict), str(path), content, "a JSON object")
    return content


def get_integer(where: str, config_json: Mapping, name: str, low: int, default: int | None = None) -> int:
    """An integer of config.json. Raises ConfigError if it is missing, no integer, or below `low`."""
    value = config_json.get(name, default)
    errors.require(type(value) is int, f"{where}: {name}", value, "an integer")
    errors.require_number(f"{where}: {name}", value, low, MAX_INT)
    return value


def get_fraction(where: str, config_json: Mapping, name: str, default: float) -> float:
    """A number of config.json in [0, 1). Raises ConfigError for any other value."""
    value = config_json.get(name, default)
    errors.require(type(value) in (int, float), f"{where}: {name}", value, "a number")
    errors.require_number(f"{where}: {name}", value, 0, 1, high_open=True)
    return float(value)


def get_activation(where: str, config_json: Mapping, name: str, default: str) -> str:
    """config.model.activation of a config.json. Raises ConfigError for one that our models lack."""
    value: Any = config_json.get(name, default)
    errors.require(isinstance(value, str), f"{where}: {name}", value, f"one of {', '.join(ACTIVATIONS)}")
    errors.require_one_of(f"{where}: {name}", value, list(ACTIVATIONS))
    return ACTIVATIONS[value]


def require_heads(where: str, width: int, num_heads: int) -> None:
    """Raises ConfigError unless the heads of attention divide the width."""
    errors.require(
        width % num_heads == 0, f"{where}: num_attention_heads", num_heads, f"a divisor of hidden_size = {width}"
    )


def is_tied(where: str, config_json: Mapping) -> bool:
    """Whether the output layer's table is that of the embeddings."""
    value: Any = config_json.get("tie_word_embeddings", True)
    errors.require(isinstance(value, bool), f"{where}: tie_word_embeddings", value, "true or false")
    return value


def read_model(where: str, config_json: Mapping[str, Any]) -> tuple[config.Model, int, int]:
    """The model that a config.json describes.

    Args:
        where: the name of the file in errors.
        config_json: its content.

    Returns:
        (config.model, size of the vocabulary, number of positions before that of the first token).

    Raises:
        ConfigError: our models cannot represent it.
    """
    architecture = ARCHITECTURES[config_json["model_type"]]
    for name, expected in REQUIRED_SETTINGS.items():
        value = config_json.get(name, expected)
        errors.require(value == expected, f"{where}: {name}", value, f"{expected!r}")
    sizes: dict[str, Any] = {field: get_integer(where, config_json, name, 1) for field, name in SIZE_FIELDS.items()}
    require_heads(where, sizes["width"], sizes["num_heads"])
    first = get_integer(where, config_json, "pad_token_id", 0, 1) + 1 if architecture.positions_after_pad else 0
    num_positions = get_integer(where, config_json, "max_position_embeddings", 1)
    expected = f"more than {first}, which is the first token's position (pad_token_id + 1)"
    errors.require(num_positions > first, f"{where}: max_position_embeddings", num_positions, expected)
    eps = get_fraction(where, config_json, "layer_norm_eps", 1e-12)
    errors.require(eps > 0, f"{where}: layer_norm_eps", eps, "0 < value < 1")
    type_vocab_size = get_integer(where, config_json, "type_vocab_size", 1, 2)
    activation = get_activation(where, config_json, "hidden_act", "gelu")
    dropout: dict[str, Any] = {
        field: get_fraction(where, config_json, name, 0.1) for field, name in DROPOUT_FIELDS.items()
    }
    if config_json["model_type"] == "electra":
        embedding_dim = get_integer(where, config_json, "embedding_size", 1, 128)
        sizes["embedding_dim"] = 0 if embedding_dim == sizes["width"] else embedding_dim
    model = config.Model(
        family="transformer",
        norm_placement=architecture.norm_placement,
        norm_eps=eps,
        positions="learned",
        directionality="bidirectional",
        max_positions=num_positions - first,
        type_vocab_size=type_vocab_size,
        activation=activation,
        lm_head_activation=activation if architecture.lm_head is BERT_LM_HEAD else "gelu",
        tie_embeddings=is_tied(where, config_json),
        init_std=get_fraction(where, config_json, "initializer_range", 0.02),
        **sizes,
        **dropout,
    )
    return model, get_integer(where, config_json, "vocab_size", 1), first


def require_default_blocks(model: config.Model, model_type: str) -> None:
    """Raises ConfigError for a block that the class of a model_type lacks."""
    for field in BLOCK_FIELDS:
        value, expected = getattr(model, field), getattr(config.Model(), field)
        if field == "embedding_dim" and (model_type == "electra" or value == model.width):
            continue
        errors.require(
            value == expected, f"config.model.{field}", value, f"{expected!r}, which transformers' {model_type} needs"
        )
    errors.require_one_of("config.model.activation", model.activation, list(ACTIVATION_NAMES))


def build_config_json(model: config.Model, order_V: np.ndarray, *, is_electra: bool = False) -> dict[str, Any]:
    """The config.json of a model of ours; one with factorised embeddings is an ELECTRA, with one token type a RoBERTa.

    Args:
        model: our config.
        order_V: the id that the folder's tokenizer gives to each entry of our vocabulary.
        is_electra: an ELECTRA in any case.

    Raises:
        ConfigError: no class of transformers can read the model.
    """
    for field, expected in (
        ("family", "transformer"),
        ("positions", "learned"),
        ("directionality", "bidirectional"),
        ("embed_norm", True),
        ("lm_head", "bert"),
    ):
        value = getattr(model, field)
        errors.require(value == expected, f"config.model.{field}", value, f"{expected}, which transformers needs")
    is_electra = is_electra or model.embedding_dim not in (0, model.width)
    errors.require_one_of(
        "config.model.norm_placement", model.norm_placement, ("post",) if is_electra else ("pre", "post")
    )
    if is_electra:
        name = "electra"
    elif model.norm_placement == "pre":
        name = "roberta-prelayernorm"
    else:
        name = "roberta" if model.type_vocab_size == 1 else "bert"
    require_default_blocks(model, name)
    architecture, pad = ARCHITECTURES[name], int(order_V[PAD])
    head = model.activation if architecture.lm_head is BERT_LM_HEAD else "gelu"
    has_head = model.lm_head_activation == head
    expected = f"{head}, which transformers' {name} needs"
    errors.require(has_head, "config.model.lm_head_activation", model.lm_head_activation, expected)
    return {
        "architectures": [architecture.model_class],
        "model_type": name,
        "vocab_size": len(order_V),
        **{name: getattr(model, field) for field, name in (SIZE_FIELDS | DROPOUT_FIELDS).items()},
        **({"embedding_size": model.embedding_dim or model.width} if is_electra else {}),
        "max_position_embeddings": model.max_positions + (pad + 1 if architecture.positions_after_pad else 0),
        "type_vocab_size": max(model.type_vocab_size, 1),
        "layer_norm_eps": model.norm_eps,
        "initializer_range": model.init_std or 0.02,
        "hidden_act": ACTIVATION_NAMES[model.activation],
        "tie_word_embeddings": model.tie_embeddings,
        **REQUIRED_SETTINGS,
        "dtype": "float32",
        "pad_token_id": pad,
        "bos_token_id": int(order_V[CLS]),
        "eos_token_id": int(order_V[SEP]),
    }


def build_own_config_json(
    config_fields: Mapping[str, Any], vocab_size: int, classes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The config.json of a model that transformers cannot read: config fields by dotted name, and class names."""
    labels = {"labels": list(classes)} if classes else {}
    return {"model_type": OWN_MODEL_TYPE, "vocab_size": vocab_size, "config": dict(config_fields), **labels}
