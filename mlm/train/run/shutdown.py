"""How a run is asked to stop."""
import signal
import threading
import time

from mlm.train.step import parallel

ONE = 1.0  # seconds within which SIGTERM counts once: a cluster tells every process, and who started one passes it on


class Stopped(Exception):
    """The run was asked to stop by `signal`; it saved its state first, and the same command continues it."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.signal = number


class Asked:
    """Whether the run was asked to stop; processes of one run agree on the step.

    One process listens to SIGTERM and SIGINT, and a second signal ends it at once. Several listen to SIGTERM alone,
    through JAX's preemption service.
    """

    def __init__(self):
        self.signal, self.when = None, 0.0
        self.before = {}

    def __enter__(self):
        if not parallel.is_multiprocess() and threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *failure):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def note(self, number, frame):
        if self.signal is None:
            self.signal, self.when = number, time.monotonic()
        elif number != signal.SIGTERM or time.monotonic() - self.when > ONE:
            self.__exit__()
            signal.raise_signal(number)

    def now(self, checkpoints, number: int) -> bool:
        if parallel.is_multiprocess() and checkpoints.reached_preemption(number):
            self.signal = signal.SIGTERM
        return self.signal is not None
