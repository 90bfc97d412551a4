"""Function calls in a subprocess: devices belong to the process that touches them first, and its end frees memory."""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from typing import Any

from mlm.base.errors import ConfigError


def start_process(target: Callable, *arguments, daemon: bool = False):
    """Starts target(pipe, *arguments) in a process that sees no Ctrl-C; returns the process and our end of the pipe."""
    context = multiprocessing.get_context("spawn")
    pipe, other_end = context.Pipe()
    process = context.Process(target=target, args=(other_end, *arguments), daemon=daemon)
    resource_tracker.ensure_running()  # its start, else a part of the first process's, would undo the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    other_end.close()
    return process, pipe


class WorkerEnded(Exception):
    """A process did not start, or ended, or was ended after a timeout, without an answer; says how in one line."""


def describe_exit(code: int | None) -> str:
    """How a process ended, by its exit code."""
    return f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code or 0}"


class SubprocessWorker:
    """Another process, which calls functions: it starts with the first call, and anew after a call that failed.

    platform: the only one for JAX there, such as "cpu"; "": any. setup: called first in each process.
    """

    def __init__(self, platform: str = "", setup: Callable[[], Any] | None = None):
        self.arguments = platform, setup
        self.started: tuple[Any, Any] | None = None  # the process, and our end of its pipe

    def call(self, function: Callable, *arguments, timeout: float | None = None) -> Any:
        """function(*arguments). Raises ConfigError as it does; WorkerEnded for any other end, or after `timeout` s."""
        self.started = process, pipe = self.started or start_process(_serve_calls, *self.arguments, daemon=True)
        try:
            pipe.send((function, arguments))
            result, error = None, WorkerEnded(f"it took longer than {timeout or 0:.0f} s")
            if timeout is None or pipe.poll(timeout):
                result, error = pipe.recv()
        except (EOFError, ConnectionError):
            process.join()
            result, error = None, WorkerEnded(f"the subprocess {describe_exit(process.exitcode)}")
        if isinstance(error, WorkerEnded):
            self.close()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Kills the process, whatever it computes, and waits for its end."""
        if self.started:
            process, pipe = self.started
            pipe.close()
            process.kill()
            process.join()
            self.started = None


def map_in_subprocess(function: Callable, items: Iterable, platform: str = "") -> Iterator[Any]:
    """function(item) of each item, in order, from one subprocess; raises as SubprocessWorker.call does."""
    with contextlib.closing(SubprocessWorker(platform)) as worker:
        for item in items:
            yield worker.call(function, item)


def _serve_calls(pipe, platform, setup):
    if platform:
        import jax

        jax.config.update("jax_platforms", platform)
    if setup:
        setup()
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has closed its end
        while True:
            function, arguments = pipe.recv()
            try:
                pipe.send((function(*arguments), None))
            except ConfigError as error:
                pipe.send((None, error))
            except Exception as error:
                pipe.send((None, WorkerEnded(f"{type(error).__name__}: {error}".splitlines()[0])))
