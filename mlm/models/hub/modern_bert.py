"""The config.json of ModernBERT (Warner et al. 2024), mapped to our config fields. The first attention has no norm."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.special import CLS, SEP
from mlm.models import positions
from mlm.models.hub import settings
from mlm.models.hub.architecture import ARCHITECTURES

ARCHITECTURE = ARCHITECTURES["modernbert"]
# config.model.bias by (norm_bias, classifier_bias, attention_bias, mlp_bias, decoder_bias).
BIAS_FIELDS = ("norm_bias", "classifier_bias", "attention_bias", "mlp_bias", "decoder_bias")
BIASES = {
    (False, False, False, False, True): "output",
    (True, True, True, True, True): "all",
    (True, True, False, False, True): "norms",
    (False, False, False, False, False): "none",
}
GLOBAL, LOCAL = "full_attention", "sliding_attention"  # of layer_types and rope_parameters
# (The name in rope_parameters, that of older files, the default of transformers) by our field.
ROPE_FIELDS = {
    "rope_theta": (GLOBAL, "global_rope_theta", 160_000.0),
    "local_rope_theta": (LOCAL, "local_rope_theta", 10_000.0),
}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 0}
DEFAULT_GLOBAL_EVERY = 3


def read_model(where: str, config_json: Mapping[str, Any]) -> tuple[config.Model, int, int]:
    """(config.model, size of the vocabulary, 0) of a config.json, as settings.read_model."""
    fields = settings.read_fields(where, config_json, ARCHITECTURE.names)
    model = config.Model(
        **ARCHITECTURE.model,
        **fields,
        **_read_attention(where, config_json, fields["num_layers"]),
        bias=_read_bias(where, config_json),
        lm_head_activation=settings.get_activation(where, config_json, "classifier_activation", "gelu"),
        max_positions=settings.get_integer(where, config_json, "max_position_embeddings", 1, 8192),
        depth_scaled_init=True,
    )
    return model, settings.get_integer(where, config_json, "vocab_size", 1), 0


def _read_bias(where, config_json) -> str:
    """config.model.bias of a config.json."""
    values = tuple(config_json.get(name, name == "decoder_bias") for name in BIAS_FIELDS)
    expected = " or ".join(str(list(map(int, biases))) for biases in BIASES)
    errors.require(values in BIASES, f"{where}: {', '.join(BIAS_FIELDS)}", list(values), expected)
    return BIASES[values]


def _read_attention(where, config_json, num_layers) -> dict[str, Any]:
    """The fields of config.model on local attention and rotary embeddings."""
    attention: dict[str, Any] = {field: _read_theta(where, config_json, *names) for field, names in ROPE_FIELDS.items()}
    every = settings.get_integer(where, config_json, "global_attn_every_n_layers", 1, DEFAULT_GLOBAL_EVERY)
    layer_types: Any = config_json.get("layer_types") or _make_layer_types(every, num_layers)
    is_valid = isinstance(layer_types, list) and len(layer_types) == num_layers and {*layer_types} <= {GLOBAL, LOCAL}
    expected = f"{GLOBAL} or {LOCAL} for each of {num_layers} layers"
    errors.require(is_valid, f"{where}: layer_types", layer_types, expected)
    if layer_types == [GLOBAL] * num_layers:
        return {"rope_theta": attention["rope_theta"], "local_window": 0}
    window = settings.get_integer(where, config_json, "local_attention", 2, 128)
    attention["local_window"] = window // 2 * 2  # half on each side of a token
    for count in (every, 0, *range(2, num_layers + 1)):
        if layer_types == _make_layer_types(count, num_layers):
            return attention | {"global_every": count}
    return attention | {"global_layers": tuple(i + 1 for i, kind in enumerate(layer_types) if kind == GLOBAL)}


def _make_layer_types(every: int, num_layers: int) -> list[str]:
    """The value of layer_types; every: config.model.global_every."""
    return [GLOBAL if every and layer % every == 0 else LOCAL for layer in range(num_layers)]


def _read_theta(where, config_json, name, older_name, default) -> float:
    """The base of the rotary angles; name: global or local layers in rope_parameters."""
    rope: Any = config_json.get("rope_parameters") or {}
    errors.require(isinstance(rope, dict), f"{where}: rope_parameters", rope, f"{GLOBAL} and {LOCAL}")
    entry = rope.get(name) or {}
    is_default = isinstance(entry, dict) and DEFAULT_ROPE | entry | {"rope_theta": 0} == DEFAULT_ROPE
    errors.require(is_default, f"{where}: rope_parameters", rope, "rope_type default, and rope_theta alone beside it")
    scaling = config_json.get("rope_scaling")
    errors.require(not scaling, f"{where}: rope_scaling", scaling, "none")
    theta = entry.get("rope_theta", config_json.get(older_name, default))
    errors.require(type(theta) in (int, float), f"{where}: {older_name}", theta, "a number")
    errors.require_number(f"{where}: {older_name}", theta, 1, 1e12)
    return float(theta)


def build_config_json(model: config.Model, order_V: np.ndarray) -> dict[str, Any]:
    """The config.json of a model of ours; raises ConfigError if the model is not a ModernBERT."""
    settings.require_fields(model, ARCHITECTURE.model, "transformers' ModernBERT needs")
    settings.require_default_blocks(model, "ModernBERT", ARCHITECTURE.own_blocks)
    local_theta = model.local_rope_theta or model.rope_theta
    biases = next(biases for biases, bias in BIASES.items() if bias == model.bias)
    global_every = 0 if model.global_layers else model.global_every if model.local_window else 1
    return {
        **settings.build_entries(model, "modernbert", ARCHITECTURE.model_class, ARCHITECTURE.names, order_V),
        "mlp_dropout": model.dropout,
        "max_position_embeddings": model.max_positions,
        "classifier_activation": settings.name_activation(model.lm_head_activation),
        **dict(zip(BIAS_FIELDS, biases, strict=True)),
        "layer_types": [
            LOCAL if model.local_window and positions.is_local(model, layer + 1) else GLOBAL
            for layer in range(model.num_layers)
        ],
        "local_attention": model.local_window or 128,
        "rope_parameters": {
            GLOBAL: {"rope_type": "default", "rope_theta": model.rope_theta},
            LOCAL: {"rope_type": "default", "rope_theta": local_theta},
        },
        # What versions of transformers before 5 read.
        **({"global_attn_every_n_layers": global_every} if global_every else {}),
        "global_rope_theta": model.rope_theta,
        "local_rope_theta": local_theta,
        "cls_token_id": int(order_V[CLS]),
        "sep_token_id": int(order_V[SEP]),
    }
