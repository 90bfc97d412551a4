"""Several processes of one run on this host: started, watched, and all started again when one dies or hangs.

A process hangs that makes no step for --hang_after seconds, or for ten times as many where it compiles, evaluates or
saves (mlm/train/run/heartbeat.py). Before the first step is prepared and after the last, where rows are packed and the model
is asked, none is thought to hang. What another start would meet again, such as a wrong field or a loss that is not
finite, ends the run.
"""
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from mlm.base import errors
from mlm.launch.child_process import Child, gpus

LOOK = 0.2  # seconds between two looks at the processes
SETTLE = 8  # seconds in which the others end, once one has ended with a word


class Asked(NamedTuple):
    """The flags of mlm.cli.train."""

    processes: int
    restarts: int
    hang_after: float   # seconds
    workdir: str


class End(NamedTuple):
    """How the processes of one start ended."""

    code: int
    why: str = ""       # they are to start again, "" where they are not
    step: int = 0       # that they came to


def check(asked: Asked) -> None:
    """Raises ConfigError where the GPUs of this host do not divide among the processes."""
    count = len(gpus())
    errors.require(count % asked.processes == 0, "--local_processes", asked.processes,
                  f"a divisor of {count}, the number of GPUs here")


def run(asked: Asked, words: Sequence[str]) -> int:
    """Runs Python with these words, those of mlm.cli.train, in so many processes to their end; returns the exit code."""
    tries = reached = 0
    with Told() as told:
        while True:
            end = once(asked, words, told)
            if not end.why:
                return end.code
            tries = 1 if end.step > reached else tries + 1
            reached = max(reached, end.step)
            if tries > asked.restarts:
                say(f"error: {end.why}; --restarts = {asked.restarts} brought it no further; the same command "
                    "continues")
                return end.code
            say(f"{end.why}: all start again from step {newest(asked.workdir):,} (restart {tries} of at most "
                f"{asked.restarts})")


def once(asked: Asked, words: Sequence[str], told: "Told") -> End:
    """Starts all processes, which go on from the newest checkpoint, and returns when they have ended."""
    with contextlib.ExitStack() as stack:
        theirs, ours = os.pipe()
        stack.callback(os.close, ours)
        with contextlib.closing(os.fdopen(theirs)):
            port = free_port()
            children = [stack.enter_context(Child(number, asked.processes, words, port, theirs))
                        for number in range(asked.processes)]
        passed_on, looked = False, time.monotonic()
        while any(child.code is None for child in children):
            time.sleep(LOOK)
            now = time.monotonic()
            if now - looked > SETTLE:  # this process was itself stopped for a while, and heard nothing
                for child in children:
                    child.heard = now
            looked = now
            silent = [child for child in children if child.silent(asked.hang_after)]
            if told.signal:
                if silent or not any(child.saves() for child in children):
                    break
                if not passed_on:
                    passed_on = True
                    for child in children:
                        child.popen.send_signal(signal.SIGTERM)
            elif silent:
                return again(children, asked, min(silent, key=lambda child: child.heard).hung(asked.hang_after))
            elif any(child.code for child in children):
                break
        return stopped(children, told.signal) if told.signal else ended(children, asked)


def stopped(children: Sequence[Child], number: int) -> End:
    """How processes ended that were asked to by a signal: those that still live have nothing to save."""
    code = children[0].code
    children[0].confess()
    if code in (None, -signal.SIGTERM):
        say("stopped; the same command continues")
    asked_to = code is None or code < 0 or code == 128 + signal.SIGTERM
    return End(128 + number if asked_to else code)


def ended(children: Sequence[Child], asked: Asked) -> End:
    """How processes ended of which nothing was asked; those that still live are given up."""
    until = time.monotonic() + SETTLE
    while all((child.code or 0) >= 0 for child in children) and any(child.code is None for child in children) \
            and time.monotonic() < until:
        time.sleep(LOOK)
    bad = [child for child in children if child.code]
    for child in children:
        child.end()
    code = next((child.code for child in bad if child.code > 1), 1 if any(child.over for child in bad) else 0)
    if code or not bad:
        next((child for child in children if child.error), children[0]).confess()
        return End(code)
    # Who was ended by a signal is the cause: one whose peers are gone ends by an abort or an exit code.
    cause = min(bad, key=lambda child: (child.code > 0, child.code == -signal.SIGABRT))
    return again(children, asked, cause.why())


def again(children: Sequence[Child], asked: Asked, why: str) -> End:
    """The end of processes that are to start again; what others than the first said is kept."""
    for child in children:
        child.end()
    kept = [place for child in children if (place := child.keep(asked.workdir))]
    return End(1, why + (f" (what the others said: {', '.join(kept)})" if kept else ""),
               max(child.step for child in children))


class Told:
    """Whether this process was told to stop; told again, it ends at once, and all that it started with it."""

    def __enter__(self):
        self.signal = None
        self.before = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def note(self, number, frame):
        self.signal = number
        self.__exit__()

    def __exit__(self, *failure):
        for number, handler in self.before.items():
            signal.signal(number, handler)


def newest(workdir: str) -> int:
    """The step of a run's newest checkpoint, 0 where it has none."""
    from mlm.train.run import directory  # imports JAX, for which there was no need up to here

    with contextlib.suppress(OSError):
        return max((int(found.name) for found in directory.checkpoints(workdir).iterdir() if found.name.isdigit()),
                   default=0)
    return 0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
