"""Hooks: what a run does beside its steps; and requests to stop it."""

import math
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mlm import models
from mlm.base import config, errors, recipe_constants, storage, types
from mlm.base.special import NUM_SPECIAL
from mlm.objectives import causal
from mlm.training.step import parallel
from mlm.training.validation.split_scores import name_sums

FINITE_METRICS = ("loss", "gradient_norm", "parameter_norm")  # a run where one of them is not finite has diverged
CHECK_FRACTION = 0.1  # share of the steps after which the plateau is looked for, or the warm-up if it is longer
WINDOW_FRACTION = 0.05  # share of the steps over whose losses that takes the mean
MIN_STEPS = 50  # before it: no recipe has left the unigram's loss sooner
MARGIN = 0.1  # nats below the unigram loss that count as having left it
# Within this time SIGTERM counts once: a cluster sends it to every process, and launchers forward it to their children.
REPEAT_SECONDS = 1.0


class Hook:
    """One thing that a run does beside its steps; a subclass overrides what it needs.

    Every process of a run has the same hooks, and `is_due` must say the same on each: it depends on the step alone.
    What a hook needs after a restart it returns from `get_totals`; `TrainingRun.__init__` hands it the totals of the
    checkpoint that the run continues from.

    After a step has started, the run hands the metrics of the step before to each hook: one step late, so that devices
    never wait for this process. If any hook is due, or the run stops, the run pauses: it waits for the step, hands its
    metrics to each hook, then its state.
    """

    def is_due(self, step: int) -> bool:
        """Whether the run must pause after a step."""
        return False

    def on_metrics(self, step: int, metrics: Mapping[str, Any], pause: bool) -> None:
        """Takes a step's metrics, those of `update.train_step` as numpy; pause: the run pauses after this step."""

    def on_pause(self, step: int, state, due: bool, stop: bool) -> None:
        """Takes the state after a step, on the devices; due: whether this hook is; stop: whether the run ends there."""

    def get_totals(self) -> Mapping[str, Any]:
        """What each checkpoint saves of this hook, as JSON can hold it; its names are those of no other hook's."""
        return {}

    def summarize(self) -> Mapping[str, Any]:
        """What this hook adds to the result of the finished run."""
        return {}

    def close(self) -> None:
        """Closes what the hook holds open."""


class DivergenceError(Exception):
    """A loss, gradient or parameter was not finite."""


class DivergenceCheck(Hook):
    """Raises DivergenceError, the same on every process, before the hooks that record a step or save its state."""

    def __init__(self, optim: config.Optim, checkpoints):
        self.optim, self.checkpoints = optim, checkpoints

    def on_metrics(self, step: int, metrics: Mapping[str, Any], pause: bool) -> None:
        """Checks a step's metrics."""
        self.check_values(step, {name: float(metrics[name]) for name in FINITE_METRICS})

    def check_values(self, step: int, values: Mapping[str, float]) -> None:
        """Raises unless all are finite; the error says what to change, and where the run was last good."""
        if all(map(math.isfinite, values.values())):
            return
        self.checkpoints.wait_until_finished()
        newest, optim = self.checkpoints.latest_step(), self.optim
        good = f"last good checkpoint: {self.checkpoints.directory}/{newest}"
        raise DivergenceError(
            f"step {step:,}: {', '.join(f'{name} {value:.4g}' for name, value in values.items())}; try an "
            f"optim.learning_rate below {optim.learning_rate:g}, an optim.warmup_fraction above "
            f"{optim.warmup_fraction:g}, or an optim.clip_norm "
            f"{f'below {optim.clip_norm:g}' if optim.clip_norm else 'such as 1'}; "
            f"{'there is no checkpoint yet' if newest is None else good}"
        )


def compute_unigram_entropy(cfg: config.Config, objective: types.Objective, dataset: types.DatasetInfo) -> float:
    """The entropy, in nats, of the train split's frequencies of what the objective predicts: the unigram's loss."""
    counts_V = np.frombuffer(dataset.unigram_counts, np.int64)
    is_target_V = np.arange(len(counts_V)) >= NUM_SPECIAL
    if objective.predicts_special:
        is_target_V = causal.find_targets(cfg.model.directionality, len(counts_V))
    counts_V = counts_V[is_target_V]
    share_V = counts_V[counts_V > 0] / counts_V.sum()
    return float(-(share_V * np.log(share_V)).sum())


def list_advice(cfg: config.Config) -> str:
    """What may help a model to leave the plateau, as text; names no setting that the config has."""
    advice = ["another optim.learning_rate", "a longer optim.warmup_fraction"]
    if cfg.model.init_std < 0.05:
        advice.append(f"model.init_std={recipe_constants.SMALL_INIT_STD}")
    if models.reads_field(cfg, "positions") and cfg.model.positions != recipe_constants.SMALL_POSITIONS:
        advice.append(f"model.positions={recipe_constants.SMALL_POSITIONS}")
    return ", or ".join([", ".join(advice[:-1]), advice[-1]])


class PlateauWarning(Hook):
    """Says what loss the unigram has; after a tenth of the steps, or the warm-up, if training has not left it.

    A model of text begins there: it learns how frequent each token is, then how tokens depend on each other. A recipe
    that does not suit the model leaves it there for most of the run. Runs whose check would come before MIN_STEPS steps
    have none, nor have those with label smoothing, which the training loss contains.
    """

    def __init__(
        self, cfg: config.Config, objective: types.Objective, dataset: types.DatasetInfo, write_message, totals
    ):
        self.write_message, self.advice = write_message, list_advice(cfg)
        self.check_step = math.ceil(cfg.train.steps * max(CHECK_FRACTION, cfg.optim.warmup_fraction))
        self.window = math.ceil(cfg.train.steps * WINDOW_FRACTION)
        self.sums: list[float] = totals.get("plateau_sums", [0.0, 0.0])  # nats, predictions
        self.found: dict[str, float] | None = totals.get("plateau")
        first = objective.scores[0]
        has_unigram = ("unigram", first.name) in [(one.reference, one.reference_for) for one in objective.scores]
        checks = has_unigram and self.check_step >= MIN_STEPS and not cfg.optim.label_smoothing
        self.columns = first.columns if checks else ()
        self.unigram_loss = compute_unigram_entropy(cfg, objective, dataset) if has_unigram else 0.0
        if has_unigram:
            write_message(f"token frequencies alone give a loss of {self.unigram_loss:.3f}")

    def on_metrics(self, step: int, metrics: Mapping[str, Any], pause: bool) -> None:
        """Adds the losses of the steps before the check, and makes the check."""
        if not self.columns or not self.check_step - self.window < step <= self.check_step:
            return
        sums = name_sums(metrics["sums"])
        self.sums = [total + float(sums[name]) for total, name in zip(self.sums, self.columns, strict=True)]
        if step == self.check_step:
            loss = self.sums[0] / max(self.sums[1], 1)
            if loss > self.unigram_loss - MARGIN:
                self.found = {"step": step, "loss": loss, "unigram_loss": self.unigram_loss}
                self.write_message(
                    f"step {step:,}: the training loss, {loss:.2f}, is not {MARGIN} nats below that of token "
                    f"frequencies, {self.unigram_loss:.2f}. If it stays so, try {self.advice}"
                )

    def get_totals(self) -> dict[str, Any]:
        """What a checkpoint saves: the sums so far, and what the check found."""
        return ({"plateau_sums": self.sums} if any(self.sums) else {}) | self.summarize()

    def summarize(self) -> dict[str, Any]:
        """What the result keeps: {} unless the check found a plateau."""
        return {"plateau": self.found} if self.found else {}


def parse_profile(text: str) -> tuple[int, int]:
    """The first step of config.train.profile and the number of steps. Raises ConfigError for another text."""
    match = re.fullmatch(r"(\d+):([1-9]\d*)", text)
    if match is None or int(match[1]) < 2:
        raise errors.ConfigError(
            f"config.train.profile = {text!r}: expected STEP:STEPS, such as 100:5, from step 2 on (the first compiles)"
        )
    return int(match[1]), int(match[2])


class Profile(Hook):
    """Traces steps of the primary process with JAX's profiler (config.train.profile): its host, and its devices."""

    def __init__(self, profile: str, path: Path, write_message: Callable[[str], None]):
        first, count = parse_profile(profile)
        self.before, self.last, self.path, self.write_message = first - 1, first + count - 1, path, write_message
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
            self.write_message(
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


class Preemption:
    """A request to stop the run, by a signal or a cluster's notice of preemption; its processes agree on the step.

    A run with one process handles SIGTERM and SIGINT, and a second signal ends it at once. A run with several handles
    SIGTERM alone, through JAX's preemption service.
    """

    def __init__(self):
        self.signal: int | None = None
        self.signal_time = 0.0
        self.previous_handlers = {}

    def __enter__(self):
        if not parallel.is_multiprocess() and threading.current_thread() is threading.main_thread():
            self.previous_handlers = {
                number: signal.signal(number, self.handle_signal) for number in (signal.SIGTERM, signal.SIGINT)
            }
        return self

    def __exit__(self, *failure):
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)

    def handle_signal(self, number, frame):
        """Notes the first signal; ends the process at a second one."""
        if self.signal is None:
            self.signal, self.signal_time = number, time.monotonic()
        elif number != signal.SIGTERM or time.monotonic() - self.signal_time > REPEAT_SECONDS:
            self.__exit__()
            signal.raise_signal(number)

    def is_requested(self, checkpoints, step: int) -> bool:
        """Whether the run must stop after a step."""
        if parallel.is_multiprocess() and checkpoints.reached_preemption(step):
            self.signal = signal.SIGTERM
        return self.signal is not None
