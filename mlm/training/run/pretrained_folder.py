"""A Hugging Face folder as config, vocabulary and parameters, to load or to initialize a run from."""

import functools
import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from mlm import models, objectives
from mlm.base import config, errors, extras, fields, files, types
from mlm.data.rows import labelled
from mlm.data.tokenizers import hub as vocabulary
from mlm.data.tokenizers.hub_model import get_original_ids
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.models import SIZES
from mlm.models.hub import heads, hub, settings, tensors
from mlm.training.step import program

HUB_PREFIX = "hf:"  # before the name of a model on huggingface.co; no other path uses the network
TENSOR_FILES = tensors.TENSOR_FILE, tensors.SHARD_INDEX_FILE, tensors.SHARD_GLOB
DOWNLOADED_FILES = (settings.CONFIG_FILE, *TENSOR_FILES, *vocabulary.FOLDER_FILES)
DEFAULT_SCORES = {"regression": "pearson", "extractive_qa": "f1"}  # of a loaded model's objective; else accuracy


class PretrainedModel(NamedTuple):
    """A trained model, read from a Hugging Face folder or a run."""

    cfg: config.Config  # resolved; of a folder: its model and objective, its longest examples
    tokenizer: Tokenizer
    dataset_info: types.DatasetInfo
    params: types.Params  # "model" and "objective", numpy
    has_lm_head: bool = True  # whether the parameters have an output layer over the vocabulary
    source: hub.HubModel | None = None  # what else it has; None: written with a config of this project
    digest: str = ""  # of an opened folder (`compute_digest`), or of a run's checkpoint

    def read_discriminator_head(self) -> types.Params:
        """The head of ELECTRA's discriminator; {} if the folder has none, or one of another activation than ours."""
        if self.source is None or self.cfg.model.activation != "gelu":
            return {}
        return heads.read_discriminator_head(self.source.unused_tensors)

    def read_pooler(self) -> types.Params | None:
        """BERT's or ALBERT's pooler, if the folder has one."""
        return heads.read_pooler(self.source.unused_tensors) if self.source is not None else None


def is_pretrained_folder(path: str) -> bool:
    """Whether a path is a Hugging Face folder, or hf:ORG/NAME."""
    return path.startswith(HUB_PREFIX) or hub.is_hub_folder(path)


def choose_workdir(path: str) -> Path:
    """The directory of the results of a Hugging Face folder; nothing is written into the folder."""
    return Path("runs", Path(os.path.abspath(path)).name.partition("@")[0])


def open_folder(path: str, field: str = "config.init.hub") -> PretrainedModel:
    """`read_folder` of `find_folder`, with its digest."""
    folder = find_folder(path, field)
    return read_folder(folder)._replace(digest=compute_digest(folder))


def read_folder(folder: Path | str) -> PretrainedModel:
    """Reads a Hugging Face folder. Raises ConfigError if it is none, is broken, or has an unsupported model."""
    tokenizer = vocabulary.read_tokenizer(folder)
    if (saved := hub.read_own_config(folder)) is not None:
        values, classes = saved
        cfg = _resolve_saved_config(folder, values)
        dataset_info = make_dataset_info(cfg, tokenizer, classes)
        model, objective = program.build_model_and_objective(cfg, dataset_info)
        init = lambda key: {"model": model.init(key), "objective": objective.init(key, model)}
        abstract = jax.eval_shape(init, jax.random.key(0))
        params = hub.read_own_params(folder, abstract, get_original_ids(tokenizer))
        return PretrainedModel(cfg, tokenizer, dataset_info, params)
    pretrained = hub.read_folder(folder, get_original_ids(tokenizer))
    model, head = pretrained.model, pretrained.label_head
    values = {"pack.seq_len": model.max_positions, "objective": objectives.find_token_objective(model.directionality)}
    if head is not None:
        values |= {
            "objective": head.objective,
            "data.corpus": "task",
            "data.labelled.scores": DEFAULT_SCORES.get(head.objective, "accuracy"),
            "data.labelled.choice_columns": ",".join(head.choices),
            "finetune.pooler": head.pooler,
            "finetune.pooling": head.pooling,
        }
    cfg = fields.override(config.Config(workdir=str(folder), model=model), values)
    cfg = fields.fill_derived_fields(objectives.DERIVED_FIELDS, cfg)
    dataset_info = make_dataset_info(cfg, tokenizer, head.classes if head else ())
    params = {"model": pretrained.params, "objective": head.params if head else {}}
    return PretrainedModel(
        cfg, tokenizer, dataset_info, params, pretrained.has_lm_head, pretrained._replace(params=None)
    )


def _resolve_saved_config(folder, values) -> config.Config:
    """The config of a folder that was written with a config of this project."""
    cfg = fields.override(config.Config(), values | {"workdir": str(folder)})
    fields.check_values(cfg)
    cfg = fields.fill_derived_fields((*models.DERIVED_FIELDS, *objectives.DERIVED_FIELDS), cfg)
    models.check(cfg)
    objectives.check(cfg)
    return cfg


def make_dataset_info(cfg: config.Config, tokenizer: Tokenizer, classes: tuple[str, ...] = ()) -> types.DatasetInfo:
    """The dataset that a model and its objective are built for, with equal counts of all tokens and classes."""
    once_V = np.ones(tokenizer.vocab_size, np.int64)
    if objectives.get_visibility(cfg) == types.Visibility.FULL:
        return labelled.build_dataset_info(cfg, tokenizer.vocab_size, once_V, classes)
    return types.DatasetInfo(
        tokenizer.vocab_size, cfg.pack.seq_len, (), once_V.tobytes(), source_len=cfg.pack.source_len
    )


def read_model_fields(folder: Path | str) -> dict[str, Any]:
    """The fields of config.model, by dotted name, of a folder; model.size is the nearest of SIZES."""
    if (saved := hub.read_own_config(folder)) is not None:
        cfg = _resolve_saved_config(folder, saved[0])
    else:
        model = hub.read_model_config(folder)
        weights = _weights(model.num_layers, model.width)
        nearest = min(SIZES["transformer"].items(), key=lambda row: abs(np.log(_weights(**row[1]) / weights)))
        cfg = fields.override(config.Config(model=model), {"model.size": nearest[0]})
    return {name: value for name, value in fields.flatten(cfg).items() if name.startswith("model.")}


def _weights(num_layers, width, **_) -> float:
    return float(num_layers) * width**2


def compute_digest(folder: Path | str) -> str:
    """The SHA-256 of config.json, the tensors and the vocabulary. Raises ConfigError if one is missing or broken."""
    paths = [path for name in DOWNLOADED_FILES if (path := Path(folder, name)).exists()]
    changed = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
    return _compute_digest(str(folder), tuple(changed))


@functools.lru_cache
def _compute_digest(folder, changed):
    words = hashlib.sha256(vocabulary.read_tokenizer(folder).model).hexdigest()
    return files.json_sha256({"model": hub.compute_digest(folder), "vocabulary": words})


def find_folder(path: str, field: str = "config.init.hub") -> str:
    """The local folder of a path; downloads hf:ORG/NAME[@REVISION]. Raises ConfigError for no Hugging Face folder."""
    folder = path
    if path.startswith(HUB_PREFIX):
        folder = extras.download_from_hub(path, path.removeprefix(HUB_PREFIX), DOWNLOADED_FILES)
    expected = "a Hugging Face folder (config.json, model.safetensors, a tokenizer), or hf:ORG/NAME"
    errors.require(hub.is_hub_folder(folder), field, path, expected)
    return folder
