"""The config.json and the tensor names of BERT and of the models that are it but for a few parts, mapped to ours."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.special import PAD
from mlm.models.hub import settings
from mlm.models.hub.architecture import ARCHITECTURES


def read_model(where: str, config_json: Mapping[str, Any]) -> tuple[config.Model, int, int]:
    """(config.model, vocabulary size, positions before the first token's) of a config.json that our models can be."""
    is_albert, architecture = config_json["model_type"] == "albert", ARCHITECTURES[config_json["model_type"]]
    config_json = {**architecture.default_settings, **config_json}
    settings.require_settings(where, config_json, architecture.required_settings)
    fields = settings.read_fields(where, config_json, architecture.names)
    pad = settings.get_integer(where, config_json, "pad_token_id", 0, 1)
    first = pad + 1 if architecture.positions_after_pad else 0
    num_positions = settings.get_integer(where, config_json, "max_position_embeddings", 1)
    expected = f"more than {first}, which is the first token's position (pad_token_id + 1)"
    errors.require(num_positions > first, f"{where}: max_position_embeddings", num_positions, expected)
    embeddings = architecture.embeddings.values()
    if "embed_projection" in embeddings:
        embedding_dim = settings.get_integer(where, config_json, "embedding_size", 1, 128)
        has_projection = not is_albert or embedding_dim != fields["width"]  # ALBERT's projects to the same width too
        expected = f"another width than hidden_size = {fields['width']}"
        errors.require(has_projection, f"{where}: embedding_size", embedding_dim, expected)
        fields["embedding_dim"] = 0 if embedding_dim == fields["width"] else embedding_dim
    if "position" not in embeddings:
        fields["position_buckets"] = _read_buckets(where, config_json, fields["width"])
    if "type" in embeddings:
        fields["type_vocab_size"] = settings.get_integer(where, config_json, "type_vocab_size", 1, 2)
    fields |= {"max_positions": num_positions - first, "lm_head_activation": fields["activation"]}
    model = config.Model(**(fields | architecture.model))
    return model, settings.get_integer(where, config_json, "vocab_size", 1), first


def _read_buckets(where, config_json, width) -> int:
    """config.model.position_buckets of a DeBERTaV2 or V3."""
    kinds: Any = config_json.get("pos_att_type")
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    has_both = isinstance(kinds, list) and sorted(map(str, kinds)) == ["c2p", "p2c"]
    errors.require(has_both, f"{where}: pos_att_type", config_json.get("pos_att_type"), "c2p and p2c")
    for name in ("embedding_size", "pooler_hidden_size"):
        settings.require_settings(where, config_json, {name: width})
    num_positions = settings.get_integer(where, config_json, "max_position_embeddings", 1)
    num_buckets = settings.get_integer(where, config_json, "position_buckets", 2)
    expected = f"less than twice max_position_embeddings = {num_positions}"
    errors.require(num_buckets < 2 * num_positions, f"{where}: position_buckets", num_buckets, expected)
    return num_buckets


def build_config_json(model: config.Model, order_V: np.ndarray, *, pooler: str = "bert") -> dict[str, Any]:
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
    architecture, pad = ARCHITECTURES[name], int(order_V[PAD])
    embeddings = architecture.embeddings.values()
    own_eps = {} if architecture.names.eps else {"norm_eps": architecture.names.default_eps}
    required = architecture.model | own_eps
    required.setdefault("lm_head_activation", model.activation)
    settings.require_fields(model, required, f"transformers' {name} needs")
    settings.require_default_blocks(model, name, architecture.own_blocks)
    entries = settings.build_entries(model, name, architecture.model_class, architecture.names, order_V)
    settings.require_settings(f"transformers' {name}", entries, architecture.required_settings)
    return {
        **entries,
        **({"embedding_size": model.embedding_dim or model.width} if "embed_projection" in embeddings else {}),
        "max_position_embeddings": model.max_positions + (pad + 1 if architecture.positions_after_pad else 0),
        **({"type_vocab_size": max(model.type_vocab_size, 1)} if "type" in embeddings else {}),
        **architecture.required_settings,
        **({"pos_att_type": ["c2p", "p2c"], "position_buckets": model.position_buckets} if is_deberta else {}),
    }
