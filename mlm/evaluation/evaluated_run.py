"""A run from its config to its last evaluation: what the commands, `import mlm` and a sweep's worker call."""

import contextlib
import signal
from collections.abc import Callable, Mapping
from typing import Any

from mlm.base import config, errors, fields
from mlm.data.rows import pack
from mlm.evaluation import evaluation_tasks
from mlm.training.run import checkpoint, extension, loop, trained_run
from mlm.training.run.directory import RunDirectory, pin_kernels
from mlm.training.step import program


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a resolved config that cannot be trained, or not be evaluated, here; compiles nothing."""
    loop.check(cfg)
    evaluation_tasks.list_due_cases(cfg)
    for evaluation in evaluation_tasks.EVALUATIONS.values():
        evaluation.check(cfg)


def train_and_evaluate(cfg: config.Config, packed: pack.PackedDataset) -> dict:
    """Trains the model of a config that `check` has passed, or continues its run, and evaluates what the config names.

    Returns the run's result; raises as loop.train.
    """
    result = loop.train(cfg, packed)
    try:
        evaluation_tasks.finish_evaluations(cfg, packed)
    except KeyboardInterrupt:
        raise errors.RunStopped(
            f"{cfg.workdir} is trained; the same command runs the missing evaluations", signal.SIGINT
        ) from None
    return result


def extend(cfg: config.Config, packed: pack.PackedDataset) -> config.Config:
    """Extends the run in config.workdir, done or not, to cfg's steps; returns the config with which it continues.

    cfg: one that `check` has passed. The results of the shorter run are renamed, and its checkpoints and milestones
    that the longer one does not share deleted; if a kill prevents that, the same call again does it. Works in a single
    process only. Raises ConfigError as `extension.extend_config` does, if there is no run, or if the longer run shares
    none of its checkpoints.
    """
    directory, data_identity = RunDirectory(cfg.workdir), packed.manifest["inputs"]
    directory.require_identity()
    with directory.lock():
        saved = directory.require_identity()
        extended = extension.extend_config(pin_kernels(cfg, saved), data_identity, saved)
        if extended.train.steps > saved["config"]["train.steps"]:
            pack.list_segments(extended, packed)  # raises where it repeats a source too often
            built = program.build_program(extended, packed.dataset_info)
            with checkpoint.open_manager(directory.checkpoints) as checkpoints:
                checkpoint.check_extendable(checkpoints, extended, data_identity, built)
            directory.write_extended_identity(extended, data_identity, saved)
        checkpoint.delete_superseded(directory, extended)
        directory.archive_results(extended.train.steps)
    return extended


def can_extend(cfg: config.Config, packed: pack.PackedDataset) -> bool:
    """Whether config.workdir holds a run that differs from cfg's, but that `extend` would turn into it."""
    with contextlib.suppress(errors.ConfigError):
        if saved := RunDirectory(cfg.workdir).read_identity():
            extension.extend_config(cfg, packed.manifest["inputs"], saved)
            return any(fields.flatten(cfg)[name] != saved["config"][name] for name in extension.EXTENDABLE_FIELDS)
    return False


def evaluate_milestones(workdir: str, list_cases: Callable, overrides: Mapping[str, Any]) -> dict[int, dict]:
    """Evaluates the milestones of a run; returns the contents of evaluations.json by step. Raises ConfigError for none.

    list_cases: (run) -> its cases, which all milestones share; overrides: the settings of trained_run.load.
    """
    directory = RunDirectory(workdir)
    directory.require_identity()
    cases, by_step = None, {}
    for step in checkpoint.list_milestones(directory):
        run = trained_run.load(workdir, overrides, step=step)
        cases = list_cases(run) if cases is None else cases
        by_step[step] = evaluation_tasks.evaluate(run, cases)
    if not by_step:
        raise errors.ConfigError(
            f"run {workdir!r}, --milestones: it has none; train one with train.milestones=log:24, or evaluate without "
            "--milestones"
        )
    return by_step
