"""What is particular to a model_type of transformers: its config.json beyond names, as fields of ours and back.

A reader takes the path for errors, a config.json, and the fields that names give; it returns the others. A builder
raises ConfigError for a model that no class of its kind can be.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.special import CLS, PAD, SEP
from mlm.models import positions
from mlm.models.hub import settings
from mlm.models.hub.architecture import ARCHITECTURES, build_entries

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
NEO_BERT_REPOSITORY = "chandar-lab/NeoBERT"  # whose classes read what is exported


def read_bert_fields(where: str, config_json: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of BERT and of the models that are it but for a few parts."""
    is_albert, architecture = config_json["model_type"] == "albert", ARCHITECTURES[config_json["model_type"]]
    pad, num_positions = settings.get_integer(where, config_json, "pad_token_id", 0, 1), fields["max_positions"]
    first = pad + 1 if architecture.positions_after_pad else 0
    expected = f"more than {first}, which is the first token's position (pad_token_id + 1)"
    errors.require(num_positions > first, f"{where}: max_position_embeddings", num_positions, expected)
    own = {"max_positions": num_positions - first, "lm_head_activation": fields["activation"]}
    embeddings = architecture.embeddings.values()
    if "embed_projection" in embeddings:
        embedding_dim = settings.get_integer(where, config_json, "embedding_size", 1, 128)
        has_projection = not is_albert or embedding_dim != fields["width"]  # ALBERT's projects to the same width too
        expected = f"another width than hidden_size = {fields['width']}"
        errors.require(has_projection, f"{where}: embedding_size", embedding_dim, expected)
        own["embedding_dim"] = 0 if embedding_dim == fields["width"] else embedding_dim
    if "position" not in embeddings:
        own["position_buckets"] = _read_buckets(where, config_json, fields)
    if "type" in embeddings:
        own["type_vocab_size"] = settings.get_integer(where, config_json, "type_vocab_size", 1, 2)
    return own


def _read_buckets(where, config_json, fields) -> int:
    """config.model.position_buckets of a DeBERTaV2 or V3."""
    kinds: Any = config_json.get("pos_att_type")
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    has_both = isinstance(kinds, list) and sorted(map(str, kinds)) == ["c2p", "p2c"]
    errors.require(has_both, f"{where}: pos_att_type", config_json.get("pos_att_type"), "c2p and p2c")
    for name in ("embedding_size", "pooler_hidden_size"):
        settings.require_settings(where, config_json, {name: fields["width"]})
    num_buckets = settings.get_integer(where, config_json, "position_buckets", 2)
    expected = f"less than twice max_position_embeddings = {fields['max_positions']}"
    errors.require(num_buckets < 2 * fields["max_positions"], f"{where}: position_buckets", num_buckets, expected)
    return num_buckets


def build_bert(model: config.Model, order_V: np.ndarray, *, pooler: str = "bert") -> dict[str, Any]:
    """The config.json of a model of ours: of the class that has its blocks; with one token type it is a RoBERTa.

    order_V and pooler: as in hub.build_config_json. Raises ConfigError if no class of transformers can read the model.
    """
    is_deberta = model.positions == "disentangled"
    settings.require_fields(model, {"family": "transformer"}, "transformers needs")
    errors.require_one_of("config.model.norm_placement", model.norm_placement, ("pre", "post"))
    if is_deberta:
        name = "deberta-v2"
    elif pooler in ("electra", "distilbert"):
        name = pooler
    elif model.embedding_dim not in (0, model.width):
        name = "albert" if model.num_unique_layers == 1 else "electra"
    elif model.relative_bias:
        name = "mpnet"
    elif model.norm_placement == "pre":
        name = "roberta-prelayernorm"
    else:
        name = "roberta" if model.type_vocab_size == 1 else "bert"
    architecture = ARCHITECTURES[name]
    entries = build_entries(model, name, order_V, {"lm_head_activation": model.activation})
    if architecture.positions_after_pad:
        entries["max_position_embeddings"] += int(order_V[PAD]) + 1
    if "embed_projection" in architecture.embeddings.values():
        entries["embedding_size"] = model.embedding_dim or model.width
    if "type" in architecture.embeddings.values():
        entries["type_vocab_size"] = max(model.type_vocab_size, 1)
    if is_deberta:
        entries |= {"pos_att_type": ["c2p", "p2c"], "position_buckets": model.position_buckets}
    return entries


def read_gpt2_fields(where: str, config_json: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of GPT-2."""
    names = config_json.get("architectures") or ["GPT2LMHeadModel"]
    errors.require(names[0] in ("GPT2LMHeadModel", "GPT2Model"), f"{where}: architectures", names, "GPT2LMHeadModel")
    has_inner = config_json.get("n_inner") is not None
    return {"mlp_dim": settings.get_integer(where, config_json, "n_inner", 1) if has_inner else 4 * fields["width"]}


def build_gpt2(model: config.Model, order_V: np.ndarray) -> dict[str, Any]:
    """The config.json of a model of ours; raises ConfigError if the model is not a GPT-2."""
    return build_entries(model, "gpt2", order_V) | {"embd_pdrop": model.dropout, "n_inner": model.mlp_dim}


def extend_gpt2_embeddings(table_NxD: np.ndarray, order_V: np.ndarray) -> np.ndarray:
    """The table with rows for the special tokens that a GPT-2 lacks: [CLS] as [SEP], the others as the mean of all.

    Its own special token separates texts.
    """
    num_missing = len(order_V) - len(table_NxD)
    table = np.concatenate([table_NxD, np.tile(table_NxD.mean(0), (num_missing, 1))])
    if order_V[CLS] >= len(table_NxD):
        table[order_V[CLS]] = table[order_V[SEP]]
    return table


def read_modern_bert_fields(where: str, config_json: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ModernBERT (Warner et al. 2024), whose first attention has no norm."""
    biases = tuple(config_json.get(name, name == "decoder_bias") for name in BIAS_FIELDS)
    expected = " or ".join(str(list(map(int, known))) for known in BIASES)
    errors.require(biases in BIASES, f"{where}: {', '.join(BIAS_FIELDS)}", list(biases), expected)
    return {
        **_read_attention(where, config_json, fields["num_layers"]),
        "bias": BIASES[biases],
        "lm_head_activation": settings.get_activation(where, config_json, "classifier_activation", "gelu"),
        "depth_scaled_init": True,
    }


def _read_attention(where, config_json, num_layers) -> dict[str, Any]:
    """The fields of config.model on local attention and rotary embeddings."""
    attention: dict[str, Any] = {field: _read_theta(where, config_json, *names) for field, names in ROPE_FIELDS.items()}
    every = settings.get_integer(where, config_json, "global_attn_every_n_layers", 1, 3)
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


def build_modern_bert(model: config.Model, order_V: np.ndarray) -> dict[str, Any]:
    """The config.json of a model of ours; raises ConfigError if the model is not a ModernBERT."""
    local_theta = model.local_rope_theta or model.rope_theta
    biases = next(biases for biases, bias in BIASES.items() if bias == model.bias)
    global_every = 0 if model.global_layers else model.global_every if model.local_window else 1
    return {
        **build_entries(model, "modernbert", order_V),
        "mlp_dropout": model.dropout,
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


def read_neo_bert_fields(where: str, config_json: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of NeoBERT (Breton et al. 2025, arXiv 2502.19587), whose class its own repository has."""
    auto_map: Any = config_json.get("auto_map", {})
    errors.require(isinstance(auto_map, dict), f"{where}: auto_map", auto_map, "names of classes")
    return {"mlp_dim": -(-(2 * fields["mlp_dim"] // 3) // 8) * 8}  # two thirds, a multiple of 8


def order_neo_bert_qkv(width: int, num_heads: int) -> np.ndarray:
    """The column of a NeoBERT's matrix for each of ours: all queries, keys and values, and the halves of a head.

    Its rotation turns neighboring entries of a head.
    """
    columns_HxPxd = np.arange(3 * width).reshape(num_heads, 3, -1)
    halves_HxPxhx2 = columns_HxPxd[:, :2].reshape(num_heads, 2, -1, 2)
    return np.concatenate([halves_HxPxhx2.transpose(1, 0, 3, 2).ravel(), columns_HxPxd[:, 2].ravel()])


READERS: dict[str, Callable[..., dict[str, Any]]] = dict.fromkeys(ARCHITECTURES, read_bert_fields) | {
    "gpt2": read_gpt2_fields,
    "modernbert": read_modern_bert_fields,
    "neobert": read_neo_bert_fields,
}
