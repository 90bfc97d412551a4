"""Heads for labels: the classes of transformers that have one, and its tensors mapped to our objectives' parameters.

Letters in array names: C classes, or the one output of a regression.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mlm.base import config, errors, types
from mlm.models.hub.bert import ARCHITECTURES, POOLER, HubArchitecture

SEQUENCE_CLASS, TOKEN_CLASS, MASKED_LM_CLASS = "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"
PROBLEM_TYPES = {"classification": "single_label_classification", "regression": "regression"}
TOKEN_LABEL_HEAD = {"classifier": ""}  # tensor -> the objective's parameter, in the head for labels of words


class LabelHead(NamedTuple):
    """The head of a fine-tuned model."""

    objective: str  # classification | regression | tagging
    classes: tuple[str, ...]  # empty for a regression
    params: types.Params  # of the objective, numpy, float32


def read_label_head(
    where: str, config_json: Mapping[str, Any], tensors_path: str, tensors: Mapping[str, np.ndarray]
) -> LabelHead | None:
    """The head for labels of a folder, or None if it has none.

    Args:
        where: the name of config.json in errors.
        config_json: its content.
        tensors_path: the name of the tensor file in errors.
        tensors: its tensors by name.

    Raises:
        ConfigError: our objectives cannot represent the head, or a tensor is missing or of another shape.
    """
    if not has_label_head(config_json):
        return None
    model_class = get_model_class(config_json)
    architecture, width = ARCHITECTURES[config_json["model_type"]], config_json["hidden_size"]
    classes = _read_classes(where, config_json)
    objective = "tagging"
    if model_class.endswith(SEQUENCE_CLASS):
        default = PROBLEM_TYPES["regression" if len(classes) == 1 else "classification"]
        problem_type = config_json.get("problem_type") or default
        errors.require_one_of(f"{where}: problem_type", problem_type, list(PROBLEM_TYPES.values()))
        objective = next(name for name, value in PROBLEM_TYPES.items() if value == problem_type)
        errors.require(
            objective != "regression" or len(classes) == 1,
            f"{where}: id2label",
            len(classes),
            f"one entry, since problem_type is {problem_type}",
        )
    params: types.Params = {}
    for module, path in _map_names(architecture, objective).items():
        outputs = width if path == "pool" else len(classes)
        layer = {}
        for tensor, leaf, shape in (("weight", "kernel", (outputs, width)), ("bias", "bias", (outputs,))):
            name = f"{module}.{tensor}"
            errors.require(name in tensors, f"{tensors_path}: tensors", len(tensors), f"{name} among them")
            x = tensors[name]
            errors.require(x.shape == shape, f"{tensors_path}: {name}, its shape", x.shape, f"{shape}")
            layer[leaf] = np.ascontiguousarray(x.T)
        params |= {path: layer} if path else layer
    return LabelHead(objective, () if objective == "regression" else classes, params)


def has_label_head(config_json: Mapping[str, Any]) -> bool:
    """Whether the class that a config.json names has a head for labels, in place of the output layer."""
    return get_model_class(config_json).endswith((SEQUENCE_CLASS, TOKEN_CLASS))


def get_model_class(config_json: Mapping[str, Any]) -> str:
    """The class of transformers that a config.json names, or ""."""
    names = config_json.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def read_pooler(tensors: Mapping[str, np.ndarray]) -> types.Params | None:
    """BERT's pooler, which fine-tuning continues to train; None if there is none.

    An untrained pooler in RoBERTa's files is ignored, as transformers does.
    """
    names = [f"{POOLER}.weight", f"{POOLER}.bias"]
    if not all(name in tensors for name in names):
        return None
    weight, bias = (tensors[name] for name in names)
    return {"kernel": np.ascontiguousarray(weight.T), "bias": bias}


def build_config_json(cfg: config.Config, classes: tuple[str, ...], config_json: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of config.json that describe the head of a fine-tuned model.

    Args:
        cfg: of the fine-tuned run.
        classes: names of its classes.
        config_json: the entries that describe the encoder.

    Raises:
        ConfigError: no class of transformers has such a head.
    """
    errors.require(
        cfg.objective in (*PROBLEM_TYPES, "tagging"),
        "config.objective",
        cfg.objective,
        "classification, regression or tagging, which transformers has classes for",
    )
    is_tagging = cfg.objective == "tagging"
    for field, expected in (("layer_features", "last"), ("head", "linear") if is_tagging else ("pooling", "first")):
        value = getattr(cfg.finetune, field)
        errors.require(value == expected, f"config.finetune.{field}", value, f"{expected}, which transformers needs")
    prefix = ARCHITECTURES[config_json["model_type"]].model_class.removesuffix(MASKED_LM_CLASS)
    labels = dict(enumerate(classes or ("value",)))
    problem_type = {} if is_tagging else {"problem_type": PROBLEM_TYPES[cfg.objective]}
    return {
        "architectures": [prefix + (TOKEN_CLASS if is_tagging else SEQUENCE_CLASS)],
        "id2label": {str(number): label for number, label in labels.items()},
        "label2id": {label: number for number, label in labels.items()},
        **problem_type,
    }


def export_tensors(objective: str, params: types.Params, config_json: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of an objective's parameters; the inverse of `read_label_head`."""
    tensors = {}
    for module, path in _map_names(ARCHITECTURES[config_json["model_type"]], objective).items():
        layer = params[path] if path else params
        tensors |= {f"{module}.weight": np.asarray(layer["kernel"]).T, f"{module}.bias": np.asarray(layer["bias"])}
    return tensors


def _map_names(architecture: HubArchitecture, objective: str) -> Mapping[str, str]:
    return TOKEN_LABEL_HEAD if objective == "tagging" else architecture.label_head


def _read_classes(where, config_json) -> tuple[str, ...]:
    """The names in id2label; two by default, as in transformers."""
    labels = config_json.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    is_valid = isinstance(labels, dict) and all(isinstance(label, str) for label in labels.values())
    errors.require(is_valid, f"{where}: id2label", labels, "names by number")
    errors.require(
        {*labels} == {str(number) for number in range(len(labels))},
        f"{where}: id2label",
        list(labels),
        "each number from 0 on",
    )
    return tuple(labels[str(number)] for number in range(len(labels)))
