"""A Hugging Face folder as config, vocabulary and parameters: what `mlm.open` uses, and what a run starts from."""
import functools
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from mlm import models, objectives
from mlm.base import config, errors, fields, files, types
from mlm.data.rows import labelled
from mlm.data.tokenizers import hub as vocabulary
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.models.hub import heads, hub, settings, tensors
from mlm.models.sizes import SIZES
from mlm.train.step import program

NAMED = "hf:"                # before a model's name on huggingface.co: nothing else is looked for in a network
FETCHED = (settings.NAME, tensors.NAME, vocabulary.FILE, vocabulary.KNOBS, vocabulary.OLDER, vocabulary.WORDS,
           *vocabulary.MERGED)
SCORES = {"regress": "pearson"}  # what an opened model's objective is built to count; of classes and tags accuracy


class Folder(NamedTuple):
    """What a folder holds."""

    cfg: config.Config              # resolved: its model and objective, its longest row
    tokenizer: Tokenizer
    about: types.DatasetInfo
    params: types.Params            # "model" and "objective", numpy
    output: bool = True             # whether an output layer over the vocabulary is among them
    source: hub.Read | None = None  # what else it held; None: written with a config of our own

    def pooler(self) -> types.Params | None:
        """That of BERT, where it has one."""
        return heads.pooler(self.source.rest) if self.source is not None else None


def is_one(place: str) -> bool:
    """Whether a place is a Hugging Face folder, or names a model there."""
    return place.startswith(NAMED) or hub.is_one(place)


def local(place: str) -> str:
    """The folder that a place is: itself, or of hf:ORG/NAME, hf:ORG/NAME@REVISION, what huggingface_hub keeps of it.

    That is fetched where it is not there yet. Raises ConfigError where it cannot be, and without that library.
    """
    if not place.startswith(NAMED):
        return place
    name, _, revision = place.removeprefix(NAMED).partition("@")
    try:
        import huggingface_hub
    except ImportError:
        raise errors.ConfigError(f"{place}: expected the library huggingface_hub to fetch it by (pip install -e "
                                 ".[hub]), or a folder that holds the model") from None
    try:
        return huggingface_hub.snapshot_download(name, revision=revision or None, allow_patterns=list(FETCHED))
    except Exception as error:  # of the network, the name, the server, the disk
        raise errors.ConfigError(f"{place}: cannot be fetched ({errors.first_line(error)}); expected the name of a model on " "huggingface.co, and a network") from None


def read(folder: Path | str) -> Folder:
    """Raises ConfigError for a folder that is none of Hugging Face's, is broken, or of a model that ours cannot be."""
    tokenizer = vocabulary.read(folder)
    if (own := hub.own(folder)) is not None:
        kept, classes = own
        cfg = _own(folder, kept)
        about = about_of(cfg, tokenizer, classes)
        abstract = jax.eval_shape(functools.partial(_drawn, *program.parts(cfg, about)), jax.random.key(0))
        return Folder(cfg, tokenizer, about, hub.read_own(folder, abstract))
    found = hub.read(folder, vocabulary.order(tokenizer))
    cfg = fields.override(config.Config(workdir=str(folder), model=found.model),
                          {"pack.seq_len": found.model.max_positions,
                           "objective": objectives.of_tokens(found.model.context)})
    head = found.head
    if head is not None:
        cfg = fields.override(cfg, {"objective": head.objective, "data.corpus": "task",
                                    "data.labelled.scores": SCORES.get(head.objective, "accuracy")})
    cfg = objectives.resolve(cfg)
    about = about_of(cfg, tokenizer, head.classes if head else ())
    params = {"model": found.params, "objective": head.params if head else {}}
    return Folder(cfg, tokenizer, about, params, found.output, found._replace(params=None))


def _drawn(model, objective, key):
    return {"model": model.init(key), "objective": objective.init(key, model)}


def _own(folder, kept) -> config.Config:
    """The config of a folder that was written with one of ours."""
    cfg = fields.override(config.Config(), kept | {"workdir": str(folder)})
    fields.check_values(cfg)
    cfg = objectives.resolve(models.resolve(cfg))
    models.check(cfg)
    objectives.check(cfg)
    return cfg


def about_of(cfg: config.Config, tokenizer: Tokenizer, classes: tuple[str, ...] = ()) -> types.DatasetInfo:
    """What a model and its objective are built for; of each entry and each class there is as much."""
    once_V = np.ones(tokenizer.vocab_size, np.int64)
    if objectives.seen(cfg) == "row":
        return labelled.about(cfg, tokenizer.vocab_size, once_V, classes)
    return types.DatasetInfo(tokenizer.vocab_size, cfg.pack.seq_len, (), once_V.tobytes())


def model_of(folder: Path | str) -> dict[str, Any]:
    """The fields of config.model, by dotted name, of a folder; its size is that of ours which is nearest."""
    if (own := hub.own(folder)) is not None:
        cfg = _own(folder, own[0])
    else:
        model = hub.model_of(folder)
        near = min(SIZES["transformer"].items(), key=lambda row: abs(np.log(_weights(**row[1]) / _weights(
            model.num_layers, model.width))))
        cfg = fields.override(config.Config(model=model), {"model.size": near[0]})
    return {name: value for name, value in fields.flatten(cfg).items() if name.startswith("model.")}


def _weights(num_layers, width, **_) -> float:
    return float(num_layers) * width**2


def content(folder: Path | str) -> str:
    """SHA-256 of config.json, the tensors and the vocabulary. Raises ConfigError where one is missing or broken."""
    changed = [(path.name, path.stat().st_mtime_ns, path.stat().st_size)
               for name in FETCHED if (path := Path(folder, name)).exists()]
    return _content(str(folder), tuple(changed))


@functools.lru_cache
def _content(folder, changed):
    words = hashlib.sha256(vocabulary.read(folder).model).hexdigest()
    return files.sha256({"model": hub.digest(folder), "vocabulary": words})


def found(place: str) -> str:
    """`local`. Raises ConfigError for a path that is no Hugging Face folder."""
    folder = local(place)
    errors.require(hub.is_one(folder), "config.init.hub", place, "a Hugging Face folder (config.json, "
                  "model.safetensors, a tokenizer), or hf:ORG/NAME")
    return folder
