"""Work in a process of its own: devices belong to the process that touches them first, and memory goes back at its end.
"""
import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from typing import Any

from mlm.base.errors import ConfigError


@contextlib.contextmanager
def apart():
    """A process started in this block is not told of Ctrl-C, which a terminal tells all that it started, from its first
    moment on: who started it decides what becomes of it."""
    resource_tracker.ensure_running()  # its start, else a part of the first process's, would undo the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class CannotStart(Exception):
    """A process that is needed could not be started, or not get ready; why, in a line."""


class Ended(Exception):
    """The process ended, or was ended for the time it took, without an answer; how, in a line."""


class Process:
    """Another process, which calls what it is asked to; platform: the only one that JAX may use there, such as "cpu",
    or "" for what there is."""

    def __init__(self, platform: str = ""):
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe()
        self.process = context.Process(target=_answer, args=(theirs, platform), daemon=True)
        with apart():
            self.process.start()
        theirs.close()

    def ask(self, function: Callable, item, seconds: float | None = None):
        """function(item). Raises ConfigError as that does, and Ended for any other error, for the end of the process,
        and where there is no answer after so many seconds."""
        try:
            self.ours.send((function, item))
            if seconds is not None and not self.ours.poll(seconds):
                raise Ended(f"it took longer than {seconds:.0f} s")
            answer, error = self.ours.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise Ended(f"the process that was to answer {how}") from None
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        self.ours.close()
        self.process.kill()
        self.process.join()


def each(function: Callable, items: Iterable, platform: str = "") -> Iterator[Any]:
    """function(item) of each item, in order, from one other process, which ends with the last, or with this generator;
    raises as `ask` does."""
    with contextlib.closing(Process(platform)) as process:
        for item in items:
            yield process.ask(function, item)


def _answer(orders, platform):
    if platform:
        import jax

        jax.config.update("jax_platforms", platform)
    with contextlib.suppress(EOFError, ConnectionError):  # nobody asks any longer
        while True:
            function, item = orders.recv()
            try:
                orders.send((function(item), None))
            except ConfigError as error:
                orders.send((None, error))
            except Exception as error:
                orders.send((None, Ended(f"{type(error).__name__}: {error}".splitlines()[0])))
