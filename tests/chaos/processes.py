"""A command as a session of processes, all of which can be found, stopped and killed from outside."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT_SECONDS = 900  # after which a command counts as hung, on however busy a machine


class HangError(Exception):
    """A command, or a process that it started, did not end."""


class CommandSession:
    """A running command; its output is appended to a log."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path):
        self.log, self.start_time = log, time.monotonic()
        with log.open("ab") as file:
            file.write(f"\n$ {' '.join(command)}\n".encode())
            file.flush()
            self.output_start = file.tell()
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def list_pids(self) -> list[int]:
        """The ids of the session's live processes, the first one's first; a sweep's workers are among them."""
        pids = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    state, _, _, session = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[:4]
                    if int(session) == self.process.pid and state not in "ZX":
                        pids.append(int(entry.name))
        return sorted(pids, key=lambda pid: (pid != self.process.pid, pid))

    def send_signal(self, number: int, pids: Sequence[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Ends all processes at once, like a power failure: none sees another's end before its own."""
        while pids := self.list_pids():
            self.send_signal(signal.SIGSTOP, pids)
            self.send_signal(signal.SIGKILL, pids)
            time.sleep(0.002)
        self.process.wait()

    def wait(self, limit: float = LIMIT_SECONDS) -> int:
        """The exit code. After the limit kills all processes and raises HangError."""
        try:
            return self.process.wait(max(0.0, limit - (time.monotonic() - self.start_time)))
        except subprocess.TimeoutExpired:
            self.kill()
            raise HangError(f"no end within {limit:.0f} s") from None

    def wait_for_all(self, limit: float = 60) -> None:
        """Waits for processes that outlive the first. After the limit kills them and raises HangError."""
        deadline = time.monotonic() + limit
        while self.list_pids():
            if time.monotonic() > deadline:
                self.kill()
                raise HangError(f"processes outlive their first by more than {limit:.0f} s")
            time.sleep(0.05)

    def read_output(self) -> str:
        """The output so far."""
        with self.log.open("rb") as file:
            file.seek(self.output_start)
            return file.read().decode("utf-8", "replace")
