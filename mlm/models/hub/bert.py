"""The config.json and the tensor names of BERT, RoBERTa, ELECTRA and similar models, mapped to ours."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.special import PAD
from mlm.models.hub import settings
from mlm.models.hub.architecture import HubArchitecture, make_heads

EMBEDDINGS = {
    "embeddings.word_embeddings": "token",
    "embeddings.position_embeddings": "position",
    "embeddings.token_type_embeddings": "type",
    "embeddings.LayerNorm": "embed_norm",
    "embeddings_project": "embed_projection",
}
SIZES = {
    "num_layers": "num_hidden_layers",
    "width": "hidden_size",
    "mlp_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
}
DROPOUT = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
NAMES = settings.EntryNames(SIZES, DROPOUT, "layer_norm_eps", "hidden_act", 1e-12)
LAYER_PARAMS = {"attention.output.dense": "attention.out", "intermediate.dense": "mlp.up", "output.dense": "mlp.down"}
POST_NORM_PARAMS = LAYER_PARAMS | {"attention.output.LayerNorm": "attention_norm", "output.LayerNorm": "mlp_norm"}
PRE_NORM_PARAMS = LAYER_PARAMS | {"attention.LayerNorm": "attention_norm", "intermediate.LayerNorm": "mlp_norm"}
BERT_LM_HEAD = {"cls.predictions.transform.dense": "transform", "cls.predictions.transform.LayerNorm": "transform_norm"}
ROBERTA_LM_HEAD = {"lm_head.dense": "transform", "lm_head.layer_norm": "transform_norm"}
ELECTRA_LM_HEAD = {"generator_predictions.dense": "transform", "generator_predictions.LayerNorm": "transform_norm"}
POOLER = "bert.pooler.dense"
BERT_HEAD = {POOLER: "pool", "classifier": "label"}  # of sequence labels: tensor -> parameter
LABEL_HEAD = {"classifier.dense": "pool", "classifier.out_proj": "label"}  # of all but BERT
WORD_HEADS = {"tagging": {"classifier": ""}, "extractive_qa": {"qa_outputs": ""}}
# Our models have no other values.
REQUIRED_SETTINGS = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
MODEL_FIELDS: dict[str, Any] = {
    "family": "transformer",
    "positions": "learned",
    "directionality": "bidirectional",
    "embed_norm": True,
    "lm_head": "bert",
}  # of all these models


def _make_architecture(prefix, model_class, label_head, choice_head, **fields):
    shared = {
        "norm_placement": "post",
        "layer_params": POST_NORM_PARAMS,
        "embeddings": EMBEDDINGS,
        "layers": "encoder.layer",
        "qkv": "attention.self",
        "buffers": ("position_ids", "token_type_ids"),
    }
    heads = make_heads(label_head, choice_head, WORD_HEADS)
    return HubArchitecture(prefix, model_class, heads=heads, **shared | fields)


def _make_roberta(prefix, model_class, **fields):
    return _make_architecture(
        prefix,
        model_class,
        label_head=LABEL_HEAD,
        choice_head={f"{prefix}.pooler.dense": "pool", "classifier": "label"},
        lm_head=ROBERTA_LM_HEAD,
        lm_head_bias="lm_head.bias",
        decoder="lm_head.decoder",
        positions_after_pad=True,
        **fields,
    )


PRE_NORM_FIELDS = {"norm_placement": "pre", "layer_params": PRE_NORM_PARAMS, "final_norm": "LayerNorm"}
ARCHITECTURES = {
    "bert": _make_architecture(
        "bert",
        "BertForMaskedLM",
        label_head=BERT_HEAD,
        choice_head=BERT_HEAD,
        lm_head=BERT_LM_HEAD,
        lm_head_bias="cls.predictions.bias",
        decoder="cls.predictions.decoder",
    ),
    "roberta": _make_roberta("roberta", "RobertaForMaskedLM"),
    "xlm-roberta": _make_roberta("roberta", "XLMRobertaForMaskedLM"),
    "roberta-prelayernorm": _make_roberta("roberta_prelayernorm", "RobertaPreLayerNormForMaskedLM", **PRE_NORM_FIELDS),
    "electra": _make_architecture(
        "electra",
        "ElectraForMaskedLM",
        label_head=LABEL_HEAD,
        choice_head={"sequence_summary.summary": "pool", "classifier": "label"},
        lm_head=ELECTRA_LM_HEAD,
        lm_head_bias="generator_lm_head.bias",
        decoder="generator_lm_head",
        pooler="electra",
    ),
}


def read_model(where: str, config_json: Mapping[str, Any]) -> tuple[config.Model, int, int]:
    """(config.model, vocabulary size, positions before the first token's) of a config.json that our models can be."""
    architecture = ARCHITECTURES[config_json["model_type"]]
    settings.require_settings(where, config_json, REQUIRED_SETTINGS)
    fields = settings.read_fields(where, config_json, NAMES)
    pad = settings.get_integer(where, config_json, "pad_token_id", 0, 1)
    first = pad + 1 if architecture.positions_after_pad else 0
    num_positions = settings.get_integer(where, config_json, "max_position_embeddings", 1)
    expected = f"more than {first}, which is the first token's position (pad_token_id + 1)"
    errors.require(num_positions > first, f"{where}: max_position_embeddings", num_positions, expected)
    if config_json["model_type"] == "electra":
        embedding_dim = settings.get_integer(where, config_json, "embedding_size", 1, 128)
        fields["embedding_dim"] = 0 if embedding_dim == fields["width"] else embedding_dim
    model = config.Model(
        **MODEL_FIELDS,
        **fields,
        norm_placement=architecture.norm_placement,
        max_positions=num_positions - first,
        type_vocab_size=settings.get_integer(where, config_json, "type_vocab_size", 1, 2),
        lm_head_activation=fields["activation"] if architecture.lm_head is BERT_LM_HEAD else "gelu",
    )
    return model, settings.get_integer(where, config_json, "vocab_size", 1), first


def build_config_json(model: config.Model, order_V: np.ndarray, *, is_electra: bool = False) -> dict[str, Any]:
    """The config.json of a model of ours; one with factorised embeddings is an ELECTRA, with one token type a RoBERTa.

    order_V and is_electra: as in hub.build_config_json. Raises ConfigError if no class of transformers can read the
    model.
    """
    settings.require_fields(model, MODEL_FIELDS, "transformers needs")
    is_electra = is_electra or model.embedding_dim not in (0, model.width)
    placements = ("post",) if is_electra else ("pre", "post")
    errors.require_one_of("config.model.norm_placement", model.norm_placement, placements)
    if is_electra:
        name = "electra"
    elif model.norm_placement == "pre":
        name = "roberta-prelayernorm"
    else:
        name = "roberta" if model.type_vocab_size == 1 else "bert"
    settings.require_default_blocks(model, name, ("embedding_dim",) if is_electra else ())
    architecture, pad = ARCHITECTURES[name], int(order_V[PAD])
    head_activation = model.activation if architecture.lm_head is BERT_LM_HEAD else "gelu"
    settings.require_fields(model, {"lm_head_activation": head_activation}, f"transformers' {name} needs")
    return {
        **settings.build_entries(model, name, architecture.model_class, NAMES, order_V),
        **({"embedding_size": model.embedding_dim or model.width} if is_electra else {}),
        "max_position_embeddings": model.max_positions + (pad + 1 if architecture.positions_after_pad else 0),
        "type_vocab_size": max(model.type_vocab_size, 1),
        **REQUIRED_SETTINGS,
    }
