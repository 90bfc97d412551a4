"""The hook that traces some steps of a run with JAX's profiler: config.train.profile."""

import re

import jax

from mlm.base import config, errors, storage
from mlm.training.run.directory import RunDirectory
from mlm.training.run.hook import Hook
from mlm.training.run.log import Log
from mlm.training.step import parallel


def parse(text: str) -> tuple[int, int]:
    """The first step to trace and the number of steps. Raises ConfigError for another text."""
    match = re.fullmatch(r"(\d+):([1-9]\d*)", text)
    if match is None or int(match[1]) < 2:
        raise errors.ConfigError(
            f"config.train.profile = {text!r}: expected STEP:STEPS, such as 100:5, from step 2 on (the first compiles)"
        )
    return int(match[1]), int(match[2])


def check(cfg: config.Config) -> None:
    """Raises ConfigError unless the steps to trace are steps of the run."""
    if cfg.train.profile:
        first, count = parse(cfg.train.profile)
        last = f"steps up to config.train.steps = {cfg.train.steps}"
        errors.require(first + count - 1 <= cfg.train.steps, "config.train.profile", cfg.train.profile, last)


class Profile(Hook):
    """Traces steps of the primary process: its host, and its devices."""

    def __init__(self, cfg: config.Config, log: Log):
        first, count = parse(cfg.train.profile)
        self.before, self.last, self.log = first - 1, first + count - 1, log
        self.path = RunDirectory(cfg.workdir).profile
        self.folder: storage.GrowingFolder | None = None  # while it traces

    def is_due(self, step: int) -> bool:
        """Before the first of the steps and after the last."""
        return step in (self.before, self.last)

    def on_pause(self, step: int, state, due: bool, stop: bool) -> None:
        """Starts the trace, or ends it and says where it is."""
        if step == self.before and parallel.is_primary() and not stop:
            self.folder = storage.GrowingFolder(self.path)
            jax.profiler.start_trace(str(self.folder.local))
        elif step == self.last and self.folder is not None:
            self.close()
            self.log.write_message(
                f"steps {self.before + 1:,} to {self.last:,} are traced; xprof --logdir={self.path} shows them (pip "
                "install xprof), and ui.perfetto.dev opens the *.trace.json.gz there"
            )

    def close(self) -> None:
        """Ends a trace that runs."""
        if self.folder is not None:
            jax.profiler.stop_trace()
            self.folder.upload()
            self.folder.close()
            self.folder = None
