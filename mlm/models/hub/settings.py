"""What all config.json have in common: reads entries, and checks what a class of transformers needs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlm.base import config, errors
from mlm.base.special import CLS, PAD, SEP

CONFIG_FILE = "config.json"
OWN_MODEL_TYPE = "mlm"  # the model_type of a model that no class of transformers computes
# The ends of the names of those of its classes that have heads for labels; of the first ones labels have names.
NAMED_LABEL_HEADS = ("ForSequenceClassification", "ForTokenClassification")
LABEL_HEADS = (*NAMED_LABEL_HEADS, "ForMultipleChoice", "ForQuestionAnswering")
SEQ2SEQ_HEAD = "ForSeq2SeqLM"  # of a model that reads a source
# The files of its classes in torch, which nothing of ours imports; an encoder needs the first two.
TORCH_FILES = ("modeling_mlm.py", "encoders_mlm.py", "layers_mlm.py", "recurrence_mlm.py", "seq2seq_mlm.py")
MAX_INT = 2**31 - 1
# config.model.activation by the name in a config.json; of two names for one activation the first is written.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


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


def get_activation(
    where: str, config_json: Mapping, name: str, default: str, activations: Mapping[str, str] = ACTIVATIONS
) -> str:
    """config.model.activation of a config.json. Raises ConfigError for one that our models lack."""
    value: Any = config_json.get(name, default)
    errors.require_one_of(f"{where}: {name}", value, list(activations))
    return activations[value]


def name_activation(activation: str, activations: Mapping[str, str] = ACTIVATIONS) -> str:
    """The name of config.model.activation in a config.json. Raises ConfigError for one that has none."""
    errors.require_one_of("config.model.activation", activation, [*activations.values()])
    return next(name for name, ours in activations.items() if ours == activation)


class EntryNames(NamedTuple):
    """The names in a config.json of what all architectures have, and the defaults of transformers."""

    sizes: Mapping[str, str]  # by field of config.model, as dropout
    dropout: Mapping[str, str]
    eps: str  # "": it has none, the default is always that of transformers
    activation: str
    default_eps: float
    max_positions: str = "max_position_embeddings"
    default_max_positions: int | None = None
    default_activation: str = "gelu"
    default_dropout: float = 0.1
    activations: Mapping[str, str] = ACTIVATIONS


def read_fields(where: str, config_json: Mapping, names: EntryNames) -> dict[str, Any]:
    """The fields of config.model that a config.json of any architecture has; the heads divide the width."""
    fields: dict[str, Any] = {field: get_integer(where, config_json, name, 1) for field, name in names.sizes.items()}
    max_positions = get_integer(where, config_json, names.max_positions, 1, names.default_max_positions)
    width, num_heads = fields["width"], fields["num_heads"]
    expected = f"a divisor of {names.sizes['width']} = {width}"
    errors.require(width % num_heads == 0, f"{where}: {names.sizes['num_heads']}", num_heads, expected)
    for field, name in names.dropout.items():
        fields[field] = get_fraction(where, config_json, name, names.default_dropout)
    eps = get_fraction(where, config_json, names.eps, names.default_eps)
    errors.require(eps > 0, f"{where}: {names.eps}", eps, "0 < value < 1")
    is_tied: Any = config_json.get("tie_word_embeddings", True)
    errors.require(isinstance(is_tied, bool), f"{where}: tie_word_embeddings", is_tied, "true or false")
    return fields | {
        "max_positions": max_positions,
        "norm_eps": eps,
        "activation": get_activation(where, config_json, names.activation, names.default_activation, names.activations),
        "tie_embeddings": is_tied,
        "init_std": get_fraction(where, config_json, "initializer_range", 0.02),
    }


def build_vocabulary_entries(order_V) -> dict[str, Any]:
    """The entries of a config.json that describe a vocabulary with all our special tokens."""
    ids = {"pad_token_id": PAD, "bos_token_id": CLS, "eos_token_id": SEP}
    return {"vocab_size": len(order_V), **{name: int(order_V[token]) for name, token in ids.items()}}


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


def build_own_config_json(
    config_fields: Mapping[str, Any],
    order_V: np.ndarray,
    classes: tuple[str, ...],
    heads: Sequence[str],
    problem_type: str = "",
) -> dict[str, Any]:
    """The config.json of a model that no class of transformers computes: config fields by dotted name, class names.

    order_V: the id that the folder's tokenizer gives to each entry of our vocabulary; heads: the ends of the names of
    the classes in torch that read the model, "" for its states alone, its own last; problem_type: what labels are.
    """
    labels = {"labels": list(classes)} if classes else {}
    own = {"model_type": OWN_MODEL_TYPE, "vocab_size": len(order_V), "config": dict(config_fields), **labels}
    names = {f"AutoModel{head}": f"MLM{head or 'Model'}" for head in heads}
    if heads[-1] in NAMED_LABEL_HEADS:
        own["id2label"] = {str(number): label for number, label in enumerate(classes or ("value",))}
        own["label2id"] = {label: int(number) for number, label in own["id2label"].items()}
        own |= {"problem_type": problem_type} if problem_type else {}
    module = "modeling_mlm"
    if heads[-1] == SEQ2SEQ_HEAD:
        module = "seq2seq_mlm"
        own |= {"is_encoder_decoder": True, "decoder_start_token_id": int(order_V[CLS])}
    classes_by_name = {name: f"{module}.{own_class}" for name, own_class in names.items()}
    return own | {
        "architectures": [names[f"AutoModel{heads[-1]}"]],
        "auto_map": {"AutoConfig": "modeling_mlm.MLMConfig", **classes_by_name},
        "hidden_size": config_fields["model.width"],
        "num_hidden_layers": config_fields["model.num_layers"],
        "num_attention_heads": config_fields["model.num_heads"],
        "max_position_embeddings": config_fields["pack.seq_len"],
        "dtype": "float32",
        "pad_token_id": int(order_V[PAD]),
        **dict.fromkeys(("bos_token_id", "cls_token_id"), int(order_V[CLS])),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), int(order_V[SEP])),
    }
