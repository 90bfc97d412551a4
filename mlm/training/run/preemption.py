"""Requests to stop a run: signals, or the preemption notice of a cluster."""

import signal
import threading
import time

from mlm.training.step import parallel

# Within this time SIGTERM counts once: a cluster sends it to every process, and launchers forward it to their children.
REPEAT_SECONDS = 1.0


class Preemption:
    """A request to stop the run; the processes of a run agree on the step.

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
