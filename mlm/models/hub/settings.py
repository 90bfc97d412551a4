"""config.json of a model of theirs, checked, as fields of config.model; and one for a model of ours."""
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlm.base import config, errors, files
from mlm.base.special import CLS, PAD, SEP
from mlm.models.hub.bert import KINDS, SIZES

NAME = "config.json"
OURS = "mlm"              # the model_type of what no class of theirs can be
MOST = 2**31 - 1
RATES = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
ASKED = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False,
         "add_cross_attention": False, "tie_word_embeddings": True}  # all that ours can be


def parsed(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ConfigError for a file that is not there or holds anything else."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise errors.ConfigError(f"{path}: expected a file ({files.brief(error)})") from None
    except (ValueError, RecursionError) as error:
        raise errors.ConfigError(f"{path}: expected JSON ({errors.first_line(error)})") from None
    errors.require(isinstance(found, dict), str(path), found, "a JSON object")
    return found


def whole(where: str, found: Mapping, name: str, low: int, default: int | None = None) -> int:
    """A number of config.json. Raises ConfigError for one that is absent, not whole, or below `low`."""
    value = found.get(name, default)
    errors.require(type(value) is int, f"{where}: {name}", value, "a whole number")
    errors.require_number(f"{where}: {name}", value, low, MOST)
    return value


def fraction(where: str, found: Mapping, name: str, default: float) -> float:
    value = found.get(name, default)
    errors.require(type(value) in (int, float), f"{where}: {name}", value, "a number")
    errors.require_number(f"{where}: {name}", value, 0, 1, high_open=True)
    return float(value)


def read(where: str, found: Mapping[str, Any]) -> tuple[config.Model, int, int]:
    """(config.model, entries of the vocabulary, rows of the position table before the first token's) of a config.json.

    where: what it is called in errors. Raises ConfigError for what ours cannot be.
    """
    kind_name = found.get("model_type")
    errors.require(isinstance(kind_name, str), f"{where}: model_type", kind_name, f"one of {', '.join(KINDS)}")
    errors.require_one_of(f"{where}: model_type", kind_name, list(KINDS))
    kind = KINDS[kind_name]
    for name, want in ASKED.items():
        errors.require(found.get(name, want) == want, f"{where}: {name}", found.get(name), f"{want!r}")
    sizes = {field: whole(where, found, name, 1) for field, name in SIZES.items()}
    errors.require(sizes["width"] % sizes["num_heads"] == 0, f"{where}: num_attention_heads", sizes["num_heads"],
                  f"a divisor of hidden_size = {sizes['width']}")
    first = whole(where, found, "pad_token_id", 0, 1) + 1 if kind.after_pad else 0
    rows = whole(where, found, "max_position_embeddings", 1)
    errors.require(rows > first, f"{where}: max_position_embeddings", rows,
                  f"more than {first}, which is the first token's position (pad_token_id + 1)")
    eps = fraction(where, found, "layer_norm_eps", 1e-12)
    errors.require(eps > 0, f"{where}: layer_norm_eps", eps, "0 < value < 1")
    types = whole(where, found, "type_vocab_size", 1, 2)
    errors.require_number(f"{where}: type_vocab_size", types, 1, 2)
    model = config.Model(family="transformer", norm_placement=kind.norm, norm_eps=eps, positions="learned",
                         context="both", max_positions=rows - first, type_vocab_size=types, **sizes,
                         **{field: fraction(where, found, name, 0.1) for field, name in RATES.items()})
    return model, whole(where, found, "vocab_size", 1), first


def of(model: config.Model, order_V: np.ndarray) -> dict[str, Any]:
    """config.json of a model of ours. order_V: the number there of each entry of our vocabulary.

    A model of one segment type is a RoBERTa there. Raises ConfigError, saying why, for one that no class of theirs is.
    """
    for field, want in (("family", "transformer"), ("positions", "learned"), ("context", "both"), ("embed_norm", True),
                        ("activation", "gelu"), ("lm_head", "bert")):
        value = getattr(model, field)
        errors.require(value == want, f"config.model.{field}", value, f"{want}, for a class of transformers to read it")
    name = ("roberta-prelayernorm" if model.norm_placement == "pre" else "roberta" if model.type_vocab_size == 1 else "bert")
    kind, pad = KINDS[name], int(order_V[PAD])
    return {"architectures": [kind.architecture], "model_type": name, "vocab_size": len(order_V),
            **{theirs: getattr(model, field) for field, theirs in (SIZES | RATES).items()},
            "max_position_embeddings": model.max_positions + (pad + 1 if kind.after_pad else 0),
            "type_vocab_size": max(model.type_vocab_size, 1), "layer_norm_eps": model.norm_eps,
            "initializer_range": model.init_std or 0.02, **ASKED, "dtype": "float32",
            "pad_token_id": pad, "bos_token_id": int(order_V[CLS]), "eos_token_id": int(order_V[SEP])}


def own(kept: Mapping[str, Any], vocab_size: int, classes: tuple[str, ...] = ()) -> dict[str, Any]:
    """config.json of what no class of theirs can be: fields by dotted name, and the names of its labels."""
    labels = {"labels": list(classes)} if classes else {}
    return {"model_type": OURS, "vocab_size": vocab_size, "config": dict(kept), **labels}
