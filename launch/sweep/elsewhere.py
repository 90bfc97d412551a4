"""Work in a process of its own: devices belong to the process that touches them first, and memory goes back at its end.
"""
import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlm.base.errors import ConfigError


@contextlib.contextmanager
def apart():
    """A process started in this block is not told of Ctrl-C, which a terminal tells all that it started, from its first
    moment on: who started it decides what becomes of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Ended(Exception):
    """The process ended, or was ended for the time it took, without an answer; how, in a line."""


def each(function: Callable, items: Sequence, *, platform: str = "", seconds: float | None = None) -> Iterator[Any]:
    """function(item) of each item, in order, from one other process, which ends with the last, or with this generator.

    platform: the only one that JAX may use there, such as "cpu"; "" for what there is. seconds: the longest that one
    answer may take. Raises ConfigError as the function does, and Ended.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs, function, items, platform), daemon=True)
    with apart():
        process.start()
    theirs.close()
    try:
        for _ in items:
            if seconds is not None and not ours.poll(seconds):
                raise Ended(f"it took longer than {seconds:.0f} s")
            try:
                answer, error = ours.recv()
            except EOFError:
                process.join()
                code = process.exitcode
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                raise Ended(f"the process that was to answer {how}") from None
            if error is not None:
                raise error
            yield answer
    finally:
        ours.close()
        process.kill()
        process.join()


def _answer(answers, function, items, platform):
    if platform:
        import jax

        jax.config.update("jax_platforms", platform)
    with contextlib.suppress(BrokenPipeError):  # nobody waits any longer
        for item in items:
            try:
                answers.send((function(item), None))
            except ConfigError as error:
                return answers.send((None, error))
            except Exception as error:
                said = f"{type(error).__name__}: {error}".splitlines()
                return answers.send((None, Ended(said[0])))
