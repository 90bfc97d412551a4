"""How the tensors that transformers' AutoModelForMaskedLM, or a GPT-2's class, saves map to our parameters.

To add a model_type: an entry of architectures.toml, and where its config.json needs more than names its functions in
model_types.py.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mlm.base import config
from mlm.models.hub import settings

# Fields of config.model that choose a block.
BLOCK_FIELDS = (
    *("norm", "first_norm", "bias", "layer_scale", "qk_norm", "attention_gate", "local_window", "embedding_dim"),
    *("num_unique_layers", "relative_bias", "rope_scaling"),
)
NUM_QKV = 3  # queries, keys and values, which one matrix gives in our parameters
LEAVES = {
    "table": {"weight": "embedding"},
    "norm": {"weight": "scale", "bias": "bias"},
    "dense": {"weight": "kernel", "bias": "bias"},
}
TABLES = ("token", "position", "type")  # parameters that are tables of embeddings
MERGED = ("names", "heads", "model")  # tables of an entry that add to those of the one it is like
LEGACY_LEAVES = {"gamma": "weight", "beta": "bias"}


class HubArchitecture(NamedTuple):
    """A model_type of transformers, an entry of architectures.toml; its mappings are from tensors to our parameters."""

    prefix: str  # of all tensors except the output layer's
    model_class: str  # the class that AutoModelForMaskedLM builds
    names: settings.EntryNames  # of its config.json
    model: dict[str, Any]  # fields of config.model that all its models have
    embeddings: Mapping[str, str]
    layers: str  # name of the list of layers
    layer_params: Mapping[str, str]  # of a layer
    lm_head: Mapping[str, str]  # of the output layer
    lm_head_bias: str  # name of the output layer's bias; "": it has none
    decoder: str  # of the output layer's table and bias, where they are not those of the embeddings and of the head
    heads: Mapping[str, Mapping[str, str]]  # of labels: by objective, tensor -> the objective's parameter
    stack_params: Mapping[str, str] = MappingProxyType({})  # beside its layers: a norm, or a table of distances
    qkv: tuple[str, ...] = ()  # names in a layer of the matrices of queries, keys and values; (): it has one for all
    positions_after_pad: bool = False  # positions start after the padding token's id, as in fairseq; else at 0
    required_settings: Mapping[str, Any] = MappingProxyType({})  # of its config.json, since our models have no others
    default_settings: Mapping[str, Any] = MappingProxyType({})  # those of them whose default is another
    pooler: str = "bert"  # config.finetune.pooler
    transposed: bool = True  # a matrix in a file has shape (outputs, inputs), unlike ours
    buffers: tuple[str, ...] = ()  # ends of the names of tensors that are no parameters, in older files
    own_blocks: tuple[str, ...] = ()  # fields of config.model that choose a block which other architectures lack


class TensorMapping(NamedTuple):
    """A tensor of a file, and the parameter of ours, or the part of it, that it holds."""

    name: str
    path: tuple[str, ...]  # of our parameter
    layer: int | None = None  # index on the leading axis of our parameter
    qkv_index: int | None = None  # of queries, keys and values, concatenated on the last axis of our parameter
    lm_head: bool = False  # whether it belongs to the output layer
    transposed: bool = False  # whether its outputs come first

    def select_part(self, leaf: np.ndarray) -> np.ndarray:
        """The part of our parameter that the tensor holds, a view in the tensor's shape."""
        part = leaf if self.layer is None else leaf[self.layer]
        part = part if self.qkv_index is None else np.split(part, NUM_QKV, -1)[self.qkv_index]
        return part.T if self.transposed else part


def read_architectures() -> dict[str, HubArchitecture]:
    """The entries of architectures.toml by model_type."""
    entries: dict[str, dict[str, Any]] = {}
    for name, own in tomllib.loads(Path(__file__).with_name("architectures.toml").read_text(encoding="utf-8")).items():
        base = entries.get(own.pop("like", ""), {key: {} for key in MERGED})
        entries[name] = base | own | {key: base[key] | own.get(key, {}) for key in MERGED}
    return {name: _make_architecture(**entry) for name, entry in entries.items()}


def _make_architecture(names, heads, **entry) -> HubArchitecture:
    by_objective: dict[str, Any] = {name: head for name, head in heads.items() if name != "texts"}
    if "texts" in heads:
        by_objective = dict.fromkeys(("classification", "regression", "multiple_choice"), heads["texts"]) | by_objective
    values: dict[str, Any] = {field: tuple(x) if isinstance(x, list) else x for field, x in entry.items()}
    return HubArchitecture(names=settings.EntryNames(**names), heads=by_objective, **values)


ARCHITECTURES = read_architectures()


def build_entries(model: config.Model, model_type: str, order_V, required: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The entries of a config.json that all architectures have.

    order_V: as in hub.read_folder; required: fields of config.model that its other entries need. Raises ConfigError for
    a model that the class of this model_type is not.
    """
    architecture, names = ARCHITECTURES[model_type], ARCHITECTURES[model_type].names
    blocks = {field: getattr(config.Model(), field) for field in BLOCK_FIELDS if field not in architecture.own_blocks}
    eps = {names.eps: model.norm_eps} if names.eps else {}
    own_eps = {} if eps else {"norm_eps": names.default_eps}
    required = {**required, **architecture.model, **own_eps, **blocks}
    settings.require_fields(model, required, f"transformers' {model_type} needs")
    entries = {
        "architectures": [architecture.model_class],
        "model_type": model_type,
        **{name: getattr(model, field) for field, name in {**names.sizes, **names.dropout}.items()},
        names.max_positions: model.max_positions,
        **eps,
        names.activation: settings.name_activation(model.activation, names.activations),
        "initializer_range": model.init_std or 0.02,
        "tie_word_embeddings": model.tie_embeddings,
        "dtype": "float32",
        **settings.build_vocabulary_entries(order_V),
    }
    settings.require_settings(f"transformers' {model_type}", entries, architecture.required_settings)
    return entries | dict(architecture.required_settings)


def map_tensors(architecture: HubArchitecture, num_layers: int, *, is_tied: bool = True) -> Iterator[TensorMapping]:
    """All tensors of a model with num_layers layers; is_tied: the output layer's table is that of the embeddings."""

    def map_leaves(name, path, **fields):
        kind = "table" if path in TABLES else "norm" if path.endswith("norm") else "dense"
        for tensor, leaf in LEAVES[kind].items():
            transposed = architecture.transposed and leaf == "kernel"
            yield TensorMapping(f"{name}.{tensor}", (*path.split("."), leaf), **fields, transposed=transposed)

    for name, path in architecture.embeddings.items():
        yield from map_leaves(f"{architecture.prefix}.{name}", path)
    for layer in range(num_layers):
        prefix, layer_path = f"{architecture.prefix}.{architecture.layers}.{layer}", "body.stack.layers.layer"
        for index, name in enumerate(architecture.qkv):
            yield from map_leaves(f"{prefix}.{name}", f"{layer_path}.attention.qkv", layer=layer, qkv_index=index)
        for name, path in architecture.layer_params.items():
            if layer or name != "attn_norm":  # the first layer of a ModernBERT has no norm of that name
                yield from map_leaves(f"{prefix}.{name}", f"{layer_path}.{path}", layer=layer)
    for name, path in architecture.stack_params.items():
        if path.endswith("norm"):
            yield from map_leaves(f"{architecture.prefix}.{name}", f"body.{path}")
        else:
            yield TensorMapping(f"{architecture.prefix}.{name}.weight", ("body", path))
    for name, path in architecture.lm_head.items():
        yield from map_leaves(name, path, lm_head=True)
    if not is_tied:
        yield TensorMapping(f"{architecture.decoder}.weight", ("output", "embedding"), lm_head=True)
    if architecture.lm_head_bias:
        bias = architecture.lm_head_bias if is_tied else f"{architecture.decoder}.bias"
        yield TensorMapping(bias, ("bias",), lm_head=True)


def canonical_name(name: str, architecture: HubArchitecture, *, is_tied: bool = True) -> str:
    """The name that transformers saves today: older files say gamma and beta, files of an encoder lack the prefix."""
    stem, _, last = name.rpartition(".")
    name = f"{stem}.{LEGACY_LEAVES.get(last, last)}" if stem.endswith("LayerNorm") else name
    if is_tied and architecture.lm_head_bias and name == f"{architecture.decoder}.bias":
        return architecture.lm_head_bias
    has_own_pooler = "pooler.dense" in architecture.heads.get("classification", {})  # beside the encoder
    poolers = () if has_own_pooler else ("pooler",)
    modules = (*architecture.embeddings, architecture.layers, *architecture.stack_params, "LayerNorm", *poolers)
    tops = {module.partition(".")[0] for module in modules}
    return f"{architecture.prefix}.{name}" if re.match(rf"({'|'.join(tops)})\.", name) else name
