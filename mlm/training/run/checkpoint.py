"""Checkpoints of a run (orbax): asynchronous, atomic, verified by a digest, and refused for another run."""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from mlm.base import batch_warmup, buckets, config, errors, fields, files, types
from mlm.base.storage import get_storage
from mlm.data.rows import mixture
from mlm.training.run import extension
from mlm.training.run.directory import RunDirectory
from mlm.training.run.hooks import Hook
from mlm.training.step import parallel, trainable
from mlm.training.step.program import Program, make_train_hparams

NUM_KEPT = 2  # the newest, and the one before it in case the newest is damaged
WORD_UNITS = {"kw": 1000, "Mw": 1_000_000}  # after a number of words; a number alone is of steps
# The moments that the BabyLM challenge of 2025 asks for, in millions of words.
BABYLM = (*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100))
EXPECTED_MILESTONES = (
    "log:24 (so many, up to 9999, evenly spaced in the logarithm of the step), steps such as 100,1000, words such as "
    "500kw,1Mw, or babylm"
)


class Snapshot(NamedTuple):
    """The state of a run between two steps, as a checkpoint holds it."""

    state: types.TrainState  # numpy arrays; sharded arrays stay on their devices
    totals: Mapping[str, Any]  # what the run's hooks keep (Hook.get_totals), by name
    digest: str = ""  # of a restored state


def open_manager(folder: Path, steps: Sequence[int] | None = None, *, exclusive: bool = True) -> ocp.CheckpointManager:
    """The checkpoints or milestones of a folder; saving keeps the newest and those of `steps`, or all for None.

    exclusive: False if another process may be writing a checkpoint, which would be removed as unfinished.
    """
    policies, policy = ocp.checkpoint_managers, None
    if steps is not None:
        policy = policies.AnyPreservationPolicy([policies.LatestN(NUM_KEPT), policies.CustomSteps(steps)])
    options = ocp.CheckpointManagerOptions(preservation_policy=policy, cleanup_tmp_directories=exclusive)
    return ocp.CheckpointManager(files.make_absolute(folder), options=options)


def list_milestones(directory: RunDirectory) -> list[int]:
    """The steps of a run's milestones, in order."""
    return sorted(ocp.utils.checkpoint_steps(directory.milestones))


def restore_or_init(checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict, program: Program) -> Snapshot:
    """The newest intact checkpoint, or the initial state if there is none. Deletes damaged ones.

    Raises ConfigError as `restore` does, and DamagedFile if there are checkpoints but none is intact.
    """
    target, faults = _make_restore_target(cfg, program), {}
    for step in sorted(checkpoints.all_steps(), reverse=True):
        try:
            restored = restore(checkpoints, step, cfg, data, target)
        except files.DamagedFile as damaged:
            faults[step] = damaged
            continue
        for damaged_step, damaged in faults.items():
            logging.warning("%s; continuing from step %d, where the checkpoint is intact", damaged, step)
            checkpoints.delete(damaged_step)
        return restored
    if faults:
        raise files.DamagedFile(
            f"{'; '.join(map(str, faults.values()))}; none is intact: remove {checkpoints.directory} to start again"
        )
    state = program.init_state(make_train_hparams(cfg))
    return Snapshot(
        jax.tree.map(lambda leaf, x: np.asarray(x) if isinstance(leaf, np.ndarray) else x, target, state), {}
    )


def load(
    directory: RunDirectory, step: int | None, cfg: config.Config, data: dict, program: Program, *, exclusive: bool
) -> Snapshot:
    """The newest checkpoint, or that of a step or milestone; raises as `restore`."""
    milestones, steps = list_milestones(directory), ocp.utils.checkpoint_steps(directory.checkpoints)
    is_milestone, available = step in milestones, sorted({*milestones, *steps})
    if not (steps if step is None else available):
        raise errors.ConfigError(f"run {str(directory.path)!r}: expected a run with a checkpoint; it has none yet")
    number = max(steps) if step is None else step
    if number not in available:
        nearest = min(available, key=lambda other: abs(other - number))
        kept = f"a step that was kept: {', '.join(map(str, available))}; did you mean {nearest}?"
        raise errors.ConfigError(f"run {str(directory.path)!r}, step = {step!r}: expected {kept}")
    target = _make_restore_target(cfg, program)
    folder = directory.milestones if is_milestone else directory.checkpoints
    with open_manager(folder, exclusive=exclusive) as saved:
        try:
            return restore(saved, number, cfg, data, target._replace(opt_state=()) if is_milestone else target)
        except files.DamagedFile as damaged:
            if step is not None:
                raise
            removal = f"remove {directory.result} and " if directory.result.exists() else ""
            remedy = f"{removal}start the run again"
            raise files.DamagedFile(f"{damaged}; {remedy}: it continues from an intact checkpoint") from None


def read_newest_digest(directory: RunDirectory) -> str:
    """The digest of the newest checkpoint's state, "" if there is none. Raises DamagedFile as `restore` does."""
    steps = ocp.utils.checkpoint_steps(directory.checkpoints)
    return _read_origin(directory.checkpoints, max(steps))["state"] if steps else ""


def delete_superseded(directory: RunDirectory, cfg: config.Config) -> None:
    """Deletes the checkpoints and milestones of a shorter run that the longer one of cfg does not share."""
    for folder in (directory.checkpoints, directory.milestones):
        for step in ocp.utils.checkpoint_steps(folder):
            with contextlib.suppress(files.DamagedFile):
                saved = _read_origin(folder, step)
                if extension.match_saved_length(cfg, saved, step).train.steps != saved["config"]["train.steps"]:
                    get_storage(folder).remove_folder(folder / str(step))


def check_extendable(checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict, program: Program) -> None:
    """Raises ConfigError if there are checkpoints, but none that is intact and shared with the longer run of cfg."""
    target, faults = _make_restore_target(cfg, program), []
    for step in sorted(checkpoints.all_steps(), reverse=True):
        try:
            restore(checkpoints, step, cfg, data, target)
            return
        except errors.ConfigError as error:
            faults.append(f"{step:,}" + (" (damaged)" if isinstance(error, files.DamagedFile) else ""))
    if faults:
        raise errors.ConfigError(
            f"{cfg.workdir} cannot be extended: of its checkpoints, {', '.join(faults)}, none is "
            "intact and shared with the longer run; choose another config.workdir"
        )


def save(checkpoints: ocp.CheckpointManager, cfg: config.Config, data: dict, snapshot: Snapshot) -> None:
    """Starts saving a checkpoint with the run's identity and digests; returns before it is on disk."""
    origin = {"totals": dict(snapshot.totals), "state": compute_digest(snapshot.state)}
    origin = fields.build_identity(cfg, data) | origin
    state, origin = ocp.args.StandardSave(snapshot.state._asdict()), ocp.args.JsonSave(files.add_digest(origin))
    checkpoints.save(int(snapshot.state.step), args=ocp.args.Composite(state=state, origin=origin), force=True)


class Milestones(NamedTuple):
    """Moments of a run, as the config names them."""

    log_count: int = 0  # so many, evenly spaced in the logarithm of the step
    steps: Sequence[int] = ()
    words: Sequence[int] = ()  # numbers of words that the run has read, repetitions counted


def parse_milestones(text: str) -> Milestones:
    """The moments that a text names. Raises ConfigError if it names none that can be."""
    if text == "babylm":
        return Milestones(words=[count * WORD_UNITS["Mw"] for count in BABYLM])
    if match := re.fullmatch("log:([1-9][0-9]{0,3})", text):
        return Milestones(log_count=int(match[1]))
    steps, words = [], []
    for part in text.split(",") if text else ():
        match = re.fullmatch("([1-9][0-9]{0,11})(|kw|Mw)", part.strip())
        if match is None:
            value = errors.format_value(text)
            raise errors.ConfigError(f"config.train.milestones = {value}: expected {EXPECTED_MILESTONES}")
        if match[2]:
            words.append(int(match[1]) * WORD_UNITS[match[2]])
        else:
            steps.append(int(match[1]))
    return Milestones(steps=steps, words=words)


def check_milestones(cfg: config.Config) -> None:
    """Raises ConfigError for milestones that the run cannot have."""
    milestones = parse_milestones(cfg.train.milestones)
    is_within = max(milestones.steps, default=0) <= cfg.train.steps
    errors.require_field(cfg, "train.milestones", is_within, f"steps up to config.train.steps = {cfg.train.steps}")
    counts_words = cfg.tokenizer.kind != "characters" and cfg.data.corpus not in ("task", "parallel")
    expected = "log:24 or steps: words are counted where the tokenizer has them, in text of one language"
    errors.require_field(cfg, "train.milestones", counts_words or not milestones.words, expected)


def list_milestone_steps(train: config.Train, segments: Sequence[mixture.Segment]) -> list[int]:
    """The steps, up to the run's end, after which it keeps its parameters, in order; segments: the run's phases."""
    milestones, last = parse_milestones(train.milestones), train.steps
    steps = {*milestones.steps}
    steps |= {round(last ** (number / milestones.log_count)) for number in range(1, milestones.log_count + 1)}
    if milestones.words:
        batches_N, sizes = batch_warmup.count_batches_read(train), [one.count_batch_words() for one in segments]
        if len(segments) > 1:  # in batches of the last phase
            lengths = [segment.phase.end_step - segment.phase.first_step for segment in segments]
            batches_N = np.cumsum(np.diff(batches_N, prepend=0) * np.repeat(np.divide(sizes, sizes[-1]), lengths))
        steps |= {int(np.searchsorted(batches_N, words / sizes[-1])) + 1 for words in milestones.words}
    return sorted(step for step in steps if step <= last)


class Checkpoint(Hook):
    """The hook that saves checkpoints, and one where the run stops; get_run_totals: what it saves beside the state."""

    def __init__(self, cfg: config.Config, data: dict, program: Program, checkpoints, get_run_totals: Callable):
        self.cfg, self.data, self.program, self.checkpoints = cfg, data, program, checkpoints
        self.get_run_totals = get_run_totals

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint follows a step."""
        is_last = step in (self.cfg.train.steps, extension.count_stable_steps(self.cfg))
        return is_last or step % self.cfg.train.checkpoint_every == 0

    def on_pause(self, step: int, state, due: bool, stop: bool) -> None:
        """Starts saving, if that is due; if the run stops before its end, waits for the disk."""
        if stop or due:
            self.save(state)
        if stop and step != self.cfg.train.steps:
            self.checkpoints.wait_until_finished()

    def save(self, state) -> None:
        """Starts saving a state, with the run's totals."""
        state = state._replace(params=trainable.drop_teacher(state.params))
        snapshot = Snapshot(self.program.partitioner.snapshot_state(state), self.get_run_totals())
        save(self.checkpoints, self.cfg, self.data, snapshot)


class MilestoneCheckpoint(Checkpoint):
    """The hook that keeps the parameters at milestones, without the optimizer's state.

    It runs before `Checkpoint` and waits for the disk: a run that continues from a checkpoint has all before it.
    arguments: those of `Checkpoint`.
    """

    def __init__(self, steps: Collection[int], *arguments: Any):
        super().__init__(*arguments)
        self.steps = steps

    def is_due(self, step: int) -> bool:
        """Whether a milestone follows a step."""
        return step in self.steps

    def on_pause(self, step: int, state, due: bool, stop: bool) -> None:
        """Saves, if that is due."""
        if due:
            if step in self.checkpoints.all_steps():
                self.checkpoints.delete(step)
            self.save(state._replace(opt_state=()))
            self.checkpoints.wait_until_finished()

    def close(self) -> None:
        """Closes the milestones."""
        self.checkpoints.close()


def restore(
    checkpoints: ocp.CheckpointManager, step: int, cfg: config.Config, data: dict, target: types.TrainState
) -> Snapshot:
    """Restores the checkpoint of a step into the target: numpy arrays, or shapes and types with the shardings.

    Each process reads only the shards of its devices. Raises DamagedFile if it is not what was saved, ConfigError if it
    is of another run or other data.
    """
    name, origin = _describe(checkpoints.directory, step), _read_origin(checkpoints.directory, step)
    try:
        fields.check_identity(extension.match_saved_length(cfg, origin, step), data, origin, name)
        items = {"state": ocp.args.StandardRestore(target._asdict()), "origin": ocp.args.JsonRestore()}
        restored = checkpoints.restore(step, args=ocp.args.Composite(**items))
        state = types.TrainState(**restored["state"])
    except errors.ConfigError:
        raise
    except Exception as error:  # orbax and its libraries raise any exception
        raise _make_error(name, error) from None
    if compute_digest(state) != origin["state"]:  # also where orbax has cast an array to the target's type
        raise files.DamagedFile(f"{name} is damaged: its arrays are not what was saved")
    return Snapshot(state, origin["totals"], origin["state"])


def _make_error(name: str, error: Exception) -> Exception:
    if message := buckets.describe_error(error):
        return buckets.BucketError(f"{name}: {message}")
    return files.DamagedFile(f"{name} is damaged: {errors.describe_error(error)}")


def _make_restore_target(cfg, program):
    return program.partitioner.make_restore_target(program.init_state.eval_shape(make_train_hparams(cfg)))


def _describe(folder, step):
    return f"{folder.parent}: checkpoint {step}"


def _read_origin(folder, step):
    """What was saved beside the arrays. Orbax would initialize JAX, before the processes of a run have connected."""
    name = _describe(folder, step)
    try:
        origin = json.loads((folder / str(step) / "origin" / "metadata").read_bytes())
    except Exception as error:  # as in `restore`
        raise _make_error(name, error) from None
    origin = files.verify_digest(origin, name)
    fields.check_format(origin, name)
    return origin


def compute_digest(state: types.TrainState) -> str:
    """The SHA-256 of a state's arrays, names and types, however it is sharded; holds one full array at a time."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        digest.update(np.ascontiguousarray(parallel.gather_to_host(leaf) if isinstance(leaf, jax.Array) else leaf).data)
    return digest.hexdigest()
