"""A folder of Hugging Face's as config fields and parameters, and back.

Letters in array names: P positions of their table, R those of it before a row's first token.
"""
import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from mlm.base import config, errors, files, types
from mlm.base.special import NUM_SPECIAL
from mlm.models import transformer
from mlm.models.hub import bert, gpt2, heads, settings, tensors

TABLES = {**dict.fromkeys(bert.KINDS, bert), **dict.fromkeys(gpt2.KINDS, gpt2)}  # of names, by model_type
ENTRIES = (("token", "embedding"), ("bias",))  # of ours, a row for each entry of the vocabulary


class Read(NamedTuple):
    """What a folder holds."""

    model: config.Model
    params: types.Params            # of the model, numpy, float32
    settings: dict[str, Any]        # its config.json
    rest: dict[str, np.ndarray]     # what the model has no place for: a pooler, positions of padding
    output: bool                    # whether an output layer over the vocabulary is among the parameters
    head: heads.Head | None = None  # of labels, where it was fine-tuned to tell them


def is_one(folder: Path | str) -> bool:
    """Whether a folder has any file by which Hugging Face's are known, and no directory of a run."""
    there = (settings.NAME, tensors.NAME, tensors.SHARDS, *tensors.PICKLES)
    if any(Path(folder, name).exists() for name in there[1:]):
        return True
    try:
        return "model_type" in settings.parsed(Path(folder, there[0]))
    except errors.ConfigError:
        return False


def read(folder: Path | str, order_V: np.ndarray) -> Read:
    """The model of a folder. order_V: the number there of each entry of our vocabulary.

    Raises ConfigError for files that are not there, broken, of a model that ours cannot be, or unlike one another.
    """
    folder = Path(folder)
    where = str(folder / settings.NAME)
    said = settings.parsed(folder / settings.NAME)
    model, vocab_size, first = _model(where, said)
    table, kind = _table(said)
    have = len(order_V) - (order_V >= vocab_size)[:NUM_SPECIAL].sum() * (table is gpt2)
    errors.require(vocab_size == have, f"{where}: vocab_size", vocab_size,
                  f"{have}, which the tokenizer beside it has")
    at = str(folder / tensors.NAME)
    with tensors.reading(folder) as file:
        called = _names(at, file.keys(), table, kind)
        outer = {place.path: place for place in table.places(kind, 0)}
        output = not any(place.head for place in outer.values()) or any(
            place.head and place.name in called for place in outer.values())
        for place in table.places(kind, model.num_layers):
            errors.require(place.name in called or (place.head and not output), f"{at}: tensors", len(called),
                          f"{place.name} among them")
        wanted = [place for place in table.places(kind, model.num_layers) if output or not place.head]
        shapes = _shapes(model, vocab_size)
        for place in wanted:
            tensors.check(at, file, called[place.name], _their_shape(place, shapes, first))
        theirs = {place.name: tensors.read(file, called[place.name]) for place in wanted}
        others = {name: tensors.read(file, mine) for name, mine in called.items()
                  if name not in theirs and file.get_slice(mine).get_dtype() in tensors.FLOATS}
    table_VxD = theirs[outer["token", "embedding"].name]
    for name in [name for name in others if name.startswith(table.DECODERS)]:
        same = others.pop(name)
        errors.require(same.ndim != 2 or np.array_equal(same, table_VxD), f"{at}: {name}", same.shape,
                      "the embeddings of the vocabulary, since ours are tied to the output layer")
    head = heads.read(where, said, at, others)
    name = outer["position", "embedding"].name
    others[name], theirs[name] = np.split(theirs[name], [first])
    return Read(model, _ours(wanted, theirs, shapes, order_V), said, others, output, head)


def tensors_of(params: types.Params, said: Mapping[str, Any], order_V: np.ndarray,
               rest: Mapping[str, np.ndarray] | None = None, *, output: bool = True) -> dict[str, np.ndarray]:
    """Their tensors of our parameters, by the config.json that they go with; the inverse of `read`."""
    (table, kind), found = _table(said), dict(rest or {})
    leaves = {tuple(key.key for key in path): np.asarray(leaf)
              for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    if ("type", "embedding") not in leaves:  # ours may have none
        leaves["type", "embedding"] = np.zeros((1, leaves["token", "embedding"].shape[1]), np.float32)
    for place in table.places(kind, said[table.SIZES["num_layers"]]):
        if place.head and not output:
            continue
        x = leaves[place.path] if place.layer is None else leaves[place.path][place.layer]
        if place.part is not None:
            x = np.split(x, len(bert.QKV), -1)[place.part]
        if place.path in ENTRIES:
            x = x[np.argsort(order_V)]
        if place.path[0] == "position":
            missing = said.get("max_position_embeddings", len(x)) - len(x)
            x = np.concatenate([found.get(place.name, np.zeros((missing, x.shape[1]), x.dtype)), x])
        found[place.name] = x.T if place.turned else x
    return found


def model_of(folder: Path | str) -> config.Model:
    """What a folder's config.json says of its model. Raises ConfigError for what ours cannot be."""
    path = Path(folder, settings.NAME)
    return _model(str(path), settings.parsed(path))[0]


def said_of(model: config.Model, order_V: np.ndarray, *, output: bool = True) -> dict[str, Any]:
    """config.json of a model of ours, with an output layer over the vocabulary or labels of its own.

    Raises ConfigError, saying why, for one that no class of theirs is.
    """
    return gpt2.of(model, order_V) if output and model.context == "left" else settings.of(model, order_V)


def grown(said: Mapping[str, Any], order_V: np.ndarray) -> dict[str, Any]:
    """What of a config.json is otherwise where its vocabulary has all our special tokens."""
    return gpt2.grown(order_V) if _table(said)[0] is gpt2 else {}


def _table(said):
    """(the file of their names, which kind it is there) by a config.json."""
    table = TABLES[said["model_type"]]
    return table, table.KINDS[said["model_type"]]


def _model(where, said):
    return (gpt2 if said.get("model_type") in gpt2.KINDS else settings).read(where, said)


def digest(folder: Path | str) -> str:
    """SHA-256 of config.json and the tensors. Raises ConfigError where one is not there."""
    with tensors.reading(Path(folder)):
        pass
    settings.parsed(Path(folder, settings.NAME))
    found = {}
    for name in (settings.NAME, tensors.NAME):
        with Path(folder, name).open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return files.sha256(found)


def own(folder: Path | str) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """The fields, by dotted name, and the labels of a folder that was written with a config of our own; or None."""
    path = Path(folder, settings.NAME)
    said = settings.parsed(path)
    if said.get("model_type") != settings.OURS:
        return None
    kept = said.get("config")
    errors.require(isinstance(kept, dict), f"{path}: config", kept, "fields by name")
    labels = said.get("labels", [])
    right = isinstance(labels, list) and all(isinstance(one, str) for one in labels)
    errors.require(right, f"{path}: labels", labels, "names")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}, tuple(labels)


def own_tensors(params: types.Params) -> dict[str, np.ndarray]:
    """Our parameters, "model" and "objective", by their own names, which dots join; the model's begin with no "model".
    """
    return {_dotted(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def read_own(folder: Path | str, abstract: types.Params) -> types.Params:
    """The parameters, "model" and "objective", of a folder with a config of our own, of these shapes."""
    at = str(Path(folder, tensors.NAME))
    with tensors.reading(Path(folder)) as file:
        there = set(file.keys())

        def one(path, leaf):
            name = _dotted(path)
            errors.require(name in there, f"{at}: tensors", len(there), f"{name} among them")
            tensors.check(at, file, name, leaf.shape)
            return tensors.read(file, name)

        return jax.tree_util.tree_map_with_path(one, abstract)


def _dotted(path) -> str:
    return ".".join(key.key for key in path).removeprefix("model.")


def write(folder: Path | str, said: Mapping[str, Any], found: Mapping[str, np.ndarray]) -> None:
    """Writes config.json and the tensors into a folder, which exists."""
    files.write_json(Path(folder, settings.NAME), dict(said))
    tensors.write(Path(folder), found)


def _names(at, names, table, kind) -> dict[str, str]:
    """The name in the file of each tensor by its canonical one."""
    called: dict[str, str] = {}
    for name in names:
        if not name.endswith(table.BUFFERS):
            mine = table.canonical(name, kind)
            errors.require(mine not in called or mine == kind.bias, f"{at}: {name}", called.get(mine), "it once")
            called[mine] = name
    return called


@functools.cache
def _shapes(model, vocab_size) -> dict[tuple[str, ...], tuple[int, ...]]:
    made = transformer.build(dataclasses.replace(model, scan_unroll=1), vocab_size)
    tree = jax.eval_shape(made.init, jax.random.key(0))
    return {tuple(key.key for key in path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _their_shape(place, shapes, first) -> tuple[int, ...]:
    shape = shapes[place.path][place.layer is not None:]
    if place.part is not None:
        shape = (*shape[:-1], shape[-1] // len(bert.QKV))
    if place.path[0] == "position":
        shape = (shape[0] + first, shape[1])
    return shape[::-1] if place.turned else shape


def _ours(wanted, theirs, shapes, order_V) -> types.Params:
    leaves: dict[tuple[str, ...], np.ndarray] = {path: np.zeros(shape, np.float32) for path, shape in shapes.items()}
    for place in wanted:
        x = theirs.pop(place.name)
        if place.path in ENTRIES:
            x = (gpt2.entries(x, order_V) if len(x) < len(order_V) else x)[order_V]
            leaves[place.path] = np.zeros(x.shape, np.float32)
        leaf = leaves[place.path] if place.layer is None else leaves[place.path][place.layer]
        if place.part is not None:
            leaf = np.split(leaf, len(bert.QKV), -1)[place.part]
        leaf[...] = x.T if place.turned else x
    tree: dict = {}
    for path, leaf in leaves.items():
        below = tree
        for name in path[:-1]:
            below = below.setdefault(name, {})
        below[path[-1]] = leaf
    return tree
