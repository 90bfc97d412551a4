"""A loss that jumps, answered by going back to before it and leaving out the batches that led there.

As PaLM was trained (Chowdhery et al. 2022, section 5.1): from a checkpoint about 100 steps before a spike, without 200
to 500 batches, it did not come again, nor did those batches bring one to another state. Here the config alone says how
far to go back, and the losses when: where no checkpoint of that step is left, the run comes to it again from an earlier
one. So one that is killed, stopped and continued at any moment leaves out what it would have left out anyway.
"""
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mlm.base import conditional_fields, config, errors
from mlm.train.run.log import SIZES, Diverged

WINDOW = 100  # steps that the running mean of the loss is over
FIRST = 10    # steps of a run whose loss is not compared with it
READ = (conditional_fields.FieldCondition(("train.spike_rewind_steps", "train.spike_max_rewinds"),
                                          "train.spike_threshold", unless=(0.0,)),)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for knobs of spikes that no run could use."""
    train = cfg.train
    errors.require(train.spike_threshold == 0 or train.spike_threshold > 1, "config.train.spike_threshold",
                  train.spike_threshold, "0, or more than 1")
    errors.require_at_least(1, "config.train.spike_rewind_steps", train.spike_rewind_steps)
    errors.require_at_least(0, "config.train.spike_max_rewinds", train.spike_max_rewinds)


def every(cfg: config.Config) -> int:
    """Steps between two checkpoints that a run may go back to; 0: it never does."""
    return cfg.train.spike_rewind_steps if cfg.train.spike_threshold else 0


class Spike(Diverged):
    """The loss of a step jumped: the run is to go back to step `back_to`. found: all its spikes, this one the last."""

    def __init__(self, message: str, found: Sequence[Mapping[str, Any]]):
        super().__init__(message)
        self.found, self.back_to = found, found[-1]["back_to"]


class Spikes:
    """What a run knows of its loss and its spikes; the same on every process.

    totals: those of its checkpoint. Of each spike: its "step", its "loss" (None: not finite), the "mean" before it, the
    step "back_to" which the run went, and the numbers of the first and last batch that it left out, from 0.
    """

    def __init__(self, cfg: config.Config, totals: Mapping[str, Any]):
        self.knobs = cfg.train
        self.mean, self.found = totals.get("loss_mean", 0.0), list(totals.get("spikes", ()))

    def totals(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"loss_mean": self.mean, "spikes": self.found} if self.knobs.spike_threshold else {}

    def result(self) -> dict[str, Any]:
        return {"spikes": self.found} if self.knobs.spike_threshold else {}

    def see(self, number: int, values: Mapping[str, Any]) -> None:
        """Takes the metrics of a step. Raises Spike where the run is to go back, Diverged where it did too often."""
        if not self.knobs.spike_threshold:
            return
        loss = float(values["loss"])
        finite = all(math.isfinite(float(values[name])) for name in SIZES)
        if finite and (number <= FIRST or loss <= self.knobs.spike_threshold * self.mean):
            self.mean += (loss - self.mean) / min(number, WINDOW)
            return
        back_to = (number - 1) // self.knobs.spike_rewind_steps * self.knobs.spike_rewind_steps
        said = (f"step {number:,}: loss {loss:.4g}, its running mean {self.mean:.4g}" if finite else
                f"step {number:,}: " + ", ".join(f"{name} {float(values[name]):.4g}" for name in SIZES))
        if len(self.found) >= self.knobs.spike_max_rewinds:
            raise Diverged(f"{said}; it went back {len(self.found)} times before (config.train.spike_max_rewinds)")
        left_out = self.left_out(back_to)
        spike = {"step": number, "loss": loss if math.isfinite(loss) else None, "mean": self.mean, "back_to": back_to,
                 "first_batch": back_to + left_out, "last_batch": number - 1 + left_out}
        raise Spike(f"{said}: back to step {back_to:,}, batches {spike['first_batch']:,} to {spike['last_batch']:,} "
                    f"are left out ({len(self.found) + 1} of at most {self.knobs.spike_max_rewinds} times)",
                    [*self.found, spike])

    def left_out(self, step: int) -> int:
        """How many batches the run has left out when it stands at a step."""
        return sum(spike["step"] - spike["back_to"] for spike in self.found if spike["back_to"] <= step)

    def batches(self, make: Callable[[int], Iterator], step: int) -> Iterator:
        """The batches of the steps after `step`, of those that make(number) gives from that number on."""
        for back_to in sorted({spike["back_to"] for spike in self.found if spike["back_to"] > step}):
            yield from itertools.islice(make(step + self.left_out(step)), back_to - step)
            step = back_to
        yield from make(step + self.left_out(step))

    def records(self, number: int) -> list[dict[str, Any]]:
        """What metrics.jsonl says, at a step, of the spikes that sent the run back to before it."""
        return [{f"spike_{name}": value for name, value in spike.items()} for spike in self.found
                if spike["back_to"] == number - 1]
