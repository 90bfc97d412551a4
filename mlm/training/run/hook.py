"""Hooks: what a run does beside its steps."""

from collections.abc import Mapping
from typing import Any


class Hook:
    """One thing that a run does beside its steps; a subclass overrides what it needs.

    After a step has started, the run hands the metrics of the step before to each hook: one step late, so that devices
    never wait for this process. If any hook is due, or the run stops, the run pauses: it waits for the step, hands its
    metrics to each hook, then its state.
    """

    def is_due(self, step: int) -> bool:
        """Whether the run must pause after a step."""
        return False

    def on_metrics(self, step: int, metrics: Mapping[str, Any], pause: bool) -> None:
        """Takes the metrics of a step, as numpy arrays. pause: the run pauses after this step."""

    def on_pause(self, step: int, state, stop: bool) -> None:
        """Takes the state after a step, on the devices. stop: the run stops there."""

    def close(self) -> None:
        """Closes what the hook holds open."""
