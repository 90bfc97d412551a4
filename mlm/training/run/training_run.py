"""A run without its steps: its files, its batches, its hooks and its result."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mlm import models
from mlm.base import config, fields, files
from mlm.data.rows import loader, pack
from mlm.models import lm
from mlm.training.compilation import cost
from mlm.training.run import checkpoint, divergence, extension, initialization, masking_rate, milestones, plateau
from mlm.training.run.directory import RunDirectory
from mlm.training.run.hook import Hook
from mlm.training.run.log import Log, ModelFlops
from mlm.training.run.profile import Profile
from mlm.training.run.trackers import RunStatus
from mlm.training.step import parallel
from mlm.training.step import program as programs
from mlm.training.validation import references, split_scores


@contextlib.contextmanager
def open_run(cfg: config.Config, packed: pack.PackedDataset, *, cut: bool = True):
    """A run with its files open, and the state (numpy) to continue from; cut: as in loader.iterate_train_batches."""
    program = programs.build_program(cfg, packed.dataset_info)
    with (
        contextlib.closing(checkpoint.open_manager(cfg.workdir, extension.count_stable_steps(cfg))) as checkpoints,
        contextlib.ExitStack() as stack,
    ):
        managers = [checkpoints]
        if cfg.train.milestones or checkpoint.list_milestones(cfg.workdir):
            managers.append(stack.enter_context(contextlib.closing(checkpoint.open_milestones(cfg.workdir))))
        migrate_extended(cfg, managers)
        saved = checkpoint.restore_or_init(checkpoints, cfg, packed.manifest["inputs"], program)
        if saved.state.step == 0:
            saved = saved._replace(state=initialization.init_from_source(cfg, saved.state, packed.tokenizer))
        with contextlib.closing(TrainingRun(cfg, packed, program, managers, saved, cut)) as run:
            if message := models.explain_plain_attention(cfg):
                run.log.write_message(message)
            yield run, saved.state


def migrate_extended(cfg: config.Config, managers: Sequence) -> None:
    """Archives the results, and deletes the checkpoints and milestones, that an extended run does not share."""
    directory, saved = RunDirectory(cfg.workdir), None
    with files.recover_damaged():
        saved = directory.read_identity()
    if "original" in (saved or {}):
        if parallel.is_primary():
            directory.archive_results(cfg)
        for manager in managers:
            for step in checkpoint.find_superseded(manager, cfg):
                manager.delete(step)


class Evaluate(Hook):
    """Evaluates every `train.eval_every` steps and after the last one, beside the references of the data."""

    def __init__(self, cfg: config.Config, program: programs.Program, packed: pack.PackedDataset, log: Log):
        self.cfg, self.program, self.packed, self.log = cfg, program, packed, log
        self.references = references.compute_references(cfg, program, packed)
        self.scores = (*program.objective.scores, *self.references.scores)
        self.newest: dict[int, tuple[split_scores.Columns, dict]] = {}  # the newest evaluation, by its step

    def is_due(self, step: int) -> bool:
        """Whether an evaluation follows a step."""
        train = self.cfg.train
        return step == train.steps or bool(train.eval_every and step % train.eval_every == 0)

    def on_pause(self, step: int, state, due: bool, stop: bool) -> None:
        """Evaluates, if that is due."""
        if due:
            self.evaluate(step, state)

    def evaluate(self, step: int, state) -> None:
        """Evaluates the state after a step, and logs the scores."""
        columns = split_scores.evaluate_split(self.cfg, self.program, state, self.packed)
        columns = self.references.add_columns(columns)
        self.newest = {step: (columns, split_scores.summarize(columns, self.scores))}
        self.log.write_evaluation(step, self.newest[step][1], self.scores)

    def get_final(self, state) -> tuple[split_scores.Columns, dict]:
        """The columns and scores after the last step; evaluates the state if that result was lost."""
        steps = self.cfg.train.steps
        if steps not in self.newest:
            self.evaluate(steps, state)
        return self.newest[steps]


class TrainingRun:
    """A run without its steps: its batches, and its hooks in the order in which they run."""

    def __init__(
        self, cfg, packed: pack.PackedDataset, program: programs.Program, managers: Sequence, saved, cut: bool
    ):
        self.cfg, self.packed, self.program, self.checkpoints = cfg, packed, program, managers[0]
        self.start_step = int(saved.state.step)
        self.data_identity = packed.manifest["inputs"]
        if parallel.is_primary():
            RunDirectory(cfg.workdir).record_start(cfg, self.data_identity, packed.tokenizer, self.start_step)
        self.model_flops = ModelFlops(cfg, packed.dataset_info.vocab_size)
        self.log = Log(cfg, program.objective, self.start_step, saved.totals, self.model_flops)
        if shortfall := masking_rate.describe_shortfall(cfg, packed):
            self.log.write_message(shortfall)
        self.log_whole_matrices()
        self.evaluate = Evaluate(cfg, program, packed, self.log)
        # Evaluations and milestones precede the checkpoint, so that a run continued from that lacks none.
        self.hooks = [
            divergence.DivergenceCheck(cfg, self.checkpoints),
            self.log,
            plateau.PlateauWarning(cfg, program.objective, packed.dataset_info, self.log, saved.totals),
            *([Profile(cfg, self.log)] if cfg.train.profile else []),
            self.evaluate,
            *self.make_milestone_hooks(managers),
            checkpoint.Checkpoint(cfg, self.data_identity, program, self.checkpoints, self.get_totals),
        ]
        self.batches = loader.iterate_train_batches(
            packed.train,
            seed=cfg.seed,
            batch_size=cfg.train.batch_size,
            start_step=self.start_step,
            cut=cut
            and cfg.model.directionality != "two_stack",  # its right stack reads padding first: masks depend on it
            grouped=cfg.train.group_by_length,
            **parallel.get_process_position(),
        )
        self.get_pending: Callable | None = None  # waits for the metrics of the step before

    def log_whole_matrices(self) -> None:
        """Names the matrices that each device holds whole, though config.parallel.mode splits parameters."""
        if parallel.MODES[self.cfg.parallel.mode].shards_params:
            params = self.program.init_state.eval_shape(programs.make_train_hparams(self.cfg)).params
            if names := self.program.partitioner.list_whole_matrices(params):
                self.log.write_message(
                    f"config.parallel.mode = {self.cfg.parallel.mode}: each device holds all of {', '.join(names)}, of "
                    "which the number of devices divides no axis"
                )

    def make_milestone_hooks(self, managers: Sequence) -> list[checkpoint.MilestoneCheckpoint]:
        """The hook that keeps milestones, if the config has any; says how many there will be, and how large."""
        cfg, program = self.cfg, self.program
        if not cfg.train.milestones:
            return []
        steps = milestones.list_steps(cfg, self.packed)
        params = program.init_state.eval_shape(programs.make_train_hparams(cfg)).params
        megabytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params)) / 1e6
        places = f", at steps {', '.join(f'{step:,}' for step in steps)}" if steps else ""
        size = f"{megabytes:.3g} MB of disk each, {len(steps) * megabytes:.3g} in all (parameters alone)"
        self.log.write_message(f"{len(steps)} milestones{places}: {size}")
        return [checkpoint.MilestoneCheckpoint(steps, cfg, self.data_identity, program, managers[1], self.get_totals)]

    def get_totals(self) -> dict[str, Any]:
        """What the hooks keep, as a checkpoint saves it."""
        return {name: value for hook in self.hooks for name, value in hook.get_totals().items()}

    def finish(self, state) -> dict:
        """Writes the result of the finished run, and returns it."""
        cfg, vocab_size = self.cfg, self.packed.dataset_info.vocab_size
        columns, scores = self.evaluate.get_final(state)
        flops = self.model_flops.step_flops
        params = cost.make_abstract_state(programs.make_static_config(cfg), vocab_size).params["model"]
        result = {
            "fingerprint": fields.fingerprint(cfg),
            **fields.build_identity(cfg, self.data_identity),
            "steps": cfg.train.steps,
            "vocab_size": vocab_size,
            **lm.count_parameters(params),
            "flops": flops and flops * cfg.train.steps,
            "evaluation": scores,
            "scores": [score._asdict() for score in self.evaluate.scores],
            **{name: value for hook in self.hooks for name, value in hook.summarize().items()},
        }
        self.checkpoints.wait_until_finished()
        if parallel.is_primary():
            RunDirectory(cfg.workdir).write_result(result, columns)
        self.log.status = RunStatus.FINISHED
        return result

    def close(self) -> None:
        """Closes the hooks."""
        for hook in self.hooks:
            hook.close()
