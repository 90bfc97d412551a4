"""Checkpoints of the training state: asynchronous, atomic, and refused to a run of another config (orbax)."""
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from mlm.base import config, errors, fields, types
from mlm.train.run import directory
from mlm.train.step.program import Program


def manager(workdir: Path | str) -> ocp.CheckpointManager:
    """The checkpoints of a run directory, of which the newest is kept."""
    options = ocp.CheckpointManagerOptions(max_to_keep=1, cleanup_tmp_directories=True)
    return ocp.CheckpointManager(directory.checkpoints(workdir).absolute(), options=options)


def newest(checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict, made: Program, knobs: types.Knobs
           ) -> types.TrainState | None:
    """The state of the newest checkpoint, numpy, or None where there is none; raises as `restore` does."""
    return restore(checkpoints, cfg, data, jax.eval_shape(made.initial, knobs))


def first(checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict, made: Program, knobs: types.Knobs
          ) -> types.TrainState:
    """The state that a run goes on from, numpy: the newest checkpoint's, or the initial one."""
    state = newest(checkpoints, cfg, data, made, knobs)
    return jax.device_get(made.initial(knobs)) if state is None else state


def save(checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict, state: types.TrainState) -> None:
    """Starts saving a state of numpy arrays under its step, with the config and the identity of the rows (`data`).

    Returns before it is on disk.
    """
    checkpoints.save(int(state.step), args=ocp.args.Composite(
        state=ocp.args.StandardSave(state._asdict()),
        origin=ocp.args.JsonSave({"config": fields.flatten(cfg), "data": data}),
    ), force=True)


def restore(checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict,
            like: types.TrainState) -> types.TrainState | None:
    """The newest state as numpy arrays, or None where there is none yet. `like` gives the shapes and types.

    Raises ConfigError where the checkpoint's config differs in a field that can change results, where it was trained on
    other rows, or where an array has another type.
    """
    step = checkpoints.latest_step()
    if step is None:
        return None
    saved = checkpoints.restore(step, args=ocp.args.Composite(origin=ocp.args.JsonRestore()))["origin"]
    fields.check_same(cfg, data, saved, f"the checkpoint of step {step} in {checkpoints.directory.parent}")
    abstract = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), like._asdict())
    restored = checkpoints.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)))["state"]
    # Orbax casts silently to the type asked for; what is on disk says what was saved.
    stored = checkpoints.item_metadata(step)["state"]
    for (path, want), have in zip(jax.tree_util.tree_leaves_with_path(abstract), jax.tree.leaves(stored), strict=True):
        errors.expect(np.dtype(have.dtype) == want.dtype, f"checkpoint{jax.tree_util.keystr(path)}", str(have.dtype),
                      f"the type {want.dtype}")
    return types.TrainState(**restored)
