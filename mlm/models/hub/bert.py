"""The config.json and the tensor names of BERT and of the models that are it but for a few parts, mapped to ours."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.special import PAD
from mlm.models import positions
from mlm.models.hub import settings
from mlm.models.hub.architecture import HubArchitecture, make_heads

EMBEDDINGS = {
    "embeddings.word_embeddings": "token",
    "embeddings.position_embeddings": "position",
    "embeddings.token_type_embeddings": "type",
    "embeddings.LayerNorm": "embed_norm",
}
NO_TYPES = {name: path for name, path in EMBEDDINGS.items() if path != "type"}
NO_POSITIONS = {name: path for name, path in NO_TYPES.items() if path != "position"}
SIZES = {
    "num_layers": "num_hidden_layers",
    "width": "hidden_size",
    "mlp_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
}
DROPOUT = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
NAMES = settings.EntryNames(SIZES, DROPOUT, "layer_norm_eps", "hidden_act", 1e-12)
DISTILBERT_NAMES = NAMES._replace(
    sizes={"num_layers": "n_layers", "width": "dim", "mlp_dim": "hidden_dim", "num_heads": "n_heads"},
    dropout={"dropout": "dropout", "attention_dropout": "attention_dropout"},
    eps="",
    activation="activation",
)
ALBERT_NAMES = NAMES._replace(default_activation="gelu_new", default_dropout=0.0)
DEBERTA_NAMES = NAMES._replace(default_eps=1e-7)
QKV = ("attention.self.query", "attention.self.key", "attention.self.value")
LAYER_PARAMS = {"attention.output.dense": "attention.out", "intermediate.dense": "mlp.up", "output.dense": "mlp.down"}
POST_NORM_PARAMS = LAYER_PARAMS | {"attention.output.LayerNorm": "attention_norm", "output.LayerNorm": "mlp_norm"}
PRE_NORM_PARAMS = LAYER_PARAMS | {"attention.LayerNorm": "attention_norm", "intermediate.LayerNorm": "mlp_norm"}
DISTILBERT_PARAMS = {
    "attention.out_lin": "attention.out",
    "sa_layer_norm": "attention_norm",
    "ffn.lin1": "mlp.up",
    "ffn.lin2": "mlp.down",
    "output_layer_norm": "mlp_norm",
}
ALBERT_PARAMS = {
    "attention.dense": "attention.out",
    "attention.LayerNorm": "attention_norm",
    "ffn": "mlp.up",
    "ffn_output": "mlp.down",
    "full_layer_layer_norm": "mlp_norm",
}
MPNET_PARAMS = {
    "attention.attn.o": "attention.out",
    "attention.LayerNorm": "attention_norm",
    "intermediate.dense": "mlp.up",
    "output.dense": "mlp.down",
    "output.LayerNorm": "mlp_norm",
}
BERT_LM_HEAD = {"cls.predictions.transform.dense": "transform", "cls.predictions.transform.LayerNorm": "transform_norm"}
ROBERTA_LM_HEAD = {"lm_head.dense": "transform", "lm_head.layer_norm": "transform_norm"}
ELECTRA_LM_HEAD = {"generator_predictions.dense": "transform", "generator_predictions.LayerNorm": "transform_norm"}
ALBERT_LM_HEAD = {"predictions.dense": "transform", "predictions.LayerNorm": "transform_norm"}
DISTILBERT_LM_HEAD = {"vocab_transform": "transform", "vocab_layer_norm": "transform_norm"}
POOLER, ALBERT_POOLER = "bert.pooler.dense", "albert.pooler"
BERT_HEAD = {POOLER: "pool", "classifier": "label"}  # of sequence labels: tensor -> parameter
ALBERT_HEAD = {ALBERT_POOLER: "pool", "classifier": "label"}
LABEL_HEAD = {"classifier.dense": "pool", "classifier.out_proj": "label"}  # of RoBERTa, MPNet and ELECTRA
DEBERTA_HEAD = {"pooler.dense": "pool", "classifier": "label"}
DISTILBERT_HEAD = {"pre_classifier": "pool", "classifier": "label"}
WORD_HEADS = {"tagging": {"classifier": ""}, "extractive_qa": {"qa_outputs": ""}}
# Our models have no other values.
REQUIRED_SETTINGS = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
MPNET_SETTINGS = {"relative_attention_num_buckets": positions.NUM_BUCKETS, "pad_token_id": 1}  # constants of its class
ALBERT_SETTINGS = {"num_hidden_groups": 1, "inner_group_num": 1}  # all layers are one
DEBERTA_DEFAULTS = {
    "relative_attention": False,
    "position_biased_input": True,
    "pos_att_type": None,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "position_buckets": -1,
}
DEBERTA_SETTINGS = {
    "relative_attention": True,
    "position_biased_input": False,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "max_relative_positions": -1,
    "conv_kernel_size": 0,
    "type_vocab_size": 0,
    "pooler_hidden_act": "gelu",
    "legacy": True,
}
MODEL_FIELDS: dict[str, Any] = {
    "family": "transformer",
    "directionality": "bidirectional",
    "embed_norm": True,
    "lm_head": "bert",
}  # of all these models


def _make_architecture(prefix, model_class, label_head, choice_head, **fields):
    shared = {
        "norm_placement": "post",
        "layer_params": POST_NORM_PARAMS,
        "embeddings": EMBEDDINGS,
        "names": NAMES,
        "layers": "encoder.layer",
        "qkv": QKV,
        "required_settings": REQUIRED_SETTINGS,
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


PRE_NORM_FIELDS = {"norm_placement": "pre", "layer_params": PRE_NORM_PARAMS, "stack_params": {"LayerNorm": "norm"}}
ARCHITECTURES = {
    "bert": _make_architecture(
        "bert",
        "BertForMaskedLM",
        label_head=BERT_HEAD,
        choice_head=BERT_HEAD,
        lm_head=BERT_LM_HEAD,
        lm_head_activation="",
        lm_head_bias="cls.predictions.bias",
        decoder="cls.predictions.decoder",
    ),
    "roberta": _make_roberta("roberta", "RobertaForMaskedLM"),
    "camembert": _make_roberta("roberta", "CamembertForMaskedLM"),
    "xlm-roberta": _make_roberta("roberta", "XLMRobertaForMaskedLM"),
    "roberta-prelayernorm": _make_roberta("roberta_prelayernorm", "RobertaPreLayerNormForMaskedLM", **PRE_NORM_FIELDS),
    "mpnet": _make_roberta(
        "mpnet",
        "MPNetForMaskedLM",
        embeddings=NO_TYPES,
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        layer_params=MPNET_PARAMS,
        stack_params={"encoder.relative_attention_bias": "relative_bias"},
        required_settings=REQUIRED_SETTINGS | MPNET_SETTINGS,
    ),
    "electra": _make_architecture(
        "electra",
        "ElectraForMaskedLM",
        label_head=LABEL_HEAD,
        choice_head={"sequence_summary.summary": "pool", "classifier": "label"},
        lm_head=ELECTRA_LM_HEAD,
        lm_head_bias="generator_lm_head.bias",
        decoder="generator_lm_head",
        embeddings=EMBEDDINGS | {"embeddings_project": "embed_projection"},
        pooler="electra",
    ),
    "albert": _make_architecture(
        "albert",
        "AlbertForMaskedLM",
        label_head=ALBERT_HEAD,
        choice_head=ALBERT_HEAD,
        names=ALBERT_NAMES,
        embeddings=EMBEDDINGS | {"encoder.embedding_hidden_mapping_in": "embed_projection"},
        layers="encoder.albert_layer_groups.0.albert_layers",
        qkv=("attention.query", "attention.key", "attention.value"),
        layer_params=ALBERT_PARAMS,
        lm_head=ALBERT_LM_HEAD,
        lm_head_activation="",
        lm_head_bias="predictions.bias",
        decoder="predictions.decoder",
        required_settings=REQUIRED_SETTINGS | ALBERT_SETTINGS,
    ),
    "deberta-v2": _make_architecture(
        "deberta",
        "DebertaV2ForMaskedLM",
        label_head=DEBERTA_HEAD,
        choice_head=DEBERTA_HEAD,
        names=DEBERTA_NAMES,
        embeddings=NO_POSITIONS,
        qkv=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
        stack_params={"encoder.rel_embeddings": "relative_embedding", "encoder.LayerNorm": "relative_norm"},
        lm_head=BERT_LM_HEAD,
        lm_head_activation="",
        lm_head_bias="cls.predictions.bias",
        decoder="cls.predictions.decoder",
        required_settings=DEBERTA_SETTINGS,
        default_settings=DEBERTA_DEFAULTS,
        pooler="electra",
    ),
    "distilbert": _make_architecture(
        "distilbert",
        "DistilBertForMaskedLM",
        label_head=DISTILBERT_HEAD,
        choice_head=DISTILBERT_HEAD,
        names=DISTILBERT_NAMES,
        embeddings=NO_TYPES,
        layers="transformer.layer",
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        layer_params=DISTILBERT_PARAMS,
        lm_head=DISTILBERT_LM_HEAD,
        lm_head_activation="",
        lm_head_bias="vocab_projector.bias",
        decoder="vocab_projector",
        pooler="distilbert",
    ),
}

# Fields of config.model that choose a block which the other architectures lack.
OWN_BLOCKS = {
    "albert": ("embedding_dim", "num_unique_layers"),
    "electra": ("embedding_dim",),
    "mpnet": ("relative_bias",),
}


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
    if "position" in embeddings:
        fields["positions"] = "learned"
    else:
        fields |= _read_distances(where, config_json, fields["width"])
    num_types = settings.get_integer(where, config_json, "type_vocab_size", 1, 2) if "type" in embeddings else 0
    model = config.Model(
        **MODEL_FIELDS,
        **fields,
        norm_placement=architecture.norm_placement,
        relative_bias="relative_bias" in architecture.stack_params.values(),
        num_unique_layers=int(is_albert),
        max_positions=num_positions - first,
        type_vocab_size=num_types,
        lm_head_activation=architecture.lm_head_activation or fields["activation"],
    )
    return model, settings.get_integer(where, config_json, "vocab_size", 1), first


def _read_distances(where, config_json, width) -> dict[str, Any]:
    """The fields of config.model on the disentangled attention of a DeBERTaV2 or V3."""
    kinds: Any = config_json["pos_att_type"]
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    has_both = isinstance(kinds, list) and sorted(map(str, kinds)) == ["c2p", "p2c"]
    errors.require(has_both, f"{where}: pos_att_type", config_json["pos_att_type"], "c2p and p2c")
    for name in ("embedding_size", "pooler_hidden_size"):
        settings.require_settings(where, config_json, {name: width})
    num_positions = settings.get_integer(where, config_json, "max_position_embeddings", 1)
    num_buckets = settings.get_integer(where, config_json, "position_buckets", 2)
    expected = f"less than twice max_position_embeddings = {num_positions}"
    errors.require(num_buckets < 2 * num_positions, f"{where}: position_buckets", num_buckets, expected)
    return {"positions": "disentangled", "position_buckets": num_buckets}


def build_config_json(model: config.Model, order_V: np.ndarray, *, pooler: str = "bert") -> dict[str, Any]:
    """The config.json of a model of ours: of the class that has its blocks; with one token type it is a RoBERTa.

    order_V and pooler: as in hub.build_config_json. Raises ConfigError if no class of transformers can read the model.
    """
    is_deberta = model.positions == "disentangled"
    positions_field = {"positions": "disentangled" if is_deberta else "learned"}
    settings.require_fields(model, MODEL_FIELDS | positions_field, "transformers needs")
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
    architecture, pad, needed = ARCHITECTURES[name], int(order_V[PAD]), f"transformers' {name} needs"
    embeddings = architecture.embeddings.values()
    settings.require_default_blocks(model, name, OWN_BLOCKS.get(name, ()))
    required = {
        "norm_placement": architecture.norm_placement,
        "lm_head_activation": architecture.lm_head_activation or model.activation,
        **({} if "type" in embeddings else {"type_vocab_size": 0}),
        **({} if architecture.names.eps else {"norm_eps": architecture.names.default_eps}),
    }
    settings.require_fields(model, required, needed)
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
