"""The hook that ends a run that diverges: its loss, gradient or parameters are not finite."""

import math
from collections.abc import Mapping
from typing import Any

from mlm.base import config
from mlm.training.run.directory import RunDirectory
from mlm.training.run.hook import Hook

FINITE_METRICS = ("loss", "gradient_norm", "parameter_norm")  # a run where one of them is not finite has diverged


class DivergenceError(Exception):
    """A loss or gradient was not finite."""


class DivergenceCheck(Hook):
    """Raises DivergenceError, the same on every process, before the hooks that record a step or save its state."""

    def __init__(self, cfg: config.Config, checkpoints):
        self.cfg, self.checkpoints = cfg, checkpoints

    def on_metrics(self, step: int, metrics: Mapping[str, Any], pause: bool) -> None:
        """Checks a step's metrics; the error says what to change, and where the run was last good."""
        values = {name: float(metrics[name]) for name in FINITE_METRICS}
        if all(map(math.isfinite, values.values())):
            return
        self.checkpoints.wait_until_finished()
        newest, optim = self.checkpoints.latest_step(), self.cfg.optim
        folder = RunDirectory(self.cfg.workdir).checkpoints
        raise DivergenceError(
            f"step {step:,}: {', '.join(f'{name} {value:.4g}' for name, value in values.items())}; try an "
            f"optim.learning_rate below {optim.learning_rate:g}, an optim.warmup_fraction above "
            f"{optim.warmup_fraction:g}, or an optim.clip_norm "
            + (f"below {optim.clip_norm:g}; " if optim.clip_norm else "such as 1; ")
            + ("there is no checkpoint yet" if newest is None else f"last good checkpoint: {folder}/{newest}")
        )
