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
from mlm.models.hub import heads, hub
from mlm.models.sizes import SIZES
from mlm.train.step import program

SCORES = {"regress": "pearson"}  # what an opened model's objective is built to count; of classes and tags accuracy


class Folder(NamedTuple):
    """What a folder holds."""

    cfg: config.Config              # resolved: its model and objective, its longest row
    tokenizer: Tokenizer
    about: types.About
    params: types.Params            # "model" and "objective", numpy
    output: bool = True             # whether an output layer over the vocabulary is among them
    source: hub.Read | None = None  # what else it held; None: written with a config of our own

    def pooler(self) -> types.Params | None:
        """That of BERT, where it has one."""
        return heads.pooler(self.source.rest) if self.source is not None else None


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
                          {"pack.length": found.model.max_positions})
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


def about_of(cfg: config.Config, tokenizer: Tokenizer, classes: tuple[str, ...] = ()) -> types.About:
    """What a model and its objective are built for; of each entry and each class there is as much."""
    once_V = np.ones(tokenizer.vocab_size, np.int64)
    if objectives.seen(cfg) == "row":
        return labelled.about(cfg, tokenizer.vocab_size, once_V, classes)
    return types.About(tokenizer.vocab_size, cfg.pack.length, (), once_V.tobytes())


def model_of(folder: Path | str) -> dict[str, Any]:
    """The fields of config.model, by dotted name, of a folder; its size is that of ours which is nearest."""
    if (own := hub.own(folder)) is not None:
        cfg = _own(folder, own[0])
    else:
        model = hub.model_of(folder)
        near = min(SIZES["transformer"].items(), key=lambda row: abs(np.log(_weights(**row[1]) / _weights(
            model.layers, model.width))))
        cfg = fields.override(config.Config(model=model), {"model.size": near[0]})
    return {name: value for name, value in fields.flatten(cfg).items() if name.startswith("model.")}


def _weights(layers, width, **_) -> float:
    return float(layers) * width**2


def content(folder: Path | str) -> str:
    """SHA-256 of config.json, the tensors and the vocabulary. Raises ConfigError where one is missing or broken."""
    changed = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(Path(folder).glob("*.*"))]
    return _content(str(folder), tuple(changed))


@functools.lru_cache
def _content(folder, changed):
    words = hashlib.sha256(vocabulary.read(folder).model).hexdigest()
    return files.sha256({"model": hub.digest(folder), "vocabulary": words})


def check(folder: Path | str) -> None:
    """Raises ConfigError for a path that is no Hugging Face folder."""
    errors.expect(hub.is_one(folder), "config.start.hub", str(folder), "a Hugging Face folder (config.json, "
                  "model.safetensors, a tokenizer)")
