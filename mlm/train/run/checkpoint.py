"""Checkpoints of a run: asynchronous, atomic, checked against their digest, and refused to another run (orbax)."""
import contextlib
import errno
import hashlib
import json
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from mlm.base import buckets, config, errors, fields, files, types
from mlm.train.run import directory, extension
from mlm.train.step import parallel
from mlm.train.step.program import Program

KEPT = 2  # the newest, and one to go back to where that is damaged


class Saved(NamedTuple):
    """Where a run stands."""

    state: types.TrainState          # numpy; where it is split over devices, as it lies there
    totals: Mapping[str, float]      # what the run has counted up to there


def manager(workdir: Path | str, *steps: int, every: int = 0, alone: bool = True) -> ocp.CheckpointManager:
    """The checkpoints of a run directory: the newest, those of `steps`, and the newest at multiples of `every`.

    alone: False where a trainer may be writing one, which is else swept away as unfinished.
    """
    sys.unraisablehook = _heard
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")
    policies = ocp.checkpoint_managers
    policy = policies.AnyPreservationPolicy([policies.LatestN(KEPT), policies.CustomSteps(steps),
                                            *([policies.EveryNSteps(every, max_to_keep=KEPT)] if every else [])])
    options = ocp.CheckpointManagerOptions(preservation_policy=policy, cleanup_tmp_directories=alone)
    return ocp.CheckpointManager(files.absolute(directory.checkpoints(workdir)), options=options)


def first(checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict, made: Program, knobs: types.TracedHparams
          ) -> Saved:
    """What a run goes on from: its newest whole checkpoint, or the initial state. What is damaged is removed.

    Raises ConfigError as `read` does, and Damaged where no checkpoint is whole.
    """
    like, faults = _like(made, knobs), {}
    for step in sorted(checkpoints.all_steps(), reverse=True):
        try:
            found = read(checkpoints, step, cfg, data, like)
        except files.Damaged as damaged:
            faults[step] = damaged
            continue
        for damaged_step, damaged in faults.items():
            logging.warning("%s; continuing from step %d, where the checkpoint is whole", damaged, step)
            checkpoints.delete(damaged_step)
        return found
    if faults:
        raise files.Damaged(f"{'; '.join(map(str, faults.values()))}; none is whole: remove "
                            f"{checkpoints.directory} to start again")
    return Saved(jax.tree.map(lambda want, x: np.asarray(x) if isinstance(want, np.ndarray) else x,
                              like, made.initial(knobs)), {})


def newest(checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict, made: Program, knobs: types.TracedHparams
           ) -> Saved | None:
    """The newest checkpoint, or None where there is none. Raises as `read` does, with what to do about damage."""
    step = checkpoints.latest_step()
    try:
        return None if step is None else read(checkpoints, step, cfg, data, _like(made, knobs))
    except files.Damaged as damaged:
        end = directory.end(checkpoints.directory.parent)
        first = f"remove {end} and " if end.exists() else ""
        raise files.Damaged(f"{damaged}; {first}start the run again, which makes it anew from one that is whole"
                            ) from None


def newest_digest(workdir: Path | str) -> str:
    """The digest of the newest checkpoint's state, "" where there is none. Raises Damaged as `read` does.

    By its JSON alone: orbax's manager would ask JAX for its devices, before processes have joined each other.
    """
    steps = ocp.utils.checkpoint_steps(files.absolute(directory.checkpoints(workdir)))
    if not steps:
        return ""
    name = f"{workdir}: checkpoint {max(steps)}"
    try:
        found = json.loads((directory.checkpoints(workdir) / str(max(steps)) / "origin" / "metadata").read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(name, error) from None
    return files.unseal(found, name)["state"]


def outgrown(checkpoints: ocp.CheckpointManager, cfg: config.Config) -> list[int]:
    """The steps of those that belong to what the run was before it was made longer, and not to what it is."""
    found = []
    for step in checkpoints.all_steps():
        with contextlib.suppress(files.Damaged):
            saved = _origin(checkpoints, step)
            if extension.behind(cfg, saved, step).train.steps != saved["config"]["train.steps"]:
                found.append(step)
    return found


def check_shared(
    checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict, made: Program, knobs: types.TracedHparams
) -> None:
    """Raises ConfigError where there are checkpoints, but none that is whole and that a run of cfg goes through."""
    like, steps, faults = _like(made, knobs), sorted(checkpoints.all_steps(), reverse=True), []
    for step in steps:
        try:
            read(checkpoints, step, cfg, data, like)
            return
        except errors.ConfigError as error:
            faults.append(f"{step:,}" + (" (damaged)" if isinstance(error, files.Damaged) else ""))
    if faults:
        raise errors.ConfigError(f"{cfg.workdir} cannot be trained longer: of its checkpoints, {', '.join(faults)}, "
                                 "none is whole and of a step that the longer run goes through; choose another "
                                 "config.workdir")


def check_clock() -> None:
    """Raises OSError where the clock stands still: TensorStore would wait for it with every checkpoint, for ever."""
    before = time.time_ns()
    time.sleep(0.002)
    if time.time_ns() == before:
        raise OSError(errno.ETIME, "the clock of this machine stands still; the same command continues when it goes")


def save(checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict, saved: Saved) -> None:
    """Starts saving under the state's step, with the run's identity (`data`: the rows') and digests of it all.

    Returns before it is on disk.
    """
    check_clock()
    origin = fields.identity(cfg, data) | {"totals": dict(saved.totals), "state": digest(saved.state)}
    checkpoints.save(int(saved.state.step), args=ocp.args.Composite(
        state=ocp.args.StandardSave(saved.state._asdict()),
        origin=ocp.args.JsonSave(files.seal(origin)),
    ), force=True)


def read(checkpoints: ocp.CheckpointManager, step: int, cfg: config.Config, data: dict,
         like: types.TrainState) -> Saved:
    """The checkpoint of a step. `like` gives the shapes and types of its state: as numpy arrays, or with the sharding
    in which it is to lie, each process then reading what its devices hold, however it was split when it was saved.

    Raises Damaged where it is not what was saved, and ConfigError where the run differs in what can change results
    up to there, where it was trained on other rows, or where an array has another type.
    """
    name = _name(checkpoints, step)
    origin = _origin(checkpoints, step)
    try:
        fields.check_same(extension.behind(cfg, origin, step), data, origin, name)
        abstract = like._asdict()
        restored = checkpoints.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)))
        state = types.TrainState(**restored["state"])
        # Orbax casts silently to the type asked for; what is on disk says what was saved.
        stored = jax.tree.leaves(checkpoints.item_metadata(step)["state"])
        for (path, want), have in zip(jax.tree_util.tree_leaves_with_path(abstract), stored, strict=True):
            errors.require(np.dtype(have.dtype) == want.dtype, f"checkpoint{jax.tree_util.keystr(path)}",
                          str(have.dtype), f"the type {want.dtype}")
    except errors.ConfigError:
        raise
    except Exception as error:  # orbax and its parts raise all there is
        raise _damaged(name, error) from None
    if digest(state) != origin["state"]:
        raise files.Damaged(f"{name} is damaged: its arrays are not what was saved")
    return Saved(state, origin["totals"])


def _damaged(name: str, error: Exception) -> Exception:
    if said := buckets.unreachable(error):
        return buckets.Unreachable(f"{name}: {said}")
    return files.Damaged(f"{name} is damaged: {files.brief(error)}")


def _heard(unraisable) -> None:
    """Of a restore or a save that failed, tensorstore's threads still report to an event loop that orbax has closed."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _like(made, knobs):
    return made.run.like(made.initial.eval_shape(knobs))


def _name(checkpoints, step):
    return f"{checkpoints.directory.parent}: checkpoint {step}"


def _origin(checkpoints, step):
    name = _name(checkpoints, step)
    try:
        found = checkpoints.restore(step, args=ocp.args.Composite(origin=ocp.args.JsonRestore()))["origin"]
    except Exception as error:  # as in `read`
        raise _damaged(name, error) from None
    return files.unseal(found, name)


def digest(state: types.TrainState) -> str:
    """The SHA-256 of a state's arrays, with their names and types: the same however it is split over devices.

    No host holds more than one whole array at a time.
    """
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        found.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        found.update(np.ascontiguousarray(parallel.gather(leaf) if isinstance(leaf, jax.Array) else leaf))
    return found.hexdigest()
