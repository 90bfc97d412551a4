"""The first parameters of a model: drawn, or those of another run, its newest checkpoint's."""
import contextlib
from collections.abc import Mapping
from typing import Any

import jax

from mlm.base import config, errors, fields, types
from mlm.train.run import checkpoint, directory, trained


def of_run(workdir: str, *, drawn: bool = False) -> dict[str, Any]:
    """The fields, by dotted name, that a config takes from the run that it starts from.

    Its model, its language, the length of its rows, its tokenizer, and which of its checkpoints is the newest; drawn:
    without its parameters. Raises ConfigError where there is no run or no checkpoint.
    """
    taken = model_of(trained.origin(workdir)["config"], workdir)
    if drawn:
        return taken
    with contextlib.closing(checkpoint.manager(workdir)) as checkpoints:
        digest = checkpoint.newest_digest(checkpoints)
    errors.expect(bool(digest), "run", workdir, "a run with a checkpoint; it has none yet")
    return taken | {"start.run": str(workdir), "start.state": digest}


def model_of(flat: Mapping[str, Any], workdir: str) -> dict[str, Any]:
    """The fields, by dotted name, that are not to differ from those of a run in a directory; flat: the run's own."""
    taken = {name: value for name, value in flat.items() if name.startswith("model.")}
    if flat["data.corpus"] == "language":
        taken |= {name: value for name, value in flat.items() if name.startswith("data.language.")}
    return taken | {"pack.length": flat["pack.length"], "tokenizer.path": str(directory.tokenizer_folder(workdir))}


def begin(cfg: config.Config, state: types.TrainState) -> types.TrainState:
    """A state at step 0 (numpy), its model that of config.start.run where there is one.

    Raises ConfigError where the run's newest checkpoint is not config.start.state, or is of another model.
    """
    if not cfg.start.run:
        return state
    run = trained.load(cfg.start.run, {}, alone=not directory.end(cfg.start.run).exists())
    errors.expect(cfg.start.state in ("", run.digest), "config.start.state", cfg.start.state,
                  f"the state of the newest checkpoint of {cfg.start.run}, {run.digest}")
    model = run.program.run.get_state(run.state).params["model"]
    have, want = (jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)
                  for tree in (model, state.params["model"]))
    if have != want:
        raise errors.ConfigError(f"config.start.run = {cfg.start.run!r}: expected a run of the same model; "
                                 f"{_differing(cfg, run.cfg) or 'its vocabulary is of another size'}")
    return state._replace(params=state.params | {"model": model})


def _differing(cfg: config.Config, other: config.Config) -> str:
    mine, its = (_model(one) for one in (cfg, other))
    return ", ".join(f"config.{name} is {its[name]!r} there and {value!r} here" for name, value in mine.items()
                     if its[name] != value)


def _model(cfg: config.Config) -> Mapping[str, Any]:
    return {name: value for name, value in fields.flatten(cfg).items() if name.startswith("model.")}
