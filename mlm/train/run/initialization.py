"""The first parameters of a model: drawn, another run's, its newest checkpoint's, or a Hugging Face folder's."""
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from absl import logging

from mlm import objectives
from mlm.base import config, errors, fields, files, types
from mlm.data.tasks import tasks
from mlm.data.tokenizers import kinds
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.train import resolution
from mlm.train.run import checkpoint, directory, pretrained_folder, trained_run
from mlm.train.step import trainable

# Fields of a model that say how it is trained and computed, not what it is.
FREE = tuple(f"model.{name}" for name in ("dropout", "attention_dropout", "init_std", "dtype", "scan_unroll",
                                          "rnn_unroll", "remat", "fused_kernels", "disabled_kernels"))


def resolve(cfg: config.Config, *above: Mapping[str, Any]) -> config.Config:
    """`recipe.resolve`, with what a config takes from where it starts between itself and what is set above it.

    Raises ConfigError where that cannot be read, and for a field above it that says otherwise of the model.
    """
    taken = given(cfg, *above)
    made = resolution.resolve(cfg, taken, *above) if taken else resolution.resolve(cfg, *above)
    check_same(made, taken)
    return made


def given(cfg: config.Config, *above: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, by dotted name, that a config takes from config.init.run or config.init.hub, as `resolve` does."""
    for changes in above:
        cfg = fields.override(cfg, changes)
    run, hub_folder = cfg.init.run, cfg.init.hub
    errors.require(not (run and hub_folder), "config.init.hub", hub_folder, "none beside config.init.run, or that not")
    if not (run or hub_folder):
        return {}
    place = run or hub_folder
    fields.check_values(cfg)
    if not place.startswith(pretrained_folder.NAMED):
        files.check_folder(f"config.init.{'run' if run else 'hub'}", place, writing=False,
                           schemes=directory.SCHEMES if run else ())
    taken = of(place, cfg, kind="run" if run else "hub")
    data, row = cfg.data, cfg.data.corpus
    corpus = row if row != "auto" else "task" if data.task else "text" if data.path else "language"
    language = {name for name in taken if name.startswith("data.language.")}
    if corpus == "language":
        errors.require(bool(language), "config.data.path", data.path, "text to go on with, or config.data.task, since "
                      f"{place} has a vocabulary of its own")
        del taken["tokenizer.path"]  # `begin` sees whether the words are the same
    elif data.task not in tasks.DRAWN:
        taken = {name: value for name, value in taken.items() if name not in language}
    return taken


def of(place: str, cfg: config.Config, *, kind: str = "", drawn: bool = False) -> dict[str, Any]:
    """The fields, by dotted name, that a config takes from the run or the Hugging Face folder that it starts from.

    Its model, its language, the length of its rows, its tokenizer, and what it holds now, as a digest; drawn: without
    its parameters. Where it is gone, and the run in cfg.workdir began from it, they are what that one took. kind: "run"
    or "hub"; "": as it looks. Raises ConfigError where there is neither.
    """
    kind = kind or ("hub" if pretrained_folder.is_one(place) else "run")
    try:
        return of_run(place, drawn=drawn) if kind == "run" else of_hub(place, cfg, drawn=drawn)
    except errors.ConfigError:
        if files.path(place).exists():
            raise
        saved = directory.read_identity(cfg.workdir) or {"config": {}}
        began = {name: value for name, value in saved["config"].items() if name.startswith("start.")}
        if place not in (began.get("init.run"), began.get("init.hub")):
            raise
        return model_of(saved["config"], cfg.workdir) | began


def of_run(workdir: str, *, drawn: bool = False) -> dict[str, Any]:
    """`of` a run. Raises ConfigError where there is none, or no checkpoint."""
    taken = model_of(trained_run.origin(workdir)["config"], workdir)
    if drawn:
        return taken
    digest = checkpoint.newest_digest(workdir)
    errors.require(bool(digest), "run", workdir, "a run with a checkpoint; it has none yet")
    return taken | {"init.run": str(workdir), "init.run_sha256": digest}


def of_hub(place: str, cfg: config.Config, *, drawn: bool = False) -> dict[str, Any]:
    """`of` a Hugging Face folder; rows are as long as cfg's, at most as the model's. Raises ConfigError for no folder
    of theirs, and for one that ours cannot be."""
    here = pretrained_folder.found(place)
    taken = pretrained_folder.model_of(here)
    taken |= {"tokenizer.path": here, "pack.seq_len": min(cfg.pack.seq_len, taken["model.max_positions"])}
    return taken if drawn else taken | {"init.hub": place, "init.hub_sha256": pretrained_folder.content(here)}


def model_of(flat: Mapping[str, Any], workdir: str) -> dict[str, Any]:
    """The fields, by dotted name, that are not to differ from those of a run in a directory; flat: the run's own."""
    taken = {name: value for name, value in flat.items() if name.startswith("model.")}
    if flat["data.corpus"] == "language":
        taken |= {name: value for name, value in flat.items() if name.startswith("data.language.")}
    return taken | {"pack.seq_len": flat["pack.seq_len"], "tokenizer.path": str(directory.tokenizer_folder(workdir))}


def check_same(cfg: config.Config, taken: Mapping[str, Any]) -> None:
    """Raises ConfigError where the model of a config, or its vocabulary, is another than it took from where it starts.
    """
    flat, place = fields.flatten(cfg), cfg.init.run or cfg.init.hub
    for name, value in taken.items():
        if name.startswith("model.") and name not in FREE:
            errors.require(flat[name] == value, f"config.{name}", flat[name], f"{value!r}, as {place} has it; leave it "
                          "out")
    mine, its = cfg.tokenizer.path, taken.get("tokenizer.path", "")
    if its not in ("", mine):
        words = [kinds.given("config.tokenizer.path", path).model for path in (mine, its) if path]
        errors.require(len(words) == 2 and words[0] == words[1], "config.tokenizer.path", mine,
                      f"the vocabulary of {place}; leave it out")


def begin(cfg: config.Config, state: types.TrainState, tokenizer: Tokenizer) -> types.TrainState:
    """A state at step 0 (numpy), its model that of config.init.run or config.init.hub where there is one.

    tokenizer: of the rows to train on. Raises ConfigError where what is there is not config.init.run_sha256 or
    config.init.hub_sha256, or is of another model or vocabulary.
    """
    if cfg.init.hub:
        return _of_folder(cfg, state, tokenizer)
    if not cfg.init.run:
        return state
    run = trained_run.load(cfg.init.run, {}, alone=not directory.end(cfg.init.run).exists())
    errors.require(cfg.init.run_sha256 in ("", run.digest), "config.init.run_sha256", cfg.init.run_sha256,
                  f"the state of the newest checkpoint of {cfg.init.run}, {run.digest}")
    return _with_model(cfg, state, run.program.run.get_state(run.state).params["model"], run.cfg,
                       run.tokenizer.model == tokenizer.model)


def _of_folder(cfg, state, tokenizer):
    here = pretrained_folder.found(cfg.init.hub)
    content = pretrained_folder.content(here)
    errors.require(cfg.init.hub_sha256 in ("", content), "config.init.hub_sha256", cfg.init.hub_sha256,
                  f"what is in {cfg.init.hub}, {content}")
    found = pretrained_folder.read(here)
    model, said = found.params["model"], ["its encoder"]
    if not found.output:
        model = model | {name: state.params["model"][name] for name in trainable.OUTPUT}
    if objectives.seen(cfg) != "row":
        said.append("its output layer" if found.output else "an output layer drawn")
    state = _with_model(cfg, state, model, found.cfg, found.tokenizer.model == tokenizer.model)
    head = state.params["objective"]
    if cfg.finetune.pooling == "first" and "pool" in head:
        pooler = found.pooler()
        if pooler is not None and pooler["kernel"].shape == head["pool"]["kernel"].shape:
            state = state._replace(params=state.params | {"objective": head | {"pool": pooler}})
            said.append("its pooler")
        else:
            said.append("a pooler drawn")
    logging.info("first parameters: %s: %s", cfg.init.hub, ", ".join(said))
    return state


def _with_model(cfg, state, model, its, same_words):
    where = f"config.init.{'run' if cfg.init.run else 'hub'} = {cfg.init.run or cfg.init.hub!r}"
    have, want = (jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)
                  for tree in (model, state.params["model"]))
    if have != want:
        raise errors.ConfigError(f"{where}: expected a run of the same model; "
                                 f"{_differing(cfg, its) or 'its vocabulary is of another size'}")
    if not same_words:
        raise errors.ConfigError(f"{where}: expected the vocabulary of the rows to train on, and it has another; "
                                 "config.tokenizer.path names its own where it is left out")
    return state._replace(params=state.params | {"model": model})


def _differing(cfg: config.Config, other: config.Config) -> str:
    mine, its = (_model(one) for one in (cfg, other))
    return ", ".join(f"config.{name} is {its[name]!r} there and {value!r} here" for name, value in mine.items()
                     if its[name] != value)


def _model(cfg: config.Config) -> Mapping[str, Any]:
    return {name: value for name, value in fields.flatten(cfg).items() if name.startswith("model.")}


def directory_of(place: str, name: str) -> Path:
    """Where a fine-tuning of a run, or of a Hugging Face folder, by this name is kept: nothing is written into theirs.
    """
    theirs = pretrained_folder.is_one(place) or not files.path(place).exists()
    called = Path(os.path.abspath(place)).name.partition("@")[0]
    return directory.fine_tuning(Path("runs", called) if theirs else place, name)
