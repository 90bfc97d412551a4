"""One process of a run and the parent that started it: its share of the devices, its heartbeats, and how it ends.

The parent prints the one line with which a process ends. XLA ends a process whose peers are gone by abort(), with a
page of C++, which goes to the process's log.
"""

import contextlib
import glob
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from mlm.launch import rendezvous
from mlm.training.run import heartbeat

HANG_FACTORS = {heartbeat.STEP: 1, heartbeat.PAUSE: 10}  # multiples of --hang_after, by the last heartbeat's state
LOG_VARIABLE = "MLM_PROCESS_LOG"  # the environment variable with the path of a child's log


def attach_to_parent() -> None:
    """In a child process: ends it when its parent ends, and sends what native code prints to the log."""
    if connection := heartbeat.connect_to_parent():
        threading.Thread(target=exit_with_parent, args=(connection,), daemon=True).start()
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
        os.dup2(os.open(os.environ[LOG_VARIABLE], os.O_WRONLY | os.O_APPEND), 2)


def exit_with_parent(connection: socket.socket) -> None:
    """Ends this process when the parent's end of the connection closes; the parent never sends."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


class ChildProcess:
    """Starts Python as a child that ends when this process does, and ends it when the context ends."""

    def __init__(
        self, arguments: Sequence[str], process_id: int = 0, environment: Mapping[str, str] = MappingProxyType({})
    ):
        """Starts it. Its log takes what native code prints, and all output of any but process 0."""
        self.process_id, self.state, self.step = process_id, "", 0
        self.has_trained = self.is_final = self.keeps_log = False
        self.last_heartbeat, self.unread = time.monotonic(), b""
        self.error: tuple[int, str] | None = None  # exit code and line
        self.last_words = (1, "")
        self.connection, child_end = socket.socketpair()
        self.connection.setblocking(False)
        log, path = tempfile.mkstemp(prefix=f"mlm-process-{process_id}-", suffix=".txt")
        self.log = Path(path)
        variables = {heartbeat.CONNECTION_VARIABLE: str(child_end.fileno()), LOG_VARIABLE: path}
        with child_end, os.fdopen(log, "ab") as output:
            self.popen = subprocess.Popen(
                [sys.executable, *arguments],
                pass_fds=[child_end.fileno()],
                env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output if process_id else None,
                stderr=output if process_id else None,
                process_group=0,  # a terminal's Ctrl-C reaches the parent alone
            )

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.end()
        self.connection.close()
        if not self.keeps_log:
            self.log.unlink()

    @property
    def exit_code(self) -> int | None:
        """None while the process lives."""
        return self.popen.poll()

    def read_messages(self) -> None:
        """Notes what the process has sent until now."""
        with contextlib.suppress(OSError):  # there is nothing more to read yet
            while data := self.connection.recv(2**16):
                self.unread += data
        *lines, self.unread = self.unread.split(b"\n")
        for line in lines:
            kind, _, value = line.decode().partition(" ")
            if kind == heartbeat.ERROR:
                self.error = tuple(json.loads(value))
            elif kind == heartbeat.LAST_WORDS:
                self.last_words = tuple(json.loads(value))
            else:
                self.last_heartbeat, self.state, self.step = time.monotonic(), kind, max(self.step, int(value))
                self.has_trained |= kind == heartbeat.STEP
                self.is_final |= kind == heartbeat.FATAL

    def is_hung(self, seconds: float) -> bool:
        """Whether it lives and has sent no heartbeat for so long, times the factor of its state."""
        limit = seconds * HANG_FACTORS.get(self.state, float("inf"))
        return self.exit_code is None and time.monotonic() - self.last_heartbeat > limit

    def can_save(self) -> bool:
        """Whether it lives and has training state to save when it is stopped."""
        return self.exit_code is None and self.has_trained and self.state in HANG_FACTORS

    def end(self) -> None:
        """Kills it if it lives, and reads what it sent last."""
        self.popen.kill()
        self.popen.wait()
        self.read_messages()

    def describe_end(self) -> tuple[int, str]:
        """The exit code that counts of a process that has ended, and why it ended; "": it did what it should."""
        exit_code = self.popen.returncode
        if self.error:
            return self.error[0], self.error[1].removeprefix("error: ")
        if exit_code == -signal.SIGABRT and self.last_words[1]:
            return self.last_words
        if exit_code < 0:
            return 1, f"killed by {signal.Signals(-exit_code).name}"
        return exit_code, f"exit code {exit_code}" if exit_code == 1 else ""

    def misses_peer(self) -> bool:
        """Whether it ended as a process ends whose peers are gone."""
        return self.popen.returncode == -signal.SIGABRT or self.describe_end()[1].startswith(rendezvous.PEER_END)


def describe_logs(children: Sequence[ChildProcess]) -> str:
    """The paths of the logs that hold something, in brackets, for a message; those files stay."""
    named = [child for child in children if child.log.stat().st_size]
    for child in named:
        child.keeps_log = True
    return f" (log: {', '.join(str(child.log) for child in named)})" if named else ""


def list_gpus() -> list[str]:
    """The GPUs that JAX would use, by their names in CUDA_VISIBLE_DEVICES; none without JAX's plugin for them."""
    platforms = os.environ.get("JAX_PLATFORMS") or "cuda"
    if not {"cuda", "gpu"} & {*platforms.split(",")} or importlib.util.find_spec("jax_plugins") is None:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(len(glob.glob("/dev/nvidia[0-9]*")))]
    return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]


@contextlib.contextmanager
def bind_cores(process_id: int, num_processes: int):
    """Processes started here see their share of the cores, for which XLA starts threads, unless GPUs compute."""
    cores = [] if list_gpus() or not hasattr(os, "sched_setaffinity") else sorted(os.sched_getaffinity(0))
    if len(cores) >= num_processes:
        os.sched_setaffinity(0, slice_share(cores, process_id, num_processes))
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, cores)


def slice_share(items: Sequence, process_id: int, num_processes: int) -> Sequence:
    """The part of the items that falls to a process: consecutive ones, as many as the others' to within one."""
    return items[process_id * len(items) // num_processes : (process_id + 1) * len(items) // num_processes]
