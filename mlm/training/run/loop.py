"""One run from its config to its result: the training loop."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlm.base import config, errors, fields, files, types
from mlm.data.rows import pack
from mlm.data.text import corpus
from mlm.training.compilation import cost
from mlm.training.run import checkpoint, extension, finetuning_recipe, heartbeat, resolution, trackers
from mlm.training.run.directory import CHECKPOINT_SCHEMES, RunDirectory
from mlm.training.run.divergence import DivergenceError
from mlm.training.run.preemption import Preemption, RunStopped
from mlm.training.run.training_run import TrainingRun, open_run
from mlm.training.step import parallel
from mlm.training.step import program as programs


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config that cannot be run on these devices or in its workdir; compiles nothing."""
    resolution.check(cfg)
    finetuning_recipe.check(cfg)
    parallel.check(cfg)
    trackers.check_installed(cfg)
    if cfg.data.corpus in ("text", "parallel"):
        corpus.CORPORA[cfg.data.corpus](cfg.data)  # raises for a file that is missing
    files.check_folder("config.workdir", cfg.workdir, schemes=CHECKPOINT_SCHEMES)
    RunDirectory(cfg.workdir).check(cfg)
    cost.check_memory(cfg)


def train(cfg: config.Config, packed: pack.PackedDataset | None = None) -> dict:
    """Trains the run of a resolved config to its end, from its newest checkpoint if it has one; returns its result.

    Of successive runs that differ in traced values alone, only the first compiles (step/program.py). packed: the run's
    data, if it is loaded already.

    Raises:
        ConfigError: the config cannot be run.
        RunStopped: after SIGTERM or SIGINT.
        DivergenceError: the loss is not finite.
    """
    check(cfg)
    directory = RunDirectory(cfg.workdir)
    cfg = directory.pin_kernels(cfg)
    packed = packed or pack.load_dataset(cfg)
    recover_finished = functools.partial(directory.recover_finished, cfg, packed.manifest["inputs"], packed.tokenizer)
    if (result := recover_finished()) is not None:
        return result
    with directory.lock() if parallel.is_primary() else contextlib.nullcontext():
        # Another process may have finished it meanwhile. If the run has several processes, all must see the same.
        if not parallel.is_multiprocess() and (result := recover_finished()) is not None:
            return result
        with open_run(cfg, packed) as (run, state):
            outcome = train_runs([run], SingleRun(run, state))[cfg.workdir]
    if isinstance(outcome, DivergenceError):
        raise outcome
    return outcome


def extend_run(cfg: config.Config, packed: pack.PackedDataset) -> config.Config:
    """Extends the run in config.workdir, done or not, to cfg's steps; returns the config with which it continues.

    Nothing changes if it has as many steps already. Works in a single process only. Raises ConfigError as
    `extension.extend_config` does, if there is no run, or if the longer run shares none of its checkpoints.
    """
    directory = RunDirectory(cfg.workdir)
    directory.require_identity()
    cfg, data_identity = directory.pin_kernels(cfg), packed.manifest["inputs"]
    with directory.lock():
        saved = directory.require_identity()
        extended = extension.extend_config(cfg, data_identity, saved)
        if extended.train.steps > saved["config"]["train.steps"]:
            check(extended)
            program = programs.build_program(extended, packed.dataset_info)
            with contextlib.closing(checkpoint.open_manager(cfg.workdir)) as checkpoints:
                checkpoint.check_extendable(checkpoints, extended, data_identity, program)
            directory.write_extended_identity(extended, data_identity, saved)
    return extended


def can_extend(cfg: config.Config, packed: pack.PackedDataset) -> bool:
    """Whether config.workdir holds a run that differs from cfg's, but that `extend_run` would turn into it."""
    try:
        saved = RunDirectory(cfg.workdir).read_identity()
        if saved is None:
            return False
        extension.extend_config(cfg, packed.manifest["inputs"], saved)
    except errors.ConfigError:
        return False
    return any(fields.flatten(cfg)[name] != saved["config"][name] for name in extension.EXTENDABLE_FIELDS)


class SingleRun:
    """The steps of one run, number 0. `vmapped_runs.VmappedRuns` has several; the loop below serves both."""

    def __init__(self, run: TrainingRun, state: types.TrainState):
        self.partitioner, self.hparams = run.program.partitioner, programs.make_train_hparams(run.cfg)
        self.state = self.partitioner.put_state(state)

    def make_step(self, batches: Mapping[int, types.Batch]) -> Callable:
        """Makes a step of the runs that have a batch; returns (number of a run) -> its metrics, which waits for it."""
        batch = self.partitioner.put_batch(batches[0])
        self.state, metrics = self.partitioner.train_step(self.state, batch, self.hparams)
        return lambda m: self.partitioner.get_metrics(metrics)

    def get_state(self, m: int):
        """The state of a run, on the devices."""
        return self.state


def train_runs(runs: Sequence[TrainingRun], stepper: Any) -> dict[str, dict | DivergenceError]:
    """Trains runs of one length from where they stand to their end.

    Returns each run's result by its workdir, or its divergence, which stops no other run. A run that is ahead of the
    others waits until they are where it is.
    """
    outcomes, num_steps, shapes = {}, runs[0].cfg.train.steps, set()
    first = min(run.start_step for run in runs) + 1
    heartbeat.send_heartbeat(heartbeat.PAUSE, first - 1)
    with Preemption() as preemption:
        for step in range(first, num_steps + 1):
            active = [m for m, run in enumerate(runs) if run.start_step < step and run.cfg.workdir not in outcomes]
            if not active:  # the runs behind have diverged, and those ahead wait
                continue
            batches = {m: next(runs[m].batches) for m in active}
            new_shapes = {batch.text.ids_BxL.shape for batch in batches.values()} - shapes
            if new_shapes:  # the step compiles
                heartbeat.send_heartbeat(heartbeat.PAUSE, step - 1)
            get_metrics = stepper.make_step(batches)
            heartbeat.send_heartbeat(heartbeat.STEP, step)
            stop, shapes = preemption.is_requested(runs[0].checkpoints, step), shapes | new_shapes
            for m in active:
                if new_shapes:
                    runs[m].log.pause_timing()
                getters = functools.partial(get_metrics, m), functools.partial(stepper.get_state, m)
                try:
                    run_hooks(runs[m], step, *getters, stop)
                except DivergenceError as diverged:
                    outcomes[runs[m].cfg.workdir] = diverged
            if stop and step < num_steps:
                for run in runs:
                    run.log.status = trackers.RunStatus.STOPPED
                saved = f"saved in {runs[0].cfg.workdir}" if len(runs) == 1 else f"{len(runs)} runs saved"
                raise RunStopped(
                    f"stopped at step {step:,} of {num_steps:,}, {saved}; the same command continues", preemption.signal
                )
        heartbeat.send_heartbeat(heartbeat.DONE, num_steps)
        for m, run in enumerate(runs):
            if run.cfg.workdir not in outcomes:
                outcomes[run.cfg.workdir] = run.finish(stepper.get_state(m))
    if preemption.signal is not None:
        raise RunStopped(f"{', '.join(run.cfg.workdir for run in runs)}: done; stopped after it", preemption.signal)
    return outcomes


def run_hooks(run: TrainingRun, step: int, get_metrics: Callable, get_state: Callable, stop: bool) -> None:
    """Runs the hooks after a step has started: its metrics reach them one step late, or at a pause."""

    def hand_metrics(step, metrics, pause):
        for hook in run.hooks:
            hook.on_metrics(step, metrics, pause)

    if run.get_pending is not None:
        hand_metrics(step - 1, run.get_pending(), False)
    run.get_pending = get_metrics
    due = [hook.is_due(step) for hook in run.hooks]
    if stop or any(due):
        heartbeat.send_heartbeat(heartbeat.PAUSE, step)
        run.get_pending = None
        hand_metrics(step, get_metrics(), True)
        state = get_state()
        for hook, is_due in zip(run.hooks, due, strict=True):
            hook.on_pause(step, state, is_due, stop)
