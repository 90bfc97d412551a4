"""The tensor names of BERT, RoBERTa, ELECTRA and similar models of `transformers`, mapped to our parameters.

The names are those that AutoModelForMaskedLM saves. A matrix in a file has shape (outputs, inputs), unlike ours.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

EMBEDDINGS = {
    "embeddings.word_embeddings": "token",
    "embeddings.position_embeddings": "position",
    "embeddings.token_type_embeddings": "type",
    "embeddings.LayerNorm": "embed_norm",
    "embeddings_project": "embed_projection",
}
SIZE_FIELDS = {
    "num_layers": "num_hidden_layers",
    "width": "hidden_size",
    "mlp_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
}
QKV = ("query", "key", "value")  # one matrix in our parameters
LAYER_PARAMS = {"attention.output.dense": "attention.out", "intermediate.dense": "mlp.up", "output.dense": "mlp.down"}
POST_NORM_PARAMS = LAYER_PARAMS | {"attention.output.LayerNorm": "attention_norm", "output.LayerNorm": "mlp_norm"}
PRE_NORM_PARAMS = LAYER_PARAMS | {"attention.LayerNorm": "attention_norm", "intermediate.LayerNorm": "mlp_norm"}
BERT_LM_HEAD = {"cls.predictions.transform.dense": "transform", "cls.predictions.transform.LayerNorm": "transform_norm"}
ROBERTA_LM_HEAD = {"lm_head.dense": "transform", "lm_head.layer_norm": "transform_norm"}
ELECTRA_LM_HEAD = {"generator_predictions.dense": "transform", "generator_predictions.LayerNorm": "transform_norm"}
POOLER = "bert.pooler.dense"
LABEL_HEAD = {"classifier.dense": "pool", "classifier.out_proj": "label"}  # of sequence labels: tensor -> parameter
WORD_HEADS = {"tagging": {"classifier": ""}, "extractive_qa": {"qa_outputs": ""}}
LEAVES = {
    "table": {"weight": "embedding"},
    "norm": {"weight": "scale", "bias": "bias"},
    "dense": {"weight": "kernel", "bias": "bias"},
}
LEGACY_LEAVES = {"gamma": "weight", "beta": "bias"}


class HubArchitecture(NamedTuple):
    """A model_type of transformers. The mappings are from tensor names to our parameters."""

    prefix: str  # of all tensors except the output layer's
    model_class: str  # the class that AutoModelForMaskedLM builds
    norm_placement: str  # config.model.norm_placement
    layer_params: Mapping[str, str]  # of a layer
    lm_head: Mapping[str, str]  # of the output layer
    lm_head_bias: str  # name of the output layer's bias
    decoder: str  # of the output layer's table and bias, where they are not those of the embeddings and of the head
    positions_after_pad: bool  # positions start after the padding token's id, as in fairseq; else at 0
    heads: Mapping[str, Mapping[str, str]]  # of labels: by objective, tensor -> the objective's parameter
    pooler: str = "bert"  # config.finetune.pooler


def _roberta_architecture(prefix, model_class, norm_placement="post", layer_params=POST_NORM_PARAMS):
    heads = make_heads(LABEL_HEAD, {f"{prefix}.pooler.dense": "pool", "classifier": "label"})
    head = ROBERTA_LM_HEAD, "lm_head.bias", "lm_head.decoder"
    return HubArchitecture(prefix, model_class, norm_placement, layer_params, *head, True, heads)


def make_heads(
    label_head: Mapping[str, str],
    choice_head: Mapping[str, str],
    word_heads: Mapping[str, Mapping[str, str]] = WORD_HEADS,
) -> dict[str, Mapping[str, str]]:
    """The heads of an architecture by objective, of which classification and regression share one."""
    return {**dict.fromkeys(("classification", "regression"), label_head), "multiple_choice": choice_head, **word_heads}


ARCHITECTURES = {
    "bert": HubArchitecture(
        "bert",
        "BertForMaskedLM",
        "post",
        POST_NORM_PARAMS,
        BERT_LM_HEAD,
        "cls.predictions.bias",
        "cls.predictions.decoder",
        False,
        make_heads({POOLER: "pool", "classifier": "label"}, {POOLER: "pool", "classifier": "label"}),
    ),
    "roberta": _roberta_architecture("roberta", "RobertaForMaskedLM"),
    "xlm-roberta": _roberta_architecture("roberta", "XLMRobertaForMaskedLM"),
    "roberta-prelayernorm": _roberta_architecture(
        "roberta_prelayernorm", "RobertaPreLayerNormForMaskedLM", "pre", PRE_NORM_PARAMS
    ),
    "electra": HubArchitecture(
        "electra",
        "ElectraForMaskedLM",
        "post",
        POST_NORM_PARAMS,
        ELECTRA_LM_HEAD,
        "generator_lm_head.bias",
        "generator_lm_head",
        False,
        make_heads(LABEL_HEAD, {"sequence_summary.summary": "pool", "classifier": "label"}),
        "electra",
    ),
}
BUFFERS = ("position_ids", "token_type_ids")  # buffers of older files


class TensorMapping(NamedTuple):
    """A tensor of a file, and the parameter of ours, or the part of it, that it holds."""

    name: str
    path: tuple[str, ...]  # of our parameter
    layer: int | None = None  # index on the leading axis of our parameter
    qkv_index: int | None = None  # index in QKV, which are concatenated on the last axis of our parameter
    lm_head: bool = False  # whether it belongs to the output layer
    transposed: bool = False  # whether its outputs come first


def map_tensors(architecture: HubArchitecture, num_layers: int, *, is_tied: bool = True) -> Iterator[TensorMapping]:
    """All tensors of a model with num_layers layers; is_tied: the output layer's table is that of the embeddings."""
    for name, path in EMBEDDINGS.items():
        yield from _map_leaves(f"{architecture.prefix}.{name}", path)
    for layer in range(num_layers):
        prefix, layer_path = f"{architecture.prefix}.encoder.layer.{layer}", "body.stack.layers.layer"
        for index, name in enumerate(QKV):
            yield from _map_leaves(
                f"{prefix}.attention.self.{name}", f"{layer_path}.attention.qkv", layer=layer, qkv_index=index
            )
        for name, path in architecture.layer_params.items():
            yield from _map_leaves(f"{prefix}.{name}", f"{layer_path}.{path}", layer=layer)
    if architecture.norm_placement == "pre":
        yield from _map_leaves(f"{architecture.prefix}.LayerNorm", "body.norm")
    for name, path in architecture.lm_head.items():
        yield from _map_leaves(name, path, lm_head=True)
    if not is_tied:
        yield TensorMapping(f"{architecture.decoder}.weight", ("output", "embedding"), lm_head=True)
    bias = architecture.lm_head_bias if is_tied else f"{architecture.decoder}.bias"
    yield TensorMapping(bias, ("bias",), lm_head=True)


def _map_leaves(name, path, **fields) -> Iterator[TensorMapping]:
    module = "norm" if "norm" in name.lower().rpartition(".")[2] else "table" if "_embeddings" in name else "dense"
    for tensor, leaf in LEAVES[module].items():
        yield TensorMapping(f"{name}.{tensor}", (*path.split("."), leaf), **fields, transposed=leaf == "kernel")


def canonical_name(name: str, architecture: HubArchitecture, *, is_tied: bool = True) -> str:
    """The name that transformers saves today: older files say gamma and beta, files of an encoder lack the prefix."""
    stem, _, last = name.rpartition(".")
    name = f"{stem}.{LEGACY_LEAVES.get(last, last)}" if stem.endswith("LayerNorm") else name
    if is_tied and name == f"{architecture.decoder}.bias":
        return architecture.lm_head_bias
    return (
        f"{architecture.prefix}.{name}"
        if re.match(r"(embeddings|embeddings_project|encoder|pooler|LayerNorm)\.", name)
        else name
    )
