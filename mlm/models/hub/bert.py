"""BERT, RoBERTa and their like: where each tensor of theirs stands among our parameters, from one table.

Theirs are called as transformers' AutoModelForMaskedLM saves them; a matrix there has its outputs first.
"""
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

EMBEDDINGS = {"embeddings.word_embeddings": "token", "embeddings.position_embeddings": "position",
              "embeddings.token_type_embeddings": "type", "embeddings.LayerNorm": "embed_norm"}
SIZES = {"num_layers": "num_hidden_layers", "width": "hidden_size", "mlp_dim": "intermediate_size",
         "heads": "num_attention_heads"}
QKV = ("query", "key", "value")  # side by side in ours
LAYER = {"attention.output.dense": "attention.out", "intermediate.dense": "mlp.up", "output.dense": "mlp.down"}
POST = LAYER | {"attention.output.LayerNorm": "attention_norm", "output.LayerNorm": "mlp_norm"}
PRE = LAYER | {"attention.LayerNorm": "attention_norm", "intermediate.LayerNorm": "mlp_norm"}
BERT_HEAD = {"cls.predictions.transform.dense": "transform", "cls.predictions.transform.LayerNorm": "transform_norm"}
HEAD = {"lm_head.dense": "transform", "lm_head.layer_norm": "transform_norm"}
POOLER = "bert.pooler.dense"
BERT_ROW = {POOLER: "pool", "classifier": "label"}    # of labels of a row: theirs -> the objective's own
ROW = {"classifier.dense": "pool", "classifier.out_proj": "label"}
LEAVES = {"table": {"weight": "embedding"}, "norm": {"weight": "scale", "bias": "bias"},
          "dense": {"weight": "kernel", "bias": "bias"}}
OLD = {"gamma": "weight", "beta": "bias"}


class Kind(NamedTuple):
    """A model_type of theirs."""

    prefix: str               # of all but the output layer
    architecture: str         # what AutoModelForMaskedLM makes of it
    norm: str                 # config.model.norm_placement
    layer: Mapping[str, str]  # theirs -> ours, in a layer
    head: Mapping[str, str]   # in the output layer
    bias: str                 # of the output layer
    after_pad: bool           # positions start behind the padding token's id (fairseq's way), else at 0
    row: Mapping[str, str]    # theirs -> ours, in the head of a label of a row


def _roberta(prefix, architecture, norm="post", layer=POST):
    return Kind(prefix, architecture, norm, layer, HEAD, "lm_head.bias", True, ROW)


KINDS = {"bert": Kind("bert", "BertForMaskedLM", "post", POST, BERT_HEAD, "cls.predictions.bias", False, BERT_ROW),
         "roberta": _roberta("roberta", "RobertaForMaskedLM"),
         "xlm-roberta": _roberta("roberta", "XLMRobertaForMaskedLM"),
         "roberta-prelayernorm": _roberta("roberta_prelayernorm", "RobertaPreLayerNormForMaskedLM", "pre", PRE)}
DECODERS = ("cls.predictions.decoder", "lm_head.decoder")  # the tied table and the bias over again
BUFFERS = ("position_ids", "token_type_ids")  # that older files have


class Place(NamedTuple):
    """One tensor of theirs, and which part of which parameter of ours it is."""

    name: str
    path: tuple[str, ...]
    layer: int | None = None  # of the leading axis
    part: int | None = None   # of QKV, along the last axis
    head: bool = False        # of the output layer
    turned: bool = False      # it has its outputs first


def places(kind: Kind, layers: int) -> Iterator[Place]:
    """Every tensor of a model of so many layers."""
    for name, ours in EMBEDDINGS.items():
        yield from _leaves(f"{kind.prefix}.{name}", ours)
    for layer in range(layers):
        at, ours = f"{kind.prefix}.encoder.layer.{layer}", "body.stack.layers.layer"
        for part, name in enumerate(QKV):
            yield from _leaves(f"{at}.attention.self.{name}", f"{ours}.attention.qkv", layer=layer, part=part)
        for name, inner in kind.layer.items():
            yield from _leaves(f"{at}.{name}", f"{ours}.{inner}", layer=layer)
    if kind.norm == "pre":
        yield from _leaves(f"{kind.prefix}.LayerNorm", "body.norm")
    for name, ours in kind.head.items():
        yield from _leaves(name, ours, head=True)
    yield Place(kind.bias, ("bias",), head=True)


def _leaves(name, ours, **where) -> Iterator[Place]:
    what = "norm" if "norm" in name.lower().rpartition(".")[2] else "table" if "_embeddings" in name else "dense"
    for leaf, mine in LEAVES[what].items():
        yield Place(f"{name}.{leaf}", (*ours.split("."), mine), **where, turned=mine == "kernel")


def canonical(name: str, kind: Kind) -> str:
    """A tensor's name as it would be saved today: older files say gamma and beta, a bare encoder's lack the prefix."""
    stem, _, last = name.rpartition(".")
    name = f"{stem}.{OLD.get(last, last)}" if stem.endswith("LayerNorm") else name
    if name == f"{kind.bias.removesuffix('.bias')}.decoder.bias":
        return kind.bias
    return f"{kind.prefix}.{name}" if re.match(r"(embeddings|encoder|pooler|LayerNorm)\.", name) else name
