"""Handling of loss spikes: the run goes back to before a spike and skips the batches that led to it.

PaLM was trained so (Chowdhery et al. 2022, section 5.1): from a checkpoint about 100 steps before the spike, skipping
200 to 500 batches. The spikes did not come again, and the same batches caused no spike from another checkpoint. Here
the config alone decides how far to go back, and the losses decide when. If the checkpoint of that step is gone, the run
reaches the step again from an earlier one. So a run that is killed and continued at any time skips the same batches.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mlm.base import conditional_fields, config, errors
from mlm.training.run import directory
from mlm.training.run.hook import Hook
from mlm.training.run.log import Log

FINITE_METRICS = ("loss", "gradient_norm", "parameter_norm")  # a run where one of them is not finite has diverged

WINDOW = 100  # steps in the running mean of the loss
NUM_UNCHECKED = 10  # first steps of a run whose loss is not compared with the mean
FIELD_CONDITIONS = (
    conditional_fields.FieldCondition(
        ("train.spike_rewind_steps", "train.spike_max_rewinds"), "train.spike_threshold", excluded_values=(0.0,)
    ),
)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for bad settings of spikes."""
    train = cfg.train
    errors.require(
        train.spike_threshold == 0 or train.spike_threshold > 1,
        "config.train.spike_threshold",
        train.spike_threshold,
        "0, or more than 1",
    )
    errors.require_at_least(1, "config.train.spike_rewind_steps", train.spike_rewind_steps)
    errors.require_at_least(0, "config.train.spike_max_rewinds", train.spike_max_rewinds)


def get_rewind_interval(cfg: config.Config) -> int:
    """Steps between the checkpoints to which a run may go back; 0: it never goes back."""
    return cfg.train.spike_rewind_steps if cfg.train.spike_threshold else 0


class DivergenceError(Exception):
    """A loss or gradient was not finite."""


class LossSpike(DivergenceError):
    """The loss spiked: the run must go back to step `back_to`. spikes: all spikes of the run, this one last."""

    def __init__(self, message: str, spikes: Sequence[Mapping[str, Any]]):
        super().__init__(message)
        self.spikes, self.back_to = spikes, spikes[-1]["back_to"]


class SpikeGuard(Hook):
    """The hook that stops a run that diverges, and records the spikes of its loss; the same on every process.

    A spike has its "step", its "loss" (None: not finite), the running "mean" before it, the step "back_to" which the
    run went, and the numbers of the "first_batch" and the "last_batch" that it skipped, from 0.

    Args:
        totals: those of the run's checkpoint.
        checkpoints: orbax's manager of the run's checkpoints.
        log: gets the records of spikes.
    """

    def __init__(self, cfg: config.Config, totals: Mapping[str, Any], checkpoints, log: Log):
        self.config, self.workdir, self.checkpoints, self.log = cfg.train, cfg.workdir, checkpoints, log
        self.mean, self.spikes = totals.get("loss_mean", 0.0), list(totals.get("spikes", ()))

    def get_totals(self) -> dict[str, Any]:
        """What a checkpoint saves."""
        return {"loss_mean": self.mean, "spikes": self.spikes} if self.config.spike_threshold else {}

    def summarize(self) -> dict[str, Any]:
        """What the run's result has."""
        return {"spikes": self.spikes} if self.config.spike_threshold else {}

    def on_metrics(self, step: int, metrics: Mapping[str, Any], pause: bool) -> None:
        """Checks a step's metrics, and logs the spikes that sent the run back to just before the step.

        Raises LossSpike if the run must go back, and DivergenceError if it did so too often, or does not go back.
        """
        self.check_metrics(step, metrics)
        self.log.write_records(step, self.make_records(step))

    def check_metrics(self, number: int, values: Mapping[str, Any]) -> None:
        """Raises as `on_metrics` does."""
        checked = {name: float(values[name]) for name in FINITE_METRICS}
        is_finite = all(map(math.isfinite, checked.values()))
        reading = ", ".join(f"{name} {value:.4g}" for name, value in checked.items())
        if not self.config.spike_threshold:
            if not is_finite:
                raise DivergenceError(f"step {number:,}: {reading}; {self.describe_newest_checkpoint()}")
            return
        loss = checked["loss"]
        if is_finite and (number <= NUM_UNCHECKED or loss <= self.config.spike_threshold * self.mean):
            self.mean += (loss - self.mean) / min(number, WINDOW)
            return
        back_to = (number - 1) // self.config.spike_rewind_steps * self.config.spike_rewind_steps
        message = (
            f"step {number:,}: loss {loss:.4g}, its running mean {self.mean:.4g}"
            if is_finite
            else f"step {number:,}: {reading}"
        )
        if len(self.spikes) >= self.config.spike_max_rewinds:
            raise DivergenceError(
                f"{message}; it went back {len(self.spikes)} times before (config.train.spike_max_rewinds)"
            )
        num_skipped = self.count_skipped(back_to)
        spike = {
            "step": number,
            "loss": loss if math.isfinite(loss) else None,
            "mean": self.mean,
            "back_to": back_to,
            "first_batch": back_to + num_skipped,
            "last_batch": number - 1 + num_skipped,
        }
        first, last, number = spike["first_batch"], spike["last_batch"], len(self.spikes) + 1
        raise LossSpike(
            f"{message}: back to step {back_to:,}, batches {first:,} to {last:,} are skipped ({number} of "
            f"at most {self.config.spike_max_rewinds} times)",
            [*self.spikes, spike],
        )

    def describe_newest_checkpoint(self) -> str:
        """Where the run can be continued from, for an error message."""
        self.checkpoints.wait_until_finished()
        step = self.checkpoints.latest_step()
        return (
            "there is no checkpoint yet"
            if step is None
            else f"last good checkpoint: {directory.checkpoint_folder(self.workdir)}/{step}"
        )

    def count_skipped(self, step: int) -> int:
        """How many batches the run has skipped up to a step."""
        return sum(spike["step"] - spike["back_to"] for spike in self.spikes if spike["back_to"] <= step)

    def iterate_batches(self, make_batches: Callable[[int], Iterator], step: int) -> Iterator:
        """The batches of the steps after `step`; make_batches(number) gives all batches from that number on."""
        for back_to in sorted({spike["back_to"] for spike in self.spikes if spike["back_to"] > step}):
            yield from itertools.islice(make_batches(step + self.count_skipped(step)), back_to - step)
            step = back_to
        yield from make_batches(step + self.count_skipped(step))

    def make_records(self, number: int) -> list[dict[str, Any]]:
        """The records of metrics.jsonl at a step, on the spikes that sent the run back to just before it."""
        return [
            {f"spike_{name}": value for name, value in spike.items()}
            for spike in self.spikes
            if spike["back_to"] == number - 1
        ]
