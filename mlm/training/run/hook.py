"""Hooks: what a run does beside its steps."""

from collections.abc import Mapping
from typing import Any


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
        """Takes the state after a step, on the devices; the next step donates its memory.

        Args:
            due: whether this hook is; the run pauses for all hooks at once, so it may be due for another one.
            stop: whether the run stops there.
        """

    def get_totals(self) -> Mapping[str, Any]:
        """What each checkpoint saves of this hook, as JSON can hold it; its names are those of no other hook's."""
        return {}

    def summarize(self) -> Mapping[str, Any]:
        """What this hook adds to the result of the finished run."""
        return {}

    def close(self) -> None:
        """Closes what the hook holds open."""
