"""A run from its config to its last evaluation: what the command, `import mlm` and a sweep's worker call."""

import signal

from mlm.base import config, errors
from mlm.data.rows import pack
from mlm.evaluation import evaluation_tasks
from mlm.training.run import loop
from mlm.training.run.preemption import RunStopped
from mlm.training.step import parallel


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a resolved config that cannot be trained, or not be evaluated, here; compiles nothing."""
    loop.check(cfg)
    evaluation_tasks.list_due_cases(cfg)


def train(cfg: config.Config, packed: pack.PackedDataset | None = None) -> dict:
    """Trains the model of a checked config, or continues its run, and runs the evaluations that the config names.

    Args:
        packed: the run's data, if it is loaded already.

    Returns:
        The run's result.

    Raises:
        ConfigError: the directory holds another run.
        DivergenceError, RunStopped: as loop.train.
    """
    try:
        result = loop.train(cfg, packed)
    except errors.ConfigError as error:
        if packed is None or parallel.is_multiprocess() or not loop.can_extend(cfg, packed):
            raise
        raise errors.ConfigError(f"{error}, or --extend_to={cfg.train.steps}, which extends the run there") from None
    try:
        evaluation_tasks.finish_evaluations(cfg, packed)
    except KeyboardInterrupt:
        raise RunStopped(
            f"{cfg.workdir} is trained; the same command runs the missing evaluations", signal.SIGINT
        ) from None
    return result
