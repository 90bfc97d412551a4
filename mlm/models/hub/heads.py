"""Heads for labels: the classes of transformers that have one, and its tensors mapped to our objectives' parameters.

Letters in array names: C classes, or the one output of a regression.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mlm.base import config, errors, types
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES, LabelKind
from mlm.models.hub import settings
from mlm.models.hub.architecture import ARCHITECTURES, LEAVES

MASKED_LM_CLASS = "ForMaskedLM"
# The end of the class's name by objective.
CLASSES = {name: row.hub_class for name, row in LABELLED_OBJECTIVES.items() if row.hub_class}
PROBLEM_TYPES = {name: row.problem_type for name, row in LABELLED_OBJECTIVES.items() if row.problem_type}
WORD_OBJECTIVES = ("tagging", "extractive_qa")  # whose heads read each word's state
POOLERS = ("bert.pooler.dense", "albert.pooler")
NUM_ENDS = 2  # logits of a token for answers: of the start and of the end
# ELECTRA's discriminator: tensor -> the parameter of replaced_token_detection.
DISCRIMINATOR_HEAD = {
    "discriminator_predictions.dense": "hidden",
    "discriminator_predictions.dense_prediction": "label",
}
DISCRIMINATOR_FIELDS = {"architectures": ["ElectraForPreTraining"]}
OPTIONAL_BIASES = {"pool": "classifier_bias", "pool_norm": "norm_bias"}  # of a ModernBERT, by our parameter
# What ElectraForMultipleChoice must have to be our pooler.
ELECTRA_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
CHOICES = ("0", "1")  # a file does not say how many endings there are to choose from
POOLINGS = {"first": "cls", "mean": "mean"}  # classifier_pooling of a ModernBERT, by config.finetune.pooling


class LabelHead(NamedTuple):
    """The head of a fine-tuned model."""

    objective: str  # one of CLASSES
    classes: tuple[str, ...]  # empty for a regression and for extractive_qa
    params: types.Params  # of the objective, numpy, float32
    pooler: str = "bert"  # config.finetune.pooler
    pooling: str = ""  # config.finetune.pooling; "" of heads for words
    choices: tuple[str, ...] = ()  # names of the endings to choose from


def read_label_head(
    where: str, config_json: Mapping[str, Any], tensors_path: str, tensors: Mapping[str, np.ndarray]
) -> LabelHead | None:
    """The head for labels of a folder, by its config.json and its tensors, or None if it has none.

    where, tensors_path: the names of both in errors. Raises ConfigError if our objectives cannot represent the head, or
    a tensor is missing or of another shape.
    """
    if not has_label_head(config_json):
        return None
    model_class = get_model_class(config_json)
    architecture = ARCHITECTURES[config_json["model_type"]]
    width = config_json[architecture.names.sizes["width"]]
    classes = _read_classes(where, config_json)
    objective = next(name for name, end in CLASSES.items() if model_class.endswith(end))
    ends = " or ".join(dict.fromkeys(CLASSES[name] for name in architecture.heads))
    errors.require(
        objective in architecture.heads, f"{where}: architectures", model_class, f"a class that ends in {ends}"
    )
    if objective in PROBLEM_TYPES:
        default = PROBLEM_TYPES["regression" if len(classes) == 1 else "classification"]
        problem_type = config_json.get("problem_type") or default
        errors.require_one_of(f"{where}: problem_type", problem_type, list(PROBLEM_TYPES.values()))
        objective = next(name for name, value in PROBLEM_TYPES.items() if value == problem_type)
        is_single = LABELLED_OBJECTIVES[objective].label is not LabelKind.NUMBER or len(classes) == 1
        expected = f"one entry, since problem_type is {problem_type}"
        errors.require(is_single, f"{where}: id2label", len(classes), expected)
    kind = LABELLED_OBJECTIVES[objective].label
    if architecture.pooler == "electra" and kind is LabelKind.CHOICE:
        settings.require_settings(where, config_json, ELECTRA_SUMMARY)
    num_labels = {LabelKind.ANSWERS: NUM_ENDS, LabelKind.CHOICE: 1}.get(kind, len(classes))
    is_optional = architecture.pooler == "modernbert"  # whose pooler may lack some biases
    absent_biases = [path for path, name in OPTIONAL_BIASES.items() if is_optional and not config_json.get(name, False)]
    params: types.Params = {}
    for module, path in architecture.heads[objective].items():
        outputs = width if path.startswith("pool") else num_labels
        layer = {}
        for tensor, leaf in _get_leaves(path).items():
            name, shape = f"{module}.{tensor}", (outputs, width) if leaf == "kernel" else (outputs,)
            if leaf == "bias" and path in absent_biases:
                continue
            errors.require(name in tensors, f"{tensors_path}: tensors", len(tensors), f"{name} among them")
            x = tensors[name]
            errors.require(x.shape == shape, f"{tensors_path}: {name}, its shape", x.shape, f"{shape}")
            layer[leaf] = np.ascontiguousarray(x.T)
        params |= {path: layer} if path else layer
    choices = CHOICES if kind is LabelKind.CHOICE else ()
    classes = classes if kind is LabelKind.CLASS else choices
    pooling = ""
    if objective not in WORD_OBJECTIVES:
        known = {name: pooling for pooling, name in POOLINGS.items()}
        named: Any = config_json.get("classifier_pooling", "cls")
        errors.require(named in known, f"{where}: classifier_pooling", named, " or ".join(known))
        pooling = known[named]
    return LabelHead(objective, classes, params, architecture.pooler, pooling, choices)


def _get_leaves(path: str) -> Mapping[str, str]:
    return LEAVES["norm" if path.endswith("norm") else "dense"]


def has_label_head(config_json: Mapping[str, Any]) -> bool:
    """Whether the class that a config.json names has a head for labels, in place of the output layer."""
    return get_model_class(config_json).endswith(tuple(CLASSES.values()))


def get_model_class(config_json: Mapping[str, Any]) -> str:
    """The class of transformers that a config.json names, or ""."""
    names = config_json.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def read_pooler(tensors: Mapping[str, np.ndarray]) -> types.Params | None:
    """BERT's or ALBERT's pooler, which fine-tuning trains on, or None; the others' are ignored as in transformers."""
    found = (_read_dense_layers(tensors, {name: "pool"}) for name in POOLERS)
    return next((layers["pool"] for layers in found if layers), None)


def read_discriminator_head(tensors: Mapping[str, np.ndarray]) -> types.Params:
    """The head of ELECTRA's discriminator as parameters of replaced_token_detection; {} if there is none."""
    return _read_dense_layers(tensors, DISCRIMINATOR_HEAD)


def _read_dense_layers(tensors, modules) -> types.Params:
    """Dense layers by our parameter; {} where a tensor is missing."""
    leaves = LEAVES["dense"].items()
    if not all(f"{module}.{tensor}" in tensors for module in modules for tensor, _ in leaves):
        return {}
    return {
        path: {leaf: np.ascontiguousarray(tensors[f"{module}.{tensor}"].T) for tensor, leaf in leaves}
        for module, path in modules.items()
    }


def build_config_json(cfg: config.Config, classes: tuple[str, ...], config_json: Mapping[str, Any]) -> dict[str, Any]:
    """The head's entries of config.json beside its encoder's. Raises ConfigError if no class of transformers has it."""
    expected = f"{', '.join(CLASSES)}, which transformers has classes for"
    errors.require_field(cfg, "objective", cfg.objective in CLASSES, expected)
    architecture, model_type = ARCHITECTURES[config_json["model_type"]], config_json["model_type"]
    expected = {"layer_features": ("last",)}
    labelled = LABELLED_OBJECTIVES[cfg.objective]
    if labelled.tags_words:
        expected |= {"head": ("linear",)}
    if cfg.objective not in WORD_OBJECTIVES:
        expected |= {"pooling": tuple(POOLINGS) if architecture.pooler == "modernbert" else ("first",)}
    if cfg.objective not in WORD_OBJECTIVES or "modernbert" in (cfg.finetune.pooler, architecture.pooler):
        expected |= {"pooler": (architecture.pooler,)}
    for field, values in expected.items():
        needed = f"{' or '.join(values)}, which transformers' {model_type} needs"
        errors.require_field(cfg, f"finetune.{field}", getattr(cfg.finetune, field) in values, needed)
    model_class = architecture.model_class.removesuffix(MASKED_LM_CLASS) + CLASSES[cfg.objective]
    head_fields: dict[str, Any] = {"architectures": [model_class]}
    if "pooling" in expected and architecture.pooler == "modernbert":
        head_fields["classifier_pooling"] = POOLINGS[cfg.finetune.pooling]
    if cfg.objective in PROBLEM_TYPES:
        head_fields["problem_type"] = PROBLEM_TYPES[cfg.objective]
    if labelled.label in (LabelKind.ANSWERS, LabelKind.CHOICE):
        return head_fields
    labels = dict(enumerate(classes or ("value",)))
    return head_fields | {
        "id2label": {str(number): label for number, label in labels.items()},
        "label2id": {label: number for number, label in labels.items()},
    }


def export_tensors(objective: str, params: types.Params, config_json: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of an objective's parameters; the inverse of `read_label_head` and `read_discriminator_head`."""
    heads = {"replaced_token_detection": DISCRIMINATOR_HEAD, **ARCHITECTURES[config_json["model_type"]].heads}
    tensors = {}
    for module, path in heads[objective].items():
        layer = params[path] if path else params
        leaves = {tensor: leaf for tensor, leaf in _get_leaves(path).items() if leaf in layer}
        tensors |= {f"{module}.{tensor}": np.asarray(layer[leaf]).T for tensor, leaf in leaves.items()}
    return tensors


def _read_classes(where, config_json) -> tuple[str, ...]:
    """The names in id2label; two by default, as in transformers."""
    labels = config_json.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    is_valid = isinstance(labels, dict) and all(isinstance(label, str) for label in labels.values())
    errors.require(is_valid, f"{where}: id2label", labels, "names by number")
    is_numbered = {*labels} == {str(number) for number in range(len(labels))}
    errors.require(is_numbered, f"{where}: id2label", list(labels), "each number from 0 on")
    names = [*labels.values()]
    errors.require(len({*names}) == len(names), f"{where}: id2label", names, "names that differ")
    return tuple(labels[str(number)] for number in range(len(labels)))
