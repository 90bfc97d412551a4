"""The initial parameters of a model: random, those of another run's newest checkpoint, or a Hugging Face folder's."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from mlm import objectives
from mlm.base import config, errors, fields, files, types
from mlm.base.derived_fields import fill_derived_fields
from mlm.data.tasks import tasks
from mlm.data.text import corpus
from mlm.data.tokenizers import kinds
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.training.run import checkpoint, directory, pretrained_folder, resolution, trained_run
from mlm.training.step import trainable

SOURCES = ("init.run", "init.hub")
# Fields of a model that may differ from its source's: they say how it is trained and computed.
TRAINING_FIELDS = tuple(
    f"model.{name}"
    for name in (
        "dropout",
        "attention_dropout",
        "init_std",
        "depth_scaled_init",
        "chrono_init",
        "rope_theta",  # no parameters: ModernBERT raises it for longer rows
        "local_rope_theta",
        "dtype",
        "scan_unroll",
        "rnn_unroll",
        "remat",
        "remat_policy",
    )
)


def resolve(cfg: config.Config, *overrides: Mapping[str, Any]) -> config.Config:
    """The config of `resolve_layers`; overrides: fields by dotted name, each mapping a layer above those before it."""
    return resolve_layers(resolution.make_layers(cfg, *overrides)).config


def resolve_layers(layers: Sequence[fields.Layer], num_base: int = 1) -> resolution.ResolvedConfig:
    """`resolution.resolve_layers`, with the fields that are inherited from a source above the first num_base layers.

    Raises ConfigError if the source cannot be read, or a layer changes the model.
    """
    inherited_fields = inherit_fields(config.Config(), *(layer.values for layer in layers))
    origin = next((f"{name} = {inherited_fields[name]!r}" for name in SOURCES if inherited_fields.get(name)), "")
    inherited = [fields.Layer(origin, inherited_fields)] if inherited_fields else []
    resolved = resolution.resolve_layers([*layers[:num_base], *inherited, *layers[num_base:]])
    check_inherited_fields(resolved.config, inherited_fields)
    return resolved


def inherit_fields(cfg: config.Config, *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, by dotted name, that a config inherits from its source: config.init.run or config.init.hub."""
    for changes in overrides:
        cfg = fields.override(cfg, changes)
    run, hub_folder = cfg.init.run, cfg.init.hub
    errors.require(not (run and hub_folder), "config.init.hub", hub_folder, "only one of config.init.run and this")
    if not (run or hub_folder):
        return {}
    source, kind = run or hub_folder, "run" if run else "hub"
    fields.check_values(cfg)
    if not source.startswith(pretrained_folder.HUB_PREFIX):
        files.check_folder(
            f"config.init.{kind}", source, writable=False, schemes=directory.CHECKPOINT_SCHEMES if run else ()
        )
    inherited_fields = read_source_fields(source, cfg, kind=kind)
    data = fill_derived_fields(corpus.DERIVED_FIELDS, cfg).data
    language = {name for name in inherited_fields if name.startswith("data.language.")}
    if data.corpus == "language":
        errors.require(
            bool(language),
            "config.data.path",
            data.path,
            f"text to train on, or config.data.task, since {source} has a vocabulary of its own",
        )
        del inherited_fields["tokenizer.path"]  # `init_from_source` checks that the words are the same
    elif data.task not in tasks.LANGUAGE_TASKS:
        inherited_fields = {name: value for name, value in inherited_fields.items() if name not in language}
    return inherited_fields


def read_source_fields(
    source: str, cfg: config.Config, *, kind: str = "", from_scratch: bool = False
) -> dict[str, Any]:
    """The fields, by dotted name, that a config inherits from a run or a Hugging Face folder.

    They are its model, its language, the length of its examples, its tokenizer, and a digest of its parameters. If the
    source is gone, and the run in cfg.workdir began from it, the fields are those of that run.

    Args:
        kind: of the source: "run" or "hub"; "": detect it.
        from_scratch: leave out the parameters.

    Raises:
        ConfigError: there is no such source.
    """
    kind = kind or ("hub" if pretrained_folder.is_pretrained_folder(source) else "run")
    try:
        if kind == "run":
            return read_run_fields(source, from_scratch=from_scratch)
        return read_hub_fields(source, cfg, from_scratch=from_scratch)
    except errors.ConfigError:
        if files.make_path(source).exists():
            raise
        saved = directory.read_identity(cfg.workdir) or {"config": {}}
        init = {name: value for name, value in saved["config"].items() if name.startswith("init.")}
        if source not in (init.get("init.run"), init.get("init.hub")):
            raise
        return select_inherited_fields(saved["config"], cfg.workdir) | init


def read_run_fields(workdir: str, *, from_scratch: bool = False) -> dict[str, Any]:
    """`read_source_fields` of a run. Raises ConfigError if there is no run, or no checkpoint."""
    inherited_fields = select_inherited_fields(trained_run.read_identity(workdir)["config"], workdir)
    if from_scratch:
        return inherited_fields
    digest = checkpoint.read_newest_digest(workdir)
    errors.require(bool(digest), "run", workdir, "a run with a checkpoint; it has none yet")
    return inherited_fields | {"init.run": str(workdir), "init.run_sha256": digest}


def read_hub_fields(source: str, cfg: config.Config, *, from_scratch: bool = False) -> dict[str, Any]:
    """`read_source_fields` of a Hugging Face folder; examples are as long as cfg's, at most as the model allows.

    Raises ConfigError if there is no such folder, or none that a model here can be.
    """
    folder = pretrained_folder.find_folder(source)
    inherited_fields = pretrained_folder.read_model_fields(folder)
    inherited_fields |= {
        "tokenizer.path": folder,
        "pack.seq_len": min(cfg.pack.seq_len, inherited_fields["model.max_positions"]),
    }
    if from_scratch:
        return inherited_fields
    return inherited_fields | {"init.hub": source, "init.hub_sha256": pretrained_folder.compute_digest(folder)}


def select_inherited_fields(flat_config: Mapping[str, Any], workdir: str) -> dict[str, Any]:
    """The fields, by dotted name, that must be those of the run in a directory; flat: all fields of the run.

    The kernels are not among them: they follow the platform of the new run.
    """
    inherited_fields = {
        name: value for name, value in flat_config.items() if name.startswith("model.") and name != "model.kernels"
    }
    if flat_config["data.corpus"] == "language":
        inherited_fields |= {name: value for name, value in flat_config.items() if name.startswith("data.language.")}
    return inherited_fields | {
        "pack.seq_len": flat_config["pack.seq_len"],
        "tokenizer.path": str(directory.tokenizer_folder(workdir)),
    }


def check_inherited_fields(cfg: config.Config, inherited_fields: Mapping[str, Any]) -> None:
    """Raises ConfigError if the model or the vocabulary of a config is not that of its source."""
    flat, source = fields.flatten(cfg), cfg.init.run or cfg.init.hub
    for name, value in inherited_fields.items():
        if name.startswith("model.") and name not in TRAINING_FIELDS:
            errors.require(
                flat[name] == value, f"config.{name}", flat[name], f"{value!r}, as {source} has it; leave it out"
            )
    path, source_path = cfg.tokenizer.path, inherited_fields.get("tokenizer.path", "")
    if source_path not in ("", path):
        vocabularies = [
            kinds.load_tokenizer_folder("config.tokenizer.path", one).model for one in (path, source_path) if one
        ]
        errors.require(
            len(vocabularies) == 2 and vocabularies[0] == vocabularies[1],
            "config.tokenizer.path",
            path,
            f"the vocabulary of {source}; leave it out",
        )


def init_from_source(cfg: config.Config, state: types.TrainState, tokenizer: Tokenizer) -> types.TrainState:
    """A state at step 0 (numpy) with the model of config.init.run or config.init.hub, if one is set.

    tokenizer: of the training data. Raises ConfigError if the source is not as config.init.run_sha256 or
    config.init.hub_sha256 says, or has another model or vocabulary.
    """
    if cfg.init.hub:
        return _init_from_hub(cfg, state, tokenizer)
    if not cfg.init.run:
        return state
    run = trained_run.load(cfg.init.run, {}, exclusive=not directory.result_file(cfg.init.run).exists())
    errors.require(
        cfg.init.run_sha256 in ("", run.digest),
        "config.init.run_sha256",
        cfg.init.run_sha256,
        f"the state of the newest checkpoint of {cfg.init.run}, {run.digest}",
    )
    return _replace_model_params(
        cfg,
        state,
        run.program.partitioner.get_state(run.state).params["model"],
        run.cfg,
        run.tokenizer.model == tokenizer.model,
    )


def _init_from_hub(cfg, state, tokenizer):
    folder = pretrained_folder.find_folder(cfg.init.hub)
    digest = pretrained_folder.compute_digest(folder)
    errors.require(
        cfg.init.hub_sha256 in ("", digest),
        "config.init.hub_sha256",
        cfg.init.hub_sha256,
        f"what is in {cfg.init.hub}, {digest}",
    )
    source = pretrained_folder.read_folder(folder)
    model, parts = source.params["model"], ["its encoder"]
    if not source.has_lm_head:
        own = state.params["model"]
        model = model | {name: own[name] for name in trainable.LM_HEAD_PARAMS if name in own}
    if objectives.get_visibility(cfg) != types.Visibility.FULL:
        parts.append("its output layer" if source.has_lm_head else "a new output layer")
    state = _replace_model_params(cfg, state, model, source.cfg, source.tokenizer.model == tokenizer.model)
    head = state.params["objective"]
    if cfg.finetune.pooling == "first" and cfg.finetune.pooler == "bert" and "pool" in head:
        pooler = source.read_pooler()
        if pooler is not None and pooler["kernel"].shape == head["pool"]["kernel"].shape:
            state = state._replace(params=state.params | {"objective": head | {"pool": pooler}})
            parts.append("its pooler")
        else:
            parts.append("a new pooler")
    if cfg.finetune.pooler == "modernbert" and "pool_norm" in head and source.has_lm_head:
        pool = {"pool": model["transform"], "pool_norm": model["transform_norm"]}
        if jax.tree.map(np.shape, pool) == jax.tree.map(np.shape, {name: head[name] for name in pool}):
            state = state._replace(params=state.params | {"objective": head | pool})
            parts.append("its output layer's first part as pooler")
    if cfg.objective == "replaced_token_detection" and (discriminator_head := source.read_discriminator_head()):
        state = state._replace(params=state.params | {"objective": head | discriminator_head})
        parts.append("its discriminator's head")
    logging.info("initial parameters: %s: %s", cfg.init.hub, ", ".join(parts))
    return state


def _replace_model_params(cfg, state, model_params, source_cfg, has_same_vocabulary):
    field = f"config.init.{'run' if cfg.init.run else 'hub'} = {cfg.init.run or cfg.init.hub!r}"
    source_shapes, shapes = (
        jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree) for tree in (model_params, state.params["model"])
    )
    if source_shapes != shapes:
        raise errors.ConfigError(
            f"{field}: expected a run of the same model; "
            f"{_describe_differences(cfg, source_cfg) or 'its vocabulary has another size'}"
        )
    if not has_same_vocabulary:
        raise errors.ConfigError(
            f"{field}: expected the vocabulary of the training data, and it has another; leave "
            "config.tokenizer.path out to use its own"
        )
    return state._replace(params=state.params | {"model": model_params})


def _describe_differences(cfg: config.Config, source_cfg: config.Config) -> str:
    flat, source_flat = (_select_model_fields(config_) for config_ in (cfg, source_cfg))
    return ", ".join(
        f"config.{name} is {source_flat[name]!r} there and {value!r} here"
        for name, value in flat.items()
        if source_flat[name] != value
    )


def _select_model_fields(cfg: config.Config) -> Mapping[str, Any]:
    return {name: value for name, value in fields.flatten(cfg).items() if name.startswith("model.")}


def choose_finetuning_folder(source: str, name: str) -> Path:
    """The directory of a fine-tuning of a run or of a Hugging Face folder; nothing is written into the latter."""
    is_external = pretrained_folder.is_pretrained_folder(source) or not files.make_path(source).exists()
    source_name = Path(os.path.abspath(source)).name.partition("@")[0]
    return directory.finetuning_folder(Path("runs", source_name) if is_external else source, name)
