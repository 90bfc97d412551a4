"""One of several processes of a run on this host: its share of the devices, its heartbeats, and its output."""

import contextlib
import glob
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlm.launch import supervisor
from mlm.training.run import heartbeat

HANG_FACTORS = {heartbeat.STEP: 1, heartbeat.PAUSE: 10}  # multiples of --hang_after, by the last heartbeat's state
OUTPUT_TIMEOUT = 8  # seconds to read the rest of the output of a process that has ended
MAX_OUTPUT_LINES = 1000  # stored of each process except the first, for the case of a failure


class ChildProcess:
    """Starts the process, and ends it when the context ends. Shows the first process's output, stores the others'."""

    def __init__(self, process_id: int, num_processes: int, arguments: Sequence[str], port: int, lifeline: int):
        """Starts nothing yet.

        Args:
            arguments: those of `python` for the run, without the program's name.
            port: the coordinator's.
            lifeline: see supervisor.start_python.
        """
        self.process_id, self.state, self.step, self.has_trained, self.is_final = process_id, "", 0, False, False
        self.last_heartbeat, self.output = time.monotonic(), deque(maxlen=MAX_OUTPUT_LINES)
        self.error, self.fatal = b"", b""
        arguments = [*arguments, "--local_processes=0"]
        if num_processes > 1:
            arguments += [f"--coordinator=127.0.0.1:{port}", f"--processes={num_processes}", f"--process={process_id}"]
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        with bind_cores(process_id, num_processes):
            self.popen = supervisor.start_python(
                arguments,
                lifeline,
                {heartbeat.PIPE_VARIABLE: str(write_end)} | gpu_environment(process_id, num_processes),
                pass_fds=[write_end],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if process_id else None,
                stderr=subprocess.PIPE,
                process_group=0,
            )  # a terminal's Ctrl-C reaches the parent alone
        os.close(write_end)
        self.threads = [
            threading.Thread(target=target, args=(source,), daemon=True)
            for target, source in (
                (self.read_heartbeats, os.fdopen(read_end)),
                (self.read_stderr, self.popen.stderr),
                (self.read_stdout, self.popen.stdout or ()),
            )
        ]
        for thread in self.threads:
            thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.end()

    @property
    def exit_code(self) -> int | None:
        """None while the process lives."""
        return self.popen.poll()

    def read_heartbeats(self, pipe: Iterable[str]) -> None:
        """Notes the state and step of each heartbeat line, and when it arrived, until the pipe is closed."""
        for line in pipe:
            self.last_heartbeat = time.monotonic()
            self.state, step = line.split()
            self.step = max(self.step, int(step))
            self.has_trained |= self.state == heartbeat.STEP
            self.is_final |= self.state == heartbeat.FATAL

    def read_stderr(self, stderr: Iterable[bytes]) -> None:
        """Handles the lines of its stderr until the end; what native code printed as it aborted becomes `fatal`."""
        self.fatal = supervisor.forward_stderr(stderr, self.handle_line)

    def read_stdout(self, stdout: Iterable[bytes]) -> None:
        """Handles the lines of its stdout until the end."""
        for line in stdout:
            self.handle_line(line)

    def handle_line(self, line: bytes) -> None:
        """Shows a line of the first process and stores one of any other.

        An error line is not shown but noted as `error`; the last one counts.
        """
        if line.startswith(b"error: "):
            self.error = line  # not shown yet: it may only be a consequence of how another process ended
        if self.process_id:
            self.output.append(line)
        elif line is not self.error:
            write_stderr(line)

    def is_hung(self, seconds: float) -> bool:
        """Whether it lives and has sent no heartbeat for so long, times the factor of its state."""
        factor = HANG_FACTORS.get(self.state)
        return (
            self.exit_code is None and factor is not None and time.monotonic() - self.last_heartbeat > seconds * factor
        )

    def can_save(self) -> bool:
        """Whether it lives and has training state to save when it is stopped."""
        return self.exit_code is None and self.has_trained and self.state in HANG_FACTORS

    def end(self) -> None:
        """Kills it if it lives, and reads the rest of its output."""
        self.popen.kill()
        self.popen.wait()
        for thread in self.threads:
            thread.join(OUTPUT_TIMEOUT)  # with a limit: a process that it started could still hold its pipes

    def describe_hang(self, seconds: float) -> str:
        """Returns a line about a hang at its last step; seconds: `--hang_after`."""
        return (
            f"process {self.process_id} hangs at step {self.step:,}: no heartbeat for {seconds} s or more "
            "(--hang_after)"
        )

    def describe_end(self) -> str:
        """How it ended, in a few words."""
        assert self.exit_code is not None
        if self.exit_code < 0:
            name = f"process {self.process_id}"
            return f"{supervisor.describe_signal_end(self.exit_code, self.fatal, name)} at step {self.step:,}"
        message = self.error.decode("utf-8", "replace").strip().removeprefix("error: ")
        return f"process {self.process_id} ended at step {self.step:,}: {message or f'exit code {self.exit_code}'}"

    def show_error(self) -> None:
        """Shows the error with which it ended, if any."""
        write_stderr(self.error)

    def save_output(self, workdir: str) -> str:
        """Writes its stored output next to the run. Returns the path; "" if there is no output or writing fails."""
        with contextlib.suppress(OSError):
            if self.output:
                path = Path(f"{workdir}-process-{self.process_id}.txt")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"".join(self.output) + self.fatal)
                return str(path)
        return ""


def write_stderr(line: bytes) -> None:
    """Writes a child's line to this process's stderr at once."""
    sys.stderr.buffer.write(line)
    sys.stderr.flush()


def list_gpus() -> list[str]:
    """The GPUs that JAX would use, by their names in CUDA_VISIBLE_DEVICES."""
    if not uses_gpus():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(len(glob.glob("/dev/nvidia[0-9]*")))]
    return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]


def uses_gpus() -> bool:
    """Whether JAX would look for GPUs: JAX_PLATFORMS admits them, and a plugin for them is installed."""
    platforms = os.environ.get("JAX_PLATFORMS") or "cuda"
    return bool({"cuda", "gpu"} & {*platforms.split(",")}) and importlib.util.find_spec("jax_plugins") is not None


def gpu_environment(process_id: int, num_processes: int) -> dict[str, str]:
    """The environment variable that shows a process its share of the GPUs; {} if there are none."""
    gpus = list_gpus()
    return {"CUDA_VISIBLE_DEVICES": ",".join(slice_share(gpus, process_id, num_processes))} if gpus else {}


@contextlib.contextmanager
def bind_cores(process_id: int, num_processes: int):
    """Processes started in this block get their share of the cores, unless GPUs compute.

    XLA starts a thread for each core that it sees.
    """
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
