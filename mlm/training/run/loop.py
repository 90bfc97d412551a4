"""One run from its config to its result: restore, step, evaluate, save, stop."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

from mlm.base import config, errors, fields, files, types
from mlm.data.rows import loader, pack
from mlm.models import lm
from mlm.training.run import (
    checkpoint,
    directory,
    extension,
    finetuning_recipe,
    heartbeat,
    initialization,
    resolution,
    spikes,
    trackers,
)
from mlm.training.run.log import DivergenceError, Log
from mlm.training.run.shutdown import RunStopped, ShutdownRequest
from mlm.training.step import cost, evaluation, parallel, references
from mlm.training.step import program as programs


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config that cannot be run on these devices or in its workdir; compiles nothing."""
    resolution.check(cfg)
    finetuning_recipe.check(cfg)
    parallel.check(cfg)
    trackers.check_installed(cfg)
    files.check_folder("config.workdir", cfg.workdir, schemes=directory.CHECKPOINT_SCHEMES)
    directory.check_workdir(cfg)
    cost.check_memory(cfg)


def train(cfg: config.Config, packed: pack.PackedDataset | None = None) -> dict:
    """Trains the run of a resolved config to its end, from its newest checkpoint if it has one; returns its result.

    Of successive runs that differ in traced values alone, only the first compiles (step/program.py).

    Args:
        packed: the run's data, if it is loaded already.

    Raises:
        ConfigError: the config cannot be run.
        RunStopped: after SIGTERM or SIGINT.
        DivergenceError: the loss is not finite, and config.train.spike_threshold does not handle it.
    """
    check(cfg)
    cfg = directory.resolve_kernels(cfg)
    packed = packed or pack.load_dataset(cfg)
    data_identity = packed.manifest["inputs"]
    result = directory.recover_finished(cfg, data_identity, packed.tokenizer)
    if result is not None:
        return result
    with directory.acquire_run(cfg) if parallel.is_primary() else contextlib.nullcontext():
        # Another process may have finished it meanwhile. If the run has several processes, all must see the same.
        if not parallel.is_multiprocess():
            result = directory.recover_finished(cfg, data_identity, packed.tokenizer)
        if result is not None:
            return result
        outcome = None
        while outcome is None or isinstance(outcome, spikes.LossSpike):
            with open_run(cfg, packed, outcome) as (run, state):
                outcome = train_runs([run], SingleRun(run, state))[cfg.workdir]
    if isinstance(outcome, DivergenceError):
        raise outcome
    return outcome


def extend_run(cfg: config.Config, packed: pack.PackedDataset) -> config.Config:
    """Extends the run in config.workdir, done or not, to cfg's steps; returns the config with which it continues.

    Nothing changes if it has as many steps already. Works in a single process only. Raises ConfigError as
    `extension.resolve` does, if there is no run, or if the longer run shares none of its checkpoints.
    """
    cfg, data_identity = directory.resolve_kernels(cfg), packed.manifest["inputs"]
    errors.require(
        directory.read_identity(cfg.workdir) is not None,
        "config.workdir",
        cfg.workdir,
        "the directory of a run to be extended",
    )
    with directory.acquire_run(cfg):
        saved = directory.read_identity(cfg.workdir)
        assert saved is not None
        extended = extension.resolve(cfg, data_identity, saved)
        if extended.train.steps > saved["config"]["train.steps"]:
            check(extended)
            program = programs.build_program(extended, packed.dataset_info)
            with contextlib.closing(checkpoint.open_manager(cfg.workdir)) as checkpoints:
                checkpoint.check_extendable(
                    checkpoints, extended, data_identity, program, programs.make_train_hparams(extended)
                )
            directory.write_extended_identity(extended, data_identity, saved)
    return extended


def can_extend(cfg: config.Config, packed: pack.PackedDataset) -> bool:
    """Whether config.workdir holds a run that differs from cfg's, but that `extend_run` would turn into it."""
    try:
        saved = directory.read_identity(cfg.workdir)
        if saved is None:
            return False
        extension.resolve(cfg, packed.manifest["inputs"], saved)
    except errors.ConfigError:
        return False
    return any(fields.flatten(cfg)[name] != saved["config"][name] for name in extension.EXTENDABLE_FIELDS)


def migrate_extended(cfg: config.Config, checkpoints) -> None:
    """Archives the results, and deletes the checkpoints, that an extended run does not share with the shorter one."""
    saved = None
    with directory.recover_damaged():
        saved = directory.read_identity(cfg.workdir)
    if "original" in (saved or {}):
        if parallel.is_primary() and (steps := directory.find_superseded(cfg, saved)):
            directory.archive_results(cfg, steps)
        for step in checkpoint.find_superseded(checkpoints, cfg):
            checkpoints.delete(step)


@contextlib.contextmanager
def open_run(
    cfg: config.Config, packed: pack.PackedDataset, spike: spikes.LossSpike | None = None, *, cut: bool = True
):
    """A run with its files open, and the state to continue from (numpy): its newest checkpoint's, or the initial one.

    Args:
        spike: goes back to before this spike.
        cut: as in loader.train_batches. If False, all batches have the same shape.
    """
    program = programs.build_program(cfg, packed.dataset_info)
    with contextlib.closing(
        checkpoint.open_manager(
            cfg.workdir, extension.count_stable_steps(cfg), keep_period=spikes.get_rewind_interval(cfg)
        )
    ) as checkpoints:
        migrate_extended(cfg, checkpoints)
        for step in checkpoints.all_steps() if spike else ():
            if spike is not None and step > spike.back_to:
                checkpoints.delete(step)
        saved = checkpoint.restore_or_init(
            checkpoints, cfg, packed.manifest["inputs"], program, programs.make_train_hparams(cfg)
        )
        if spike:
            saved = saved._replace(totals={**saved.totals, "spikes": spike.spikes})
        if saved.state.step == 0:
            saved = saved._replace(state=initialization.init_from_source(cfg, saved.state, packed.tokenizer))
        with contextlib.closing(TrainingRun(cfg, packed, program, checkpoints, saved, cut)) as run:
            if spike:
                run.log.write_message(str(spike))
            yield run, saved.state


class TrainingRun:
    """A run without its steps: its batches, metrics, evaluations and checkpoints."""

    def __init__(
        self,
        cfg: config.Config,
        packed: pack.PackedDataset,
        program: programs.Program,
        checkpoints,
        saved: checkpoint.Checkpoint,
        cut: bool,
    ):
        self.cfg, self.packed, self.program, self.checkpoints = cfg, packed, program, checkpoints
        self.start_step = int(saved.state.step)
        self.data_identity = packed.manifest["inputs"]
        if parallel.is_primary():
            directory.record_start(cfg, self.data_identity, packed.tokenizer, self.start_step)
        self.references = references.compute_references(cfg, program, packed)
        self.scores = (*program.objective.scores, *self.references.scores)
        self.spike_guard = spikes.SpikeGuard(cfg, saved.totals)
        self.log = Log(cfg, program.objective, self.start_step, saved.totals)
        self.batches = self.spike_guard.iterate_batches(
            lambda first: loader.iterate_train_batches(
                packed.train,
                seed=cfg.seed,
                batch_size=cfg.train.batch_size,
                start_step=first,
                cut=cut and cfg.model.context != "two_stack",  # its right stack reads padding first: masks depend on it
                grouped=cfg.train.group_by_length,
                **parallel.get_process_position(),
            ),
            self.start_step,
        )
        self.pending_metrics: list[Callable] = []  # read one step late, so that devices never wait for this process
        self.evaluations: dict[int, tuple[evaluation.Columns, dict]] = {}  # the newest, by its step

    def queue_metrics(self, step: int, get_metrics: Callable) -> None:
        """Takes a started step; get_metrics() waits for its metrics."""
        if self.pending_metrics:
            self.log_metrics(step - 1)
        self.pending_metrics.append(get_metrics)

    def log_metrics(self, step: int, flush: bool = False) -> None:
        """Waits for the metrics of a step, checks them and logs them."""
        metrics = self.pending_metrics.pop()()
        self.spike_guard.check_metrics(step, metrics)
        self.log.write_records(step, self.spike_guard.make_records(step))
        self.log.add(step, metrics, self.checkpoints, flush=flush)

    def needs_pause(self, step: int, stop: bool) -> bool:
        """Whether an evaluation, a checkpoint or the end follows a step."""
        return stop or self.is_evaluation_due(step) or self.is_checkpoint_due(step)

    def is_evaluation_due(self, step: int) -> bool:
        """Whether an evaluation follows a step."""
        train = self.cfg.train
        return step == train.steps or bool(train.eval_every and step % train.eval_every == 0)

    def is_checkpoint_due(self, step: int) -> bool:
        """Whether a checkpoint follows a step."""
        train = self.cfg.train
        intervals = (train.checkpoint_every, spikes.get_rewind_interval(self.cfg) or train.checkpoint_every)
        return step in (train.steps, extension.count_stable_steps(self.cfg)) or any(
            step % interval == 0 for interval in intervals
        )

    def evaluate_and_save(self, step: int, state, stop: bool) -> None:
        """Evaluates and saves if that is due after a step; if the run stops there, waits for the disk."""
        self.log_metrics(step, flush=True)
        if self.is_evaluation_due(step):  # before the checkpoint, so that a run continued from it lacks no evaluation
            self.evaluations = {step: self.evaluate(state)}
            self.log.write_evaluation(step, self.evaluations[step][1], self.scores)
        if stop or self.is_checkpoint_due(step):
            saved = checkpoint.Checkpoint(
                self.program.strategy.snapshot_state(state), self.log.totals | self.spike_guard.get_totals()
            )
            checkpoint.save(self.checkpoints, self.cfg, self.data_identity, saved)
        if stop and step != self.cfg.train.steps:
            self.checkpoints.wait_until_finished()
        self.log.pause_timing()

    def evaluate(self, state) -> tuple[evaluation.Columns, dict]:
        """The columns and the scores of the held-out examples."""
        columns = evaluation.evaluate_split(self.cfg, self.program, state, self.packed)
        columns = self.references.add_columns(columns)
        return columns, evaluation.summarize(columns, self.scores)

    def finish(self, state) -> dict:
        """Writes the result of the finished run, and returns it."""
        cfg, vocab_size = self.cfg, self.packed.dataset_info.vocab_size
        if cfg.train.steps not in self.evaluations:  # the run was trained before, and its result was lost
            self.evaluations = {cfg.train.steps: self.evaluate(state)}
            self.log.write_evaluation(cfg.train.steps, self.evaluations[cfg.train.steps][1], self.scores)
        columns, scores = self.evaluations[cfg.train.steps]
        flops = cost.count_step_flops(cfg, vocab_size)
        params = cost.make_abstract_state(programs.canonicalize_config(cfg), vocab_size).params["model"]
        result = {
            "fingerprint": fields.fingerprint(cfg),
            **fields.build_identity(cfg, self.data_identity),
            "steps": cfg.train.steps,
            "vocab_size": vocab_size,
            **lm.count_parameters(params),
            "flops": flops and flops * cfg.train.steps,
            "evaluation": scores,
            "scores": [score._asdict() for score in self.scores],
            **self.log.summarize(),
            **self.spike_guard.get_result(),
        }
        self.checkpoints.wait_until_finished()
        if parallel.is_primary():
            directory.write_result(files.make_path(cfg.workdir), result, columns)
        return result

    def close(self) -> None:
        """Closes the log."""
        self.log.close()


class SingleRun:
    """The steps of one run."""

    def __init__(self, run: TrainingRun, state: types.TrainState):
        self.strategy, self.hparams = run.program.strategy, programs.make_train_hparams(run.cfg)
        self.state = self.strategy.put_state(state)

    def make_step(self, batches: Mapping[int, types.Batch]) -> Callable:
        """Makes one step; returns a function (number of a run) -> its metrics, which waits for them."""
        self.state, metrics = self.strategy.train_step(self.state, self.strategy.put_batch(batches[0]), self.hparams)
        return lambda m: self.strategy.get_metrics(metrics)

    def get_state(self, m: int):
        """The state of a run, on the devices."""
        return self.state


def train_runs(runs: Sequence[TrainingRun], stepper) -> dict[str, dict | DivergenceError]:
    """Trains runs of one length from where they stand to their end.

    Returns each run's result by its workdir, or its divergence, which stops no other run. A run that is ahead of the
    others waits until they are where it is.

    stepper: makes the steps, such as SingleRun.
    """
    outcomes, num_steps, shapes = {}, runs[0].cfg.train.steps, set()
    first = min(run.start_step for run in runs) + 1
    heartbeat.send_heartbeat(heartbeat.PAUSE, first - 1)
    with ShutdownRequest() as request:
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
            stop, shapes = request.is_requested(runs[0].checkpoints, step), shapes | new_shapes
            for m in active:
                if new_shapes:
                    runs[m].log.pause_timing()
                try:
                    runs[m].queue_metrics(step, functools.partial(get_metrics, m))
                    if runs[m].needs_pause(step, stop):
                        heartbeat.send_heartbeat(heartbeat.PAUSE, step)
                        runs[m].evaluate_and_save(step, stepper.get_state(m), stop)
                except DivergenceError as diverged:
                    outcomes[runs[m].cfg.workdir] = diverged
            if stop and step < num_steps:
                saved = f"saved in {runs[0].cfg.workdir}" if len(runs) == 1 else f"{len(runs)} runs saved"
                raise RunStopped(
                    f"stopped at step {step:,} of {num_steps:,}, {saved}; the same command continues", request.signal
                )
        heartbeat.send_heartbeat(heartbeat.DONE, num_steps)
        for m, run in enumerate(runs):
            if run.cfg.workdir not in outcomes:
                outcomes[run.cfg.workdir] = run.finish(stepper.get_state(m))
    if request.signal is not None:
        raise RunStopped(f"{', '.join(run.cfg.workdir for run in runs)}: done; stopped after it", request.signal)
    return outcomes
