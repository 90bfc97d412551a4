"""Several processes of one run on this host: starts and watches them, and restarts all when one dies or hangs.

A process hangs if it makes no step for --hang_after seconds, or for ten times as long while it compiles, evaluates or
saves (mlm/training/run/heartbeat.py). Before it prepares its first step and after its last one, while it packs examples
and evaluates the model, it never counts as hung. What a restart would meet again, such as a wrong field or a loss that
is not finite, ends the run.
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
from mlm.launch.child_process import ChildProcess, list_gpus

POLL_SECONDS = 0.2  # between two looks at the processes
EXIT_SECONDS = 8  # in which the other processes end, once one has ended with a message


class LocalLaunch(NamedTuple):
    """Options of `mlm train` for several processes on one host."""

    num_processes: int
    max_restarts: int
    hang_after: float  # seconds
    workdir: str


class LaunchEnd(NamedTuple):
    """How the processes of one start ended."""

    exit_code: int
    restart_reason: str = ""  # "": no restart
    step: int = 0  # the last that they reached


def check_gpus(launch: LocalLaunch) -> None:
    """Raises ConfigError if the GPUs of this host do not divide among the processes."""
    count = len(list_gpus())
    errors.require(
        count % launch.num_processes == 0,
        "--local_processes",
        launch.num_processes,
        f"a divisor of {count}, the number of GPUs here",
    )


def run_processes(launch: LocalLaunch, arguments: Sequence[str]) -> int:
    """Runs Python with these arguments, those of the run, in all processes to the end; returns the exit code."""
    attempts = last_step = 0
    with StopSignal() as stop:
        while True:
            end = run_once(launch, arguments, stop)
            if not end.restart_reason:
                return end.exit_code
            attempts = 1 if end.step > last_step else attempts + 1
            last_step = max(last_step, end.step)
            if attempts > launch.max_restarts:
                print_line(
                    f"error: {end.restart_reason}; no progress after --restarts = {launch.max_restarts} "
                    "restarts; the same command continues"
                )
                return end.exit_code
            print_line(
                f"{end.restart_reason}: restarting all processes from step {newest_step(launch.workdir):,} "
                f"(restart {attempts} of at most {launch.max_restarts})"
            )


def run_once(launch: LocalLaunch, arguments: Sequence[str], stop: "StopSignal") -> LaunchEnd:
    """Starts all processes, which continue from the newest checkpoint, and returns when they have ended."""
    with contextlib.ExitStack() as stack:
        read_end, write_end = os.pipe()
        stack.callback(os.close, write_end)
        with contextlib.closing(os.fdopen(read_end)):
            port = find_free_port()
            children = [
                stack.enter_context(ChildProcess(i, launch.num_processes, arguments, port, read_end))
                for i in range(launch.num_processes)
            ]
        signal_sent, last_poll = False, time.monotonic()
        while any(child.exit_code is None for child in children):
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            if now - last_poll > EXIT_SECONDS:  # this process was suspended for a while, and read no heartbeats
                for child in children:
                    child.last_heartbeat = now
            last_poll = now
            hung = [child for child in children if child.is_hung(launch.hang_after)]
            if stop.signal:
                if hung or not any(child.can_save() for child in children):
                    break
                if not signal_sent:
                    signal_sent = True
                    for child in children:
                        child.popen.send_signal(signal.SIGTERM)
            elif hung:
                longest = min(hung, key=lambda child: child.last_heartbeat)
                return finish_for_restart(children, launch, longest.describe_hang(launch.hang_after))
            elif any(child.exit_code for child in children):
                break
        return finish_stopped(children, stop.signal) if stop.signal else finish_ended(children, launch)


def finish_stopped(children: Sequence[ChildProcess], signal_number: int) -> LaunchEnd:
    """The end of processes that a signal stopped; those that still live have nothing to save."""
    exit_code = children[0].exit_code
    children[0].show_error()
    if exit_code in (None, -signal.SIGTERM):
        print_line("stopped; the same command continues")
    if exit_code is None or exit_code < 0 or exit_code == 128 + signal.SIGTERM:
        return LaunchEnd(128 + signal_number)
    return LaunchEnd(exit_code)


def finish_ended(children: Sequence[ChildProcess], launch: LocalLaunch) -> LaunchEnd:
    """The end of processes that nobody stopped; those that still live are killed."""
    deadline = time.monotonic() + EXIT_SECONDS
    while (
        all((child.exit_code or 0) >= 0 for child in children)
        and any(child.exit_code is None for child in children)
        and time.monotonic() < deadline
    ):
        time.sleep(POLL_SECONDS)
    failed = [child for child in children if child.exit_code]
    for child in children:
        child.end()
    exit_code = next(
        (child.exit_code for child in failed if child.exit_code is not None and child.exit_code > 1),
        1 if any(child.is_final for child in failed) else 0,
    )
    if exit_code or not failed:
        next((child for child in children if child.error), children[0]).show_error()
        return LaunchEnd(exit_code)
    # A process that a signal ended is the cause: a process whose peers are gone ends by an abort or an exit code.
    cause = min(failed, key=lambda child: ((child.exit_code or 0) > 0, child.exit_code == -signal.SIGABRT))
    return finish_for_restart(children, launch, cause.describe_end())


def finish_for_restart(children: Sequence[ChildProcess], launch: LocalLaunch, reason: str) -> LaunchEnd:
    """Ends processes that are to be restarted; saves the output of all except the first."""
    for child in children:
        child.end()
    paths = [path for child in children if (path := child.save_output(launch.workdir))]
    return LaunchEnd(
        1,
        reason + (f" (output of the other processes: {', '.join(paths)})" if paths else ""),
        max(child.step for child in children),
    )


class StopSignal:
    """Notes SIGTERM and SIGINT in a context. A second signal ends this process at once, and its children with it."""

    def __enter__(self):
        self.signal = None
        self.handlers = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def note(self, number, frame):
        """Handles the first signal: stores its number in `signal` and restores the previous handlers."""
        self.signal = number
        self.__exit__()

    def __exit__(self, *failure):
        for number, handler in self.handlers.items():
            signal.signal(number, handler)


def newest_step(workdir: str) -> int:
    """The step of a run's newest checkpoint, 0 if it has none."""
    from mlm.training.run import directory  # imports JAX, which is not needed before

    with contextlib.suppress(OSError):
        return max(
            (int(path.name) for path in directory.checkpoint_folder(workdir).iterdir() if path.name.isdigit()),
            default=0,
        )
    return 0


def find_free_port() -> int:
    """A port of this machine that no process uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def print_line(line: str) -> None:
    """Prints a line to stderr at once."""
    print(line, file=sys.stderr, flush=True)
