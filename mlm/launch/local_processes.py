"""Several processes of one run on this host: starts and watches them, and restarts all when one dies or hangs.

A process hangs if it makes no step for --hang_after seconds, or for ten times as long while it compiles, evaluates or
saves (mlm/training/run/heartbeat.py). Before it prepares its first step and after its last one, while it packs examples
and evaluates the model, it never counts as hung. What a restart would meet again, such as a wrong field or a loss that
is not finite, ends the run.
"""

import contextlib
import signal
import socket
import sys
import time
from collections.abc import Sequence

from mlm.base import errors
from mlm.base.storage import get_storage
from mlm.launch.child_process import ChildProcess, bind_cores, describe_logs, list_gpus, slice_share

POLL_SECONDS = 0.2  # between two looks at the processes
EXIT_SECONDS = 8  # in which the other processes end, once one has ended with a message


def run_on_host(arguments: Sequence[str]) -> int:
    """Runs Python with these arguments, one process of a run on several hosts, once; returns its exit code."""
    with StopSignal() as stop, ChildProcess(arguments) as child:
        watch([child], float("inf"), stop)
        if stop.signal:
            return finish_stopped([child], stop.signal)
        child.end()
        exit_code, reason = child.describe_end()
        if reason:
            print_line(f"error: {reason}{describe_logs([child])}")
        return exit_code


def run_processes(
    arguments: Sequence[str], workdir: str, num_processes: int, max_restarts: int, hang_after: float
) -> int:
    """Runs Python with these arguments in all processes; returns the exit code. workdir: of their run.

    Raises ConfigError if the GPUs of this host do not divide among the processes.
    """
    num_gpus, attempts, last_step = len(list_gpus()), 0, 0
    expected = f"a divisor of {num_gpus}, the number of GPUs here"
    errors.require(num_gpus % num_processes == 0, "--local_processes", num_processes, expected)
    with StopSignal() as stop:
        while True:
            with contextlib.ExitStack() as stack:
                port = find_free_port()  # a new one for each start
                children = [
                    stack.enter_context(start_process(arguments, i, num_processes, port)) for i in range(num_processes)
                ]
                hung = watch(children, hang_after, stop)
                if stop.signal:
                    return finish_stopped(children, stop.signal)
                exit_code, reason = finish(children, hung, hang_after)
            if not reason:
                return exit_code
            step = max(child.step for child in children)
            attempts = 1 if step > last_step else attempts + 1
            last_step = max(last_step, step)
            if attempts > max_restarts:
                print_line(
                    f"error: {reason}; no progress after --restarts = {max_restarts} restarts; the same command "
                    "continues"
                )
                return exit_code
            print_line(
                f"{reason}: restarting all processes from step {newest_step(workdir):,} "
                f"(restart {attempts} of at most {max_restarts})"
            )


def start_process(arguments: Sequence[str], process_id: int, count: int, port: int) -> ChildProcess:
    """Starts one of `count` processes with its share of the devices; port: process 0's, for the others to join."""
    if count > 1:
        arguments = [*arguments, f"--coordinator=127.0.0.1:{port}", f"--processes={count}", f"--process={process_id}"]
    gpus = list_gpus()
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(slice_share(gpus, process_id, count))} if gpus else {}
    with bind_cores(process_id, count):
        return ChildProcess(arguments, process_id, environment)


def watch(children: Sequence[ChildProcess], hang_after: float, stop: "StopSignal") -> ChildProcess | None:
    """Waits until all have ended or one has failed, and passes a signal on; returns the one that hangs, if any."""
    signal_sent, last_poll = False, time.monotonic()
    while any(child.exit_code is None for child in children):
        time.sleep(POLL_SECONDS)
        now = time.monotonic()
        for child in children:
            child.read_messages()
            if now - last_poll > EXIT_SECONDS:  # this process was suspended for a while, and perhaps they were, too
                child.last_heartbeat = now
        last_poll = now
        hung = [child for child in children if child.is_hung(hang_after)]
        if stop.signal:
            if hung or not any(child.can_save() for child in children):
                return None
            if not signal_sent:
                signal_sent = True
                for child in children:
                    child.popen.send_signal(signal.SIGTERM)
        elif hung:
            return min(hung, key=lambda child: child.last_heartbeat)
        elif any(child.exit_code for child in children):
            return None
    return None


def finish_stopped(children: Sequence[ChildProcess], signal_number: int) -> int:
    """Ends processes that a signal stopped; those that still live have nothing to save. Returns the exit code."""
    exit_code = children[0].exit_code
    for child in children:
        child.end()
    if children[0].error:
        print_line(f"error: {children[0].describe_end()[1]}")
    elif exit_code is None or exit_code < 0:
        print_line("stopped; the same command continues")
    return 128 + signal_number if exit_code is None or exit_code < 0 or exit_code == 128 + signal.SIGTERM else exit_code


def finish(children: Sequence[ChildProcess], hung: ChildProcess | None, hang_after: float) -> tuple[int, str]:
    """Ends processes that no signal stopped. Returns the exit code, and a reason to restart; "": none."""
    deadline = time.monotonic() + EXIT_SECONDS
    codes = [child.exit_code for child in children]
    while not hung and None in codes and all((code or 0) >= 0 for code in codes) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        codes = [child.exit_code for child in children]
    failed = [child for child in children if child.exit_code]
    for child in children:
        child.end()
    if hung:
        reason = f"hangs at step {hung.step:,}: no heartbeat for {hang_after} s or more (--hang_after)"
        return 1, f"process {hung.process_id} {reason}{describe_logs(children)}"
    final = [child.describe_end() for child in failed if child.is_final or child.describe_end()[0] > 1]
    if final or not failed:
        exit_code, line = final[0] if final else (0, "")
        if line:
            print_line(f"error: {line}")
        return exit_code, ""
    # The cause is a process that a signal ended, or that has an error of its own: its peers end because they miss it.
    cause = min(failed, key=lambda child: (child.misses_peer(), child.popen.returncode > 0))
    reason = f"ended at step {cause.step:,}: {cause.describe_end()[1]}"
    return 1, f"process {cause.process_id} {reason}{describe_logs(children)}"


class StopSignal:
    """Notes SIGTERM and SIGINT in a context. Ctrl-C after it ends this process at once, and its children with it."""

    def __enter__(self):
        self.signal = None
        self.handlers = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def note(self, number, frame):
        """Stores the first signal's number. More SIGTERMs change nothing: a cluster may send several."""
        self.signal = self.signal or number
        signal.signal(signal.SIGINT, self.handlers[signal.SIGINT])

    def __exit__(self, *failure):
        for number, handler in self.handlers.items():
            signal.signal(number, handler)


def newest_step(workdir: str) -> int:
    """The step of a run's newest checkpoint, 0 if it has none."""
    from mlm.training.run.directory import RunDirectory  # imports JAX, which is not needed before

    folder = RunDirectory(workdir).checkpoints
    return max((int(name) for name in get_storage(folder).list(folder) if name.isdigit()), default=0)


def find_free_port() -> int:
    """A port of this machine that no process uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def print_line(line: str) -> None:
    """Prints a line to stderr at once."""
    print(line, file=sys.stderr, flush=True)
