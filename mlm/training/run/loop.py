"""One run from its config to its result: it is opened, makes its steps, with its hooks beside them, and is finished."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from mlm import models
from mlm.base import config, fields, files, phases, types
from mlm.base.errors import RunStopped
from mlm.base.recipe_constants import MIN_REALISED_RATE
from mlm.data.rows import loader, mixture, pack
from mlm.data.text import corpus
from mlm.models import lm
from mlm.objectives import masking, masking_units
from mlm.training.compilation import cost
from mlm.training.run import checkpoint, extension, finetuning_recipe, heartbeat, initialization, trackers
from mlm.training.run.directory import CHECKPOINT_SCHEMES, RunDirectory
from mlm.training.run.hooks import DivergenceCheck, DivergenceError, Hook, PlateauWarning, Preemption, Profile
from mlm.training.run.log import Log
from mlm.training.run.trackers import RunStatus
from mlm.training.step import parallel, update
from mlm.training.step import program as programs
from mlm.training.validation import references, split_scores

# Fields of config.phases that a phase says as it begins, beside its batch.
PHASE_VALUES = {"mask_rate": "masking rate", "learning_rate": "learning rate", "rope_theta": "rotary base"}
RATE_EXAMPLES = 512  # of the train split, over which the masking rate is known before the run


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a resolved config that cannot be run here or in its workdir; compiles nothing."""
    finetuning_recipe.check(cfg)
    for phase in phases.list_phases(cfg):
        parallel.check(phase.cfg)
        cost.check_memory(phase.cfg)
    trackers.check_installed(cfg)
    if cfg.data.corpus in ("text", "parallel"):
        corpus.CORPORA[cfg.data.corpus](cfg.data)  # raises for a file that is missing
    files.check_folder("config.workdir", cfg.workdir, schemes=CHECKPOINT_SCHEMES)
    RunDirectory(cfg.workdir).check(cfg)


def train(cfg: config.Config, packed: pack.PackedDataset) -> dict:
    """Trains the run of a config that `check` has passed to its end, from its newest checkpoint if it has one.

    Returns its result. Of successive runs that differ in traced values alone, only the first compiles.

    Raises:
        ConfigError: the directory holds another run, or what the run starts from is not what its config says.
        RunStopped: after SIGTERM or SIGINT.
        DivergenceError: the loss is not finite.
    """
    directory = RunDirectory(cfg.workdir)
    cfg, result = directory.recover(cfg, packed.manifest["inputs"], packed.tokenizer)
    if result is not None:
        return result
    with directory.lock(), open_run(directory, cfg, packed) as (run, state):
        outcome = train_runs([run], SingleRun(run, state))[cfg.workdir]
    if isinstance(outcome, DivergenceError):
        raise outcome
    return outcome


@contextlib.contextmanager
def open_run(directory: RunDirectory, cfg: config.Config, packed: pack.PackedDataset, *, cut: bool = True):
    """A run with its files open, and the state (numpy) to continue from; cut: as in loader.iterate_train_batches."""
    segments = pack.list_segments(cfg, packed)
    teacher = initialization.load_teacher(cfg, packed.tokenizer)
    teacher_model = teacher.cfg.model if teacher else None
    program = programs.build_program(cfg, packed.dataset_info, teacher=teacher_model)
    with checkpoint.open_manager(directory.checkpoints, [extension.count_stable_steps(cfg)]) as checkpoints:
        state, totals, _ = checkpoint.restore_or_init(checkpoints, cfg, packed.manifest["inputs"], program)
        sources = {"teacher": {"path": cfg.distillation.teacher, "sha256": teacher.digest}} if teacher else {}
        if state.step == 0:
            state, source = initialization.init_from_source(cfg, state, packed.tokenizer)
            sources |= source
            if source and (link_params := program.objective.link_params):
                state = state._replace(params=link_params(state.params))
        if teacher:
            state = state._replace(params=state.params | {types.TEACHER: teacher.params["model"]})
        if parallel.is_primary():
            directory.record_start(cfg, packed.manifest["inputs"], packed.tokenizer, int(state.step), sources)
        run = TrainingRun(directory, cfg, segments, program, checkpoints, int(state.step), totals, cut, teacher_model)
        with contextlib.closing(run):
            yield run, state


class Evaluate(Hook):
    """Evaluates every `train.eval_every` steps and after the last one, beside the references of the data."""

    def __init__(
        self, cfg: config.Config, program: programs.Program, packed: pack.PackedDataset, log: Log, checkpoints
    ):
        self.cfg, self.program, self.packed, self.log = cfg, program, packed, log
        self.divergence_check = DivergenceCheck(cfg.optim, checkpoints)
        self.references = references.compute_references(cfg, program, packed)
        self.scores = (*program.objective.scores, *self.references.scores)
        self.newest: dict[int, tuple[split_scores.Columns, dict]] = {}  # the newest evaluation, by its step

    def is_due(self, step: int) -> bool:
        """Whether an evaluation follows a step."""
        train = self.cfg.train
        return step == train.steps or bool(train.eval_every and step % train.eval_every == 0)

    def on_pause(self, step: int, state, due: bool, stop: bool) -> None:
        """Evaluates the state, if that is due, and logs the scores."""
        if due:
            phase_cfg, program = phases.select_model(self.cfg, step), self.program
            if phase_cfg != self.cfg:
                program = programs.build_program(phase_cfg, self.packed.dataset_info)
            columns = self.references.add_columns(split_scores.evaluate_split(self.cfg, program, state, self.packed))
            values, first = split_scores.summarize(columns, self.scores), self.scores[0]
            self.divergence_check.check_values(step, {first.title: values[first.name]})
            self.newest = {step: (columns, values)}
            self.log.write_evaluation(step, values, self.scores)

    def summarize(self) -> Mapping[str, Any]:
        """The classes, or the numbers, of a task's held-out examples as they were predicted."""
        return split_scores.count_labels(self.cfg, self.packed, self.newest[self.cfg.train.steps][0])


class TrainingRun:
    """A run without its steps: its batches, and its hooks in the order in which they run."""

    def __init__(
        self,
        directory: RunDirectory,
        cfg: config.Config,
        segments: Sequence[mixture.Segment],
        program: programs.Program,
        checkpoints,
        start_step: int,
        totals: Mapping[str, Any],
        cut: bool,
        teacher_model: config.Model | None,
    ):
        packed, self.start_step, self.teacher_model = segments[-1].packed, start_step, teacher_model
        self.segments, self.segment = segments, segments[0]  # the latter: of the newest batch
        self.directory, self.cfg, self.packed = directory, cfg, packed
        self.program, self.checkpoints = program, checkpoints
        self.data_identity = packed.manifest["inputs"]
        self.abstract_params = program.init_state.eval_shape(programs.make_train_hparams(cfg)).params
        self.log = Log(directory, cfg, program.objective, start_step, totals, segments)
        self.write_notes()
        self.evaluate = Evaluate(cfg, program, packed, self.log, checkpoints)
        write = self.log.write_message
        # Evaluations and milestones precede the checkpoint, so that a run continued from that lacks none.
        self.hooks = [
            self.evaluate.divergence_check,
            self.log,
            PlateauWarning(cfg, program.objective, packed.dataset_info, write, totals),
            *([Profile(cfg.train.profile, directory.profile, write)] if cfg.train.profile else []),
            self.evaluate,
            *self.make_milestone_hooks(),
            checkpoint.Checkpoint(cfg, self.data_identity, program, self.checkpoints, self.get_totals),
        ]
        self.batches = self.iterate_batches(cut)
        self.get_pending: Callable | None = None  # waits for the metrics of the step before

    def iterate_batches(self, cut: bool) -> Iterator[types.Batch]:
        """The batches from start_step to the run's end, phase after phase; sets `segment` to that of the batch."""
        cut = cut and self.cfg.model.directionality != "two_stack"  # its right stack reads padding first
        for segment in self.segments:
            self.segment, phase = segment, segment.phase
            start = max(self.start_step, phase.first_step)
            if start >= phase.end_step:
                continue
            if len(self.segments) > 1:
                self.log.write_message(describe_phase(segment, self.cfg.phases))
            batches = loader.iterate_train_batches(
                segment.packed.train,
                seed=self.cfg.seed,
                batch_size=phase.cfg.train.batch_size,
                start_step=start,
                first_step=phase.first_step,
                draw=loader.draw_from_sources(segment.sources, segment.phase.number, self.cfg.seed, segment.offset_S),
                cut=cut,
                grouped=self.cfg.train.group_by_length,
                **parallel.get_process_position(),
            )
            yield from itertools.islice(batches, phase.end_step - start)

    def write_notes(self) -> None:
        """Says what a person may not expect: fewer masks, plain attention, matrices that each device holds whole."""
        notes = [explain_low_masking_rate(self.cfg, self.packed), models.explain_plain_attention(self.cfg)]
        mode = self.cfg.parallel.mode
        if parallel.MODES[mode].shards_params:
            names = self.program.partitioner.list_whole_matrices(self.abstract_params)
            note = f"config.parallel.mode = {mode}: each device holds all of {', '.join(names)}, of which the number "
            notes += [f"{note}of devices divides no axis"] if names else []
        for note in filter(None, notes):
            self.log.write_message(note)

    def make_milestone_hooks(self) -> list[checkpoint.MilestoneCheckpoint]:
        """The hook that keeps milestones, if the config has any; says how many there will be, and how large."""
        cfg, program = self.cfg, self.program
        if not cfg.train.milestones:
            return []
        steps = checkpoint.list_milestone_steps(cfg.train, self.segments)
        params = jax.tree.leaves(self.abstract_params)
        megabytes = sum(leaf.size * leaf.dtype.itemsize for leaf in params) / 1e6
        places = f", at steps {', '.join(f'{step:,}' for step in steps)}" if steps else ""
        size = f"{megabytes:.3g} MB of disk each, {len(steps) * megabytes:.3g} in all (parameters alone)"
        self.log.write_message(f"{len(steps)} milestones{places}: {size}")
        milestones = checkpoint.open_manager(self.directory.milestones)
        return [checkpoint.MilestoneCheckpoint(steps, cfg, self.data_identity, program, milestones, self.get_totals)]

    def get_totals(self) -> dict[str, Any]:
        """What the hooks keep, as a checkpoint saves it."""
        return {name: value for hook in self.hooks for name, value in hook.get_totals().items()}

    def finish(self, state) -> dict:
        """Writes the result of the finished run, and returns it."""
        cfg, flops, steps = self.cfg, self.log.step_flops, self.cfg.train.steps
        if steps not in self.evaluate.newest:  # the result of the last step was lost
            self.evaluate.on_pause(steps, state, True, False)
        columns, scores = self.evaluate.newest[steps]
        result = {
            "fingerprint": fields.fingerprint(cfg),
            **fields.build_identity(cfg, self.data_identity),
            "steps": steps,
            "vocab_size": self.packed.dataset_info.vocab_size,
            **lm.count_parameters(self.abstract_params["model"]),
            "flops": flops and flops * steps,
            "evaluation": scores,
            "scores": [score._asdict() for score in self.evaluate.scores],
            **{name: value for hook in self.hooks for name, value in hook.summarize().items()},
        }
        if sources := mixture.describe_sources(self.segments, steps):
            result["sources"] = sources
        self.checkpoints.wait_until_finished()
        if parallel.is_primary():
            self.directory.write_result(result, columns)
        self.log.status = RunStatus.FINISHED
        return result

    def close(self) -> None:
        """Closes the hooks."""
        for hook in self.hooks:
            hook.close()


def describe_phase(segment: mixture.Segment, settings: config.Phases) -> str:
    """What a phase is, as it begins."""
    phase, cfg = segment.phase, segment.phase.cfg
    shares = [f"{source.name} {source.parts[phase.number]}" for source in segment.sources if source.name]
    parts = [f"{cfg.train.batch_size} examples of {cfg.pack.seq_len} tokens a step"]
    for name, words in PHASE_VALUES.items():
        if values := getattr(settings, name):
            parts.append(f"{words} {values[phase.number]:g}")
    parts += [" : ".join(shares)] if shares else []
    return f"phase {phase.number + 1} of {len(settings.shares)}, to step {phase.end_step:,}: {', '.join(parts)}"


def explain_low_masking_rate(cfg: config.Config, packed: pack.PackedDataset) -> str:
    """What to say where masks of words have less than MIN_REALISED_RATE of the tokens asked for; else ""."""
    unit = masking_units.build_unit(programs.make_static_config(cfg), packed.dataset_info)
    if unit is None:
        return ""
    ids_BxL = np.asarray(packed.train["ids"][:RATE_EXAMPLES], np.int32)
    num_slots = masking.count_slots(cfg.mask.max_rate, ids_BxL.shape[1], unit)
    settings = {"num_slots": num_slots, "cdf_V": np.ones(1), "mask_unk": cfg.mask.mask_unk, "unit": unit}
    sample_masks = functools.partial(masking.sample_masks, **settings)
    key_B = update.make_example_keys(np.uint32(cfg.seed), 0, np.arange(len(ids_BxL)))
    masked, _ = jax.jit(sample_masks)(key_B, ids_BxL, programs.make_train_hparams(cfg))
    rate = float(masked.num_corrupted_B.sum() / max(1, masked.num_eligible_B.sum()))
    if rate >= MIN_REALISED_RATE * cfg.mask.rate:
        return ""
    return (
        f"config.mask.unit = {cfg.mask.unit}: masks have {rate:.3f} of the tokens, not config.mask.rate = "
        f"{cfg.mask.rate:g}, since words have too many. In a script without spaces a text is one word: a segmenter can "
        "put data.word_separator between words; else a larger vocabulary, or mask.unit=token, reaches the rate"
    )


class Stepper(Protocol):
    """The steps of runs: `SingleRun`, or `vmapped_runs.VmappedRuns` of several. Runs are numbered from 0."""

    def make_step(self, batches: Mapping[int, types.Batch]) -> Callable[[int], Any]:
        """Makes a step of the runs that have a batch; returns (number of a run) -> its metrics, which waits for it."""
        ...

    def get_state(self, m: int) -> Any:
        """The state of a run, on the devices."""
        ...


class SingleRun:
    """The steps of one run, number 0."""

    def __init__(self, run: TrainingRun, state: types.TrainState):
        self.run, self.segment, self.partitioner = run, None, run.program.partitioner
        self.state = self.partitioner.put_state(state)

    def make_step(self, batches: Mapping[int, types.Batch]) -> Callable[[int], Any]:
        """Makes a step with the batch of run 0."""
        if self.segment is not self.run.segment:
            self.segment = self.run.segment
            cfg, dataset_info = self.segment.phase.cfg, self.segment.packed.dataset_info
            self.hparams = programs.make_train_hparams(cfg)
            built = programs.build_program(cfg, dataset_info, teacher=self.run.teacher_model)
            self.partitioner = built.partitioner
        batch = self.partitioner.put_batch(batches[0])
        self.state, metrics = self.partitioner.train_step(self.state, batch, self.hparams)
        return lambda m: self.partitioner.get_metrics(metrics)

    def get_state(self, m: int) -> Any:
        """The run's state."""
        return self.state


def train_runs(runs: Sequence[TrainingRun], stepper: Stepper) -> dict[str, dict | DivergenceError]:
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
            new_shapes = {(runs[m].segment.phase.number, batches[m].text.ids_BxL.shape) for m in batches} - shapes
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
                    run.log.status = RunStatus.STOPPED
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
