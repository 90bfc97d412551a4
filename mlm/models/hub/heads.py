"""Heads of labels: what class of theirs has one, what it tells, and its tensors as those of our objectives.

Letters in array names: C classes, or the one number of a regression.
"""
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mlm.base import config, errors, types
from mlm.models.hub.bert import KINDS, POOLER, Kind

ROW, WORD, TOKENS = "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"
PROBLEMS = {"classify": "single_label_classification", "regress": "regression"}
WORDS = {"classifier": ""}    # theirs -> ours, in the head of a label of a word


class Head(NamedTuple):
    """What a folder's model was fine-tuned to tell."""

    objective: str            # classify | regress | tag
    classes: tuple[str, ...]  # (): a number
    params: types.Params      # of the objective, numpy, float32


def read(where: str, said: Mapping[str, Any], at: str, there: Mapping[str, np.ndarray]) -> Head | None:
    """The head of labels that a config.json says there is, None where it says of none; there: tensors by their names.

    where, at: what that file and the tensors' are called in errors. Raises ConfigError for one that ours cannot be,
    and for tensors that are not there or not of its shape.
    """
    name = named(said)
    if not name.endswith((ROW, WORD)):
        return None
    kind, width = KINDS[said["model_type"]], said["hidden_size"]
    classes = _classes(where, said)
    objective = "tag"
    if name.endswith(ROW):
        problem = said.get("problem_type") or PROBLEMS["regress" if len(classes) == 1 else "classify"]
        errors.require_one_of(f"{where}: problem_type", problem, list(PROBLEMS.values()))
        objective = next(ours for ours, its in PROBLEMS.items() if its == problem)
        errors.require(objective != "regress" or len(classes) == 1, f"{where}: id2label", len(classes),
                      f"one entry, since problem_type is {problem}")
    params: types.Params = {}
    for its, ours in _names(kind, objective).items():
        outputs = width if ours == "pool" else len(classes)
        layer = {}
        for leaf, mine, shape in (("weight", "kernel", (outputs, width)), ("bias", "bias", (outputs,))):
            errors.require(f"{its}.{leaf}" in there, f"{at}: tensors", len(there), f"{its}.{leaf} among them")
            x = there[f"{its}.{leaf}"]
            errors.require(x.shape == shape, f"{at}: {its}.{leaf}, its shape", x.shape, f"{shape}")
            layer[mine] = np.ascontiguousarray(x.T)
        params |= {ours: layer} if ours else layer
    return Head(objective, () if objective == "regress" else classes, params)


def named(said: Mapping[str, Any]) -> str:
    """The class of theirs that a config.json names, "" where it names none."""
    found = said.get("architectures")
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else ""


def pooler(there: Mapping[str, np.ndarray]) -> types.Params | None:
    """BERT's pooler, which its pretraining made and its fine-tuning goes on with; None where a folder has none.

    RoBERTa's files may hold one, which nothing trained: transformers passes it by.
    """
    names = [f"{POOLER}.weight", f"{POOLER}.bias"]
    if not all(name in there for name in names):
        return None
    weight, bias = (there[name] for name in names)
    return {"kernel": np.ascontiguousarray(weight.T), "bias": bias}


def of(cfg: config.Config, classes: tuple[str, ...], said: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of the head of a fine-tuned model, beside what it says of its encoder.

    Raises ConfigError, saying why, for a head that no class of theirs has.
    """
    end = "for a class of transformers to read it"
    errors.require(cfg.objective in (*PROBLEMS, "tag"), "config.objective", cfg.objective,
                  f"classify, regress or tag, {end}")
    word = cfg.objective == "tag"
    for field, want in (("layer_features", "last"), ("head", "linear") if word else ("pooling", "first")):
        value = getattr(cfg.finetune, field)
        errors.require(value == want, f"config.finetune.{field}", value, f"{want}, {end}")
    name = KINDS[said["model_type"]].architecture.removesuffix(TOKENS) + (WORD if word else ROW)
    called = dict(enumerate(classes or ("value",)))
    problem = {} if word else {"problem_type": PROBLEMS[cfg.objective]}
    return {"architectures": [name], "id2label": {str(number): label for number, label in called.items()},
            "label2id": {label: number for number, label in called.items()}, **problem}


def tensors_of(objective: str, params: types.Params, said: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Their tensors of an objective's parameters; the inverse of `read`."""
    found = {}
    for its, ours in _names(KINDS[said["model_type"]], objective).items():
        layer = params[ours] if ours else params
        found |= {f"{its}.weight": np.asarray(layer["kernel"]).T, f"{its}.bias": np.asarray(layer["bias"])}
    return found


def _names(kind: Kind, objective: str) -> Mapping[str, str]:
    return WORDS if objective == "tag" else kind.row


def _classes(where, said) -> tuple[str, ...]:
    """The names in config.json's id2label; transformers takes two where it has none."""
    found = said.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    right = isinstance(found, dict) and all(isinstance(label, str) for label in found.values())
    errors.require(right, f"{where}: id2label", found, "names by number")
    errors.require({*found} == {str(number) for number in range(len(found))}, f"{where}: id2label", list(found),
                  "each number from 0 on")
    return tuple(found[str(number)] for number in range(len(found)))
