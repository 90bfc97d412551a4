"""Hooks: what a run does beside its steps."""

from collections.abc import Mapping
from typing import Any


class Hook:
    """One thing that a run does beside its steps; a subclass overrides what it needs.

    Every process of a run has the same hooks, and `is_due` must say the same on each: it depends on the step alone.
    What a hook needs after a restart stands in the checkpoint's totals (TrainingRun.__init__) or follows from
    metrics.jsonl.

    After a step has started, the run hands the metrics of the step before to each hook: one step late, so that devices
    never wait for this process. If any hook is due, or the run stops, the run pauses: it waits for the step, hands its
    metrics to each hook, then its state.
    """

    def is_due(self, step: int) -> bool:
        """Whether the run must pause after a step."""
        return False

    def on_metrics(self, step: int, metrics: Mapping[str, Any], pause: bool) -> None:
        """Takes the metrics of a step, as numpy arrays. pause: the run pauses after this step.

        The keys are those of `update.train_step`; metrics["sums"] holds sums over the global batch.
        """

    def on_pause(self, step: int, state, stop: bool) -> None:
        """Takes the state after a step, on the devices; the next step donates its memory. stop: the run stops there.

        The run pauses for all hooks at once, so a hook that was not due must ask `is_due` again.
        """

    def close(self) -> None:
        """Closes what the hook holds open."""
