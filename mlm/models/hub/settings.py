"""What all config.json have in common: reads entries, and checks what a class of transformers needs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlm.base import config, errors, files
from mlm.base.special import CLS, PAD, SEP

CONFIG_FILE = "config.json"
OWN_MODEL_TYPE = "mlm"  # the model_type of a model that no class of transformers computes
LABEL_HEADS = ("ForSequenceClassification", "ForTokenClassification")  # of those classes, the ends of their names
TORCH_FILES = ("modeling_mlm.py", "encoders_mlm.py")  # its classes in torch, which nothing of ours imports
MAX_INT = 2**31 - 1
# config.model.activation by the name in a config.json; of two names for one activation the first is written.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
ACTIVATION_NAMES = {activation: name for name, activation in reversed(ACTIVATIONS.items())}
# Fields of config.model that choose a block; every class but ModernBERT's has their defaults.
BLOCK_FIELDS = (
    *("norm", "first_norm", "bias", "layer_scale", "qk_norm", "attention_gate", "local_window", "embedding_dim"),
)


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


def get_epsilon(where: str, config_json: Mapping, name: str, default: float) -> float:
    """`get_fraction` of a norm's epsilon, which is not 0."""
    value = get_fraction(where, config_json, name, default)
    errors.require(value > 0, f"{where}: {name}", value, "0 < value < 1")
    return value


def get_sizes(where: str, config_json: Mapping, names: Mapping[str, str]) -> dict[str, Any]:
    """The sizes of a model by field of config.model, of which the heads divide the width; names: in config.json."""
    sizes = {field: get_integer(where, config_json, name, 1) for field, name in names.items()}
    width, num_heads = sizes["width"], sizes["num_heads"]
    expected = f"a divisor of {names['width']} = {width}"
    errors.require(width % num_heads == 0, f"{where}: {names['num_heads']}", num_heads, expected)
    return sizes


def get_dropout(where: str, config_json: Mapping, names: Mapping[str, str], default: float) -> dict[str, Any]:
    """The rates of dropout by field of config.model; names: in config.json."""
    return {field: get_fraction(where, config_json, name, default) for field, name in names.items()}


def get_activation(
    where: str, config_json: Mapping, name: str, default: str, activations: Mapping[str, str] = ACTIVATIONS
) -> str:
    """config.model.activation of a config.json. Raises ConfigError for one that our models lack."""
    value: Any = config_json.get(name, default)
    errors.require(isinstance(value, str), f"{where}: {name}", value, f"one of {', '.join(activations)}")
    errors.require_one_of(f"{where}: {name}", value, list(activations))
    return activations[value]


def is_tied(where: str, config_json: Mapping) -> bool:
    """Whether the output layer's table is that of the embeddings."""
    value: Any = config_json.get("tie_word_embeddings", True)
    errors.require(isinstance(value, bool), f"{where}: tie_word_embeddings", value, "true or false")
    return value


def require_settings(where: str, config_json: Mapping, required: Mapping[str, Any]) -> None:
    """Raises ConfigError unless each of these entries of config.json is as required, or missing."""
    for name, expected in required.items():
        value = config_json.get(name, expected)
        errors.require(value == expected, f"{where}: {name}", value, f"{expected!r}")


def require_fields(model: config.Model, required: Mapping[str, Any], reason: str) -> None:
    """Raises ConfigError unless each of these fields of config.model is as required; reason: "X needs"."""
    for field, expected in required.items():
        value = getattr(model, field)
        is_width = (field, value) == ("embedding_dim", model.width)  # as 0: the embeddings are not projected
        errors.require(value == expected or is_width, f"config.model.{field}", value, f"{expected}, which {reason}")


def require_default_blocks(model: config.Model, model_type: str) -> None:
    """Raises ConfigError for a block that the class of a model_type lacks."""
    names = [field for field in BLOCK_FIELDS if (model_type, field) != ("electra", "embedding_dim")]
    default = config.Model()
    require_fields(model, {field: getattr(default, field) for field in names}, f"transformers' {model_type} needs")
    errors.require_one_of("config.model.activation", model.activation, list(ACTIVATION_NAMES))


def build_own_config_json(
    config_fields: Mapping[str, Any],
    order_V: np.ndarray,
    classes: tuple[str, ...] = (),
    heads: Sequence[str] = (),
    problem_type: str = "",
) -> dict[str, Any]:
    """The config.json of a model that no class of transformers computes: config fields by dotted name, class names.

    order_V: the id that the folder's tokenizer gives to each entry of our vocabulary; heads: the ends of the names of
    the classes of modeling_mlm.py that compute the model, "" for its states alone; problem_type: what labels are.
    """
    labels = {"labels": list(classes)} if classes else {}
    own = {"model_type": OWN_MODEL_TYPE, "vocab_size": len(order_V), "config": dict(config_fields), **labels}
    if not heads:
        return own
    names = {f"AutoModel{head}": f"MLM{head or 'Model'}" for head in heads}
    if heads[-1] in LABEL_HEADS:
        own["id2label"] = {str(number): label for number, label in enumerate(classes or ("value",))}
        own["label2id"] = {label: int(number) for number, label in own["id2label"].items()}
        own |= {"problem_type": problem_type} if problem_type else {}
    return own | {
        "architectures": [names[f"AutoModel{heads[-1]}"]],
        "auto_map": {
            name: f"modeling_mlm.{own_class}" for name, own_class in {"AutoConfig": "MLMConfig", **names}.items()
        },
        "hidden_size": config_fields["model.width"],
        "num_hidden_layers": config_fields["model.num_layers"],
        "num_attention_heads": config_fields["model.num_heads"],
        "max_position_embeddings": config_fields["pack.seq_len"],
        "dtype": "float32",
        "pad_token_id": int(order_V[PAD]),
        **dict.fromkeys(("bos_token_id", "cls_token_id"), int(order_V[CLS])),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), int(order_V[SEP])),
    }
