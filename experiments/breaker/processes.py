"""A command as a session of processes, all of which can be found, stopped and killed from outside."""
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT = 900   # seconds after which a command hangs, on however busy a machine


class Hangs(Exception):
    """A command, or what it left behind, did not end."""


class Started:
    """A command at work in a folder; what it says is added to a log."""

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path):
        self.log, self.began = log, time.monotonic()
        with log.open("ab") as file:
            file.write(f"\n$ {' '.join(words)}\n".encode())
            file.flush()
            self.from_here = file.tell()
            self.process = subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                                            stderr=subprocess.STDOUT, start_new_session=True)

    def members(self) -> list[int]:
        """The process ids of the session that live, the first one's first; a worker of a sweep is one of them."""
        found = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    state, _, _, session = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[:4]
                    if int(session) == self.process.pid and state not in "ZX":
                        found.append(int(entry.name))
        return sorted(found, key=lambda pid: (pid != self.process.pid, pid))

    def signal(self, number: int, members: Sequence[int]) -> None:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Ends all at once, as a host that loses its power: none sees another's end before its own."""
        while members := self.members():
            self.signal(signal.SIGSTOP, members)
            self.signal(signal.SIGKILL, members)
            time.sleep(0.002)
        self.process.wait()

    def wait(self, limit: float = LIMIT) -> int:
        """The exit code. Raises Hangs, with all killed, where there is none in time."""
        try:
            return self.process.wait(max(0.0, limit - (time.monotonic() - self.began)))
        except subprocess.TimeoutExpired:
            self.kill()
            raise Hangs(f"no end within {limit:.0f} s") from None

    def alone(self, limit: float = 60) -> None:
        """Waits for those that outlive the first. Raises Hangs, with all killed, where they do not end."""
        until = time.monotonic() + limit
        while self.members():
            if time.monotonic() > until:
                self.kill()
                raise Hangs(f"processes outlive their first by more than {limit:.0f} s")
            time.sleep(0.05)

    def said(self) -> str:
        """What it has printed so far."""
        with self.log.open("rb") as file:
            file.seek(self.from_here)
            return file.read().decode("utf-8", "replace")
