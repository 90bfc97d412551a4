"""A model folder of Hugging Face's `transformers` as config fields and parameters, and back."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from mlm.base import config, errors, files, types
from mlm.base.special import NUM_SPECIAL
from mlm.models import layers, transformer
from mlm.models.hub import heads, model_types, settings, tensors
from mlm.models.hub.architecture import ARCHITECTURES, NUM_QKV, canonical_name, map_tensors

# Our parameters with an entry per vocabulary entry.
VOCABULARY_PARAMS = (("token", "embedding"), ("output", "embedding"), ("bias",))
LAYERS_PARAM = ("body", "stack", "layers", "layer", "attention", "out", "kernel")  # has an axis of layers, as any other
# Our parameters that have another name in torch, where a model's own method has ours.
TORCH_NAMES = {"type.embedding": "token_type.embedding"}
VOCABULARY_NAMES = [".".join(path) for path in VOCABULARY_PARAMS]


class HubModel(NamedTuple):
    """The contents of a folder."""

    model: config.Model
    params: types.Params  # of the model, numpy, float32
    config_json: dict[str, Any]
    unused_tensors: dict[str, np.ndarray]  # tensors that our model lacks: a pooler, positions of padding
    has_lm_head: bool  # whether the parameters have an output layer over the vocabulary
    label_head: heads.LabelHead | None = None  # of a fine-tuned model


def is_hub_folder(folder: Path | str) -> bool:
    """Whether a folder has files of a Hugging Face model."""
    tensor_files = (tensors.TENSOR_FILE, tensors.SHARD_INDEX_FILE, *tensors.PICKLE_FILES)
    if any(Path(folder, name).exists() for name in tensor_files):
        return True
    try:
        return "model_type" in files.read_json_object(Path(folder, settings.CONFIG_FILE))
    except errors.ConfigError:
        return False


def read_folder(folder: Path | str, order_V: np.ndarray) -> HubModel:
    """The model of a folder; order_V: the id that the folder's tokenizer gives to each entry of our vocabulary.

    Raises ConfigError if a file is missing or damaged, our models cannot represent it, or the files do not match.
    """
    folder = Path(folder)
    where, tensors_path = str(folder / settings.CONFIG_FILE), str(folder / tensors.TENSOR_FILE)
    config_json = files.read_json_object(folder / settings.CONFIG_FILE)
    model, vocab_size = _read_model(where, config_json)
    model_type, architecture = config_json["model_type"], ARCHITECTURES[config_json["model_type"]]
    first_position = config_json.get("pad_token_id", 1) + 1 if architecture.positions_after_pad else 0
    size = len(order_V) - (order_V >= vocab_size)[:NUM_SPECIAL].sum() * (model_type == "gpt2")
    errors.require(vocab_size == size, f"{where}: vocab_size", vocab_size, f"{size}, the size of the tokenizer's")
    with tensors.open_tensors(folder) as file_by_name:
        names = _canonical_names(tensors_path, file_by_name, architecture, is_tied=model.tie_embeddings)
        shapes = _param_shapes(model, vocab_size)
        map_model = functools.partial(map_tensors, architecture, is_tied=model.tie_embeddings)
        outside_layers = {mapping.path: mapping for mapping in map_model(0)}
        table, decoder = outside_layers["token", "embedding"].name, f"{architecture.decoder}.weight"
        if model.tie_embeddings and table not in names and decoder in names:  # a file may have either name
            names[table] = names.pop(decoder)
        lm_head = [mapping.name in names for mapping in outside_layers.values() if mapping.lm_head]
        has_lm_head = (any(lm_head) or not lm_head) and not heads.has_label_head(config_json)
        mappings = []
        for mapping in map_model(layers.count_unique_layers(model)):
            if mapping.path in shapes and (has_lm_head or not mapping.lm_head):
                is_present = mapping.name in names  # the first missing tensor ends a config.json of a billion layers
                errors.require(is_present, f"{tensors_path}: tensors", len(names), f"{mapping.name} among them")
                shape = _tensor_shape(mapping, shapes, first_position)
                tensors.check_tensor(tensors_path, file_by_name, names[mapping.name], shape)
                mappings.append(mapping)
        read = functools.partial(tensors.read_tensor, tensors_path, file_by_name)
        mapped = {mapping.name: read(names[mapping.name]) for mapping in mappings}
        unused = {
            name: read(stored)
            for name, stored in names.items()
            if name not in mapped and file_by_name[stored].get_slice(stored).get_dtype() in tensors.FLOAT_TYPES
        }
    table_VxD = mapped[table]
    for name in [name for name in unused if name.startswith(f"{architecture.decoder}.")]:
        decoder = unused.pop(name)
        is_tied = decoder.ndim != 2 or np.array_equal(decoder, table_VxD)
        expected = f"the embeddings of the vocabulary, or tie_word_embeddings: false in {settings.CONFIG_FILE}"
        errors.require(is_tied, f"{tensors_path}: {name}", decoder.shape, expected)
    label_head = heads.read_label_head(where, config_json, tensors_path, unused)
    if ("position", "embedding") in outside_layers:
        name = outside_layers["position", "embedding"].name
        unused[name], mapped[name] = np.split(mapped[name], [first_position])
    order_E = model_types.order_neo_bert_qkv(model.width, model.num_heads) if model_type == "neobert" else None
    params = _build_params(mappings, mapped, shapes, order_V, order_E)
    return HubModel(model, params, config_json, unused, has_lm_head, label_head)


def export_tensors(
    params: types.Params,
    config_json: Mapping[str, Any],
    order_V: np.ndarray,
    unused_tensors: Mapping[str, np.ndarray] | None = None,
    *,
    has_lm_head: bool = True,
) -> dict[str, np.ndarray]:
    """The tensors of a model's parameters; the inverse of `read_folder`.

    order_V: as there; unused_tensors: as in HubModel; has_lm_head: whether to export the output layer over the
    vocabulary.
    """
    architecture, exported = ARCHITECTURES[config_json["model_type"]], dict(unused_tensors or {})
    leaves = {path: np.asarray(leaf) for path, leaf in traverse_util.flatten_dict(params).items()}
    if ("type", "embedding") not in leaves:  # transformers needs one, our models do not
        leaves["type", "embedding"] = np.zeros((1, leaves["token", "embedding"].shape[1]), np.float32)
    is_tied, num_layers = ("output", "embedding") not in leaves, len(leaves[LAYERS_PARAM])
    sizes = (config_json[architecture.names.sizes[name]] for name in ("width", "num_heads"))
    order_E = model_types.order_neo_bert_qkv(*sizes) if config_json["model_type"] == "neobert" else None
    for mapping in map_tensors(architecture, num_layers, is_tied=is_tied):
        if mapping.path not in leaves or (mapping.lm_head and not has_lm_head):
            continue
        x = mapping.select_part(leaves[mapping.path])
        if order_E is not None and "qkv" in mapping.path:
            x = x[np.argsort(order_E)]
        if mapping.path in VOCABULARY_PARAMS:
            x = x[np.argsort(order_V)]
        if mapping.path[0] == "position":
            num_missing = config_json.get("max_position_embeddings", len(x)) - len(x)
            x = np.concatenate([exported.get(mapping.name, np.zeros((num_missing, x.shape[1]), x.dtype)), x])
        exported[mapping.name] = x
    bias = exported.get(f"{architecture.decoder}.bias")
    if architecture.lm_head_bias and bias is not None and not is_tied:  # its name in transformers 4, which 5 ignores
        exported.setdefault(architecture.lm_head_bias, bias)
    return exported


def read_model_config(folder: Path | str) -> config.Model:
    """The model that a folder's config.json describes. Raises ConfigError if our models cannot represent it."""
    path = Path(folder, settings.CONFIG_FILE)
    return _read_model(str(path), files.read_json_object(path))[0]


def build_config_json(
    model: config.Model, order_V: np.ndarray, *, has_lm_head: bool = True, pooler: str = "bert"
) -> dict[str, Any]:
    """The config.json of a model of ours. Raises ConfigError if no class of transformers can read the model.

    order_V: as for `read_folder`; pooler: config.finetune.pooler, of classes with the same encoder one has each.
    """
    if has_lm_head and model.directionality == "causal":
        return model_types.build_gpt2(model, order_V)
    if model.family == "transformer" and model.positions == "rotary":
        return model_types.build_modern_bert(model, order_V)
    return model_types.build_bert(model, order_V, pooler=pooler)


def build_changed_entries(config_json: Mapping[str, Any], order_V: np.ndarray) -> dict[str, Any]:
    """The entries of a config.json that are others when it is written again.

    A GPT-2's vocabulary has all our special tokens then; a NeoBERT names the published classes, since its folder has no
    file of code.
    """
    if "auto_map" in config_json and config_json["model_type"] == "neobert":
        names = {key: str(name).rpartition("--")[2] for key, name in config_json["auto_map"].items()}
        return {"auto_map": {key: f"{model_types.NEO_BERT_REPOSITORY}--{name}" for key, name in names.items()}}
    return settings.build_vocabulary_entries(order_V) if config_json["model_type"] == "gpt2" else {}


def _read_model(where, config_json) -> tuple[config.Model, int]:
    """(config.model, size of the vocabulary) of a config.json that our models can be."""
    model_type: Any = config_json.get("model_type")
    errors.require_one_of(f"{where}: model_type", model_type, list(ARCHITECTURES))
    architecture = ARCHITECTURES[model_type]
    config_json = {**architecture.default_settings, **config_json}
    settings.require_settings(where, config_json, architecture.required_settings)
    fields = settings.read_fields(where, config_json, architecture.names)
    fields |= model_types.READERS[model_type](where, config_json, fields) | architecture.model
    return config.Model(**fields), settings.get_integer(where, config_json, "vocab_size", 1)


def compute_digest(folder: Path | str) -> str:
    """SHA-256 of config.json and the tensors. Raises ConfigError if one of them is missing."""
    with tensors.open_tensors(Path(folder)):
        pass
    files.read_json_object(Path(folder, settings.CONFIG_FILE))
    paths = Path(folder, settings.CONFIG_FILE), *tensors.list_tensor_files(Path(folder))
    return files.json_sha256({path.name: files.compute_sha256(path) for path in paths})


def read_own_config(folder: Path | str) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """(config fields by dotted name, class names) of a folder that has our own config; None for any other folder."""
    path = Path(folder, settings.CONFIG_FILE)
    config_json = files.read_json_object(path)
    if config_json.get("model_type") != settings.OWN_MODEL_TYPE:
        return None
    flat: Any = config_json.get("config")
    errors.require(isinstance(flat, dict), f"{path}: config", flat, "fields by name")
    labels = config_json.get("labels", [])
    is_valid = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    errors.require(is_valid and len({*labels}) == len(labels), f"{path}: labels", labels, "names that differ")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in flat.items()}, tuple(labels)


def export_own_tensors(params: types.Params, order_V: np.ndarray) -> dict[str, np.ndarray]:
    """Our parameters, "model" and "objective", by dotted name; the prefix "model." is left out.

    order_V: as in `read_folder`, to number entries of the vocabulary as the folder's tokenizer does.
    """
    exported = {_dotted_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    ours_V = np.argsort(order_V)
    return {
        TORCH_NAMES.get(name, name): leaf[ours_V] if name in VOCABULARY_NAMES else leaf
        for name, leaf in exported.items()
    }


def read_own_params(folder: Path | str, abstract: types.Params, order_V: np.ndarray) -> types.Params:
    """The parameters, "model" and "objective", of a folder with our own config; abstract: their shapes.

    order_V: as in `read_folder`. An older folder, which torch does not read, has our own numbers.
    """
    tensors_path = str(Path(folder, tensors.TENSOR_FILE))
    is_ordered = "auto_map" in files.read_json_object(Path(folder, settings.CONFIG_FILE))
    with tensors.open_tensors(Path(folder)) as file_by_name:

        def read_leaf(path, leaf):
            name, count = _dotted_name(path), len(file_by_name)
            name = name if name in file_by_name else TORCH_NAMES.get(name, name)
            errors.require(name in file_by_name, f"{tensors_path}: tensors", count, f"{name} among them")
            tensors.check_tensor(tensors_path, file_by_name, name, leaf.shape)
            x = tensors.read_tensor(tensors_path, file_by_name, name)
            return x[order_V] if is_ordered and name in VOCABULARY_NAMES else x

        return jax.tree_util.tree_map_with_path(read_leaf, abstract)


def _dotted_name(path) -> str:
    return ".".join(key.key for key in path).removeprefix("model.")


def write_folder(folder: Path | str, config_json: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes config.json and the tensors, and the classes that config.json names, into an existing folder."""
    if config_json["model_type"] == settings.OWN_MODEL_TYPE:
        for name in settings.TORCH_FILES[: None if config_json.get("is_encoder_decoder") else -1]:
            files.write_text(Path(folder, name), Path(__file__).with_name(name).read_text())
    files.write_json(Path(folder, settings.CONFIG_FILE), dict(config_json))
    tensors.write_tensors(Path(folder), arrays)


def _canonical_names(tensors_path, names_in_file, architecture, *, is_tied) -> dict[str, str]:
    """The name in the file of each tensor, by its canonical name."""
    names: dict[str, str] = {}
    for name_in_file in names_in_file:
        if not name_in_file.endswith(architecture.buffers):
            name = canonical_name(name_in_file, architecture, is_tied=is_tied)
            is_new = name not in names or name == architecture.lm_head_bias
            errors.require(is_new, f"{tensors_path}: {name_in_file}", names.get(name), "it once")
            names[name] = name_in_file
    if not is_tied and architecture.lm_head_bias in names:  # a file of transformers 4 has no other
        names.setdefault(f"{architecture.decoder}.bias", names[architecture.lm_head_bias])
    return names


@functools.cache
def _param_shapes(model, vocab_size) -> dict[tuple[str, ...], tuple[int, ...]]:
    init = transformer.build(dataclasses.replace(model, scan_unroll=1), vocab_size).init
    params: Any = traverse_util.flatten_dict(jax.eval_shape(init, jax.random.key(0)))
    return {path: leaf.shape for path, leaf in params.items()}


def _tensor_shape(mapping, shapes, first_position) -> tuple[int, ...]:
    shape = shapes[mapping.path][mapping.layer is not None :]
    if mapping.qkv_index is not None:
        shape = (*shape[:-1], shape[-1] // NUM_QKV)
    if mapping.path[0] == "position":
        shape = (shape[0] + first_position, shape[1])
    return shape[::-1] if mapping.transposed else shape


def _build_params(mappings, mapped, shapes, order_V, order_E) -> types.Params:
    """Our parameters; each tensor leaves `mapped` once it is copied, to save memory."""
    leaves: dict[tuple[str, ...], np.ndarray] = {  # a norm that no tensor has keeps its initial scale
        path: np.full(shape, path[-1] == "scale", np.float32) for path, shape in shapes.items()
    }
    for mapping in mappings:
        x = mapped.pop(mapping.name)
        if mapping.path in VOCABULARY_PARAMS:
            x = (model_types.extend_gpt2_embeddings(x, order_V) if len(x) < len(order_V) else x)[order_V]
            leaves[mapping.path] = np.zeros(x.shape, np.float32)
        part = mapping.select_part(leaves[mapping.path])
        part[...] = x if order_E is None or "qkv" not in mapping.path else x[order_E]
    return traverse_util.unflatten_dict(leaves)
