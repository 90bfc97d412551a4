"""A wall clock that stands still, and one that jumps: clock.c, preloaded into every process."""

import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.chaos import workloads
from tests.chaos.processes import LIMIT_SECONDS
from tests.chaos.workspace import BAD, EQUAL, NAMED, SKIPPED, TrialResult, Workspace, find_error_line

JUMPS = (-86_400, 0, 400 * 86_400, -3600, 10, -10)  # offsets in seconds


class Clock:
    """The wall clock that processes see."""

    def __init__(self, workspace: Workspace):
        self.path, library = workspace.out / "clock", workspace.out / "clock.so"
        self.set()
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_suffix(".c"))], check=True
        )
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self.path)}

    def set(self, *, fixed_ns: int = 0, offset: int = 0) -> None:
        """fixed_ns: the time at which it stands, 0: it runs; offset: seconds from the right time."""
        if not self.path.exists():
            self.path.write_bytes(bytes(16))
        with self.path.open("r+b") as file:
            file.write(struct.pack("qq", fixed_ns, offset * 10**9))


def run_with_clock(
    workspace: Workspace,
    workload: workloads.Workload,
    expected: Mapping[str, str],
    adjust: Callable[[Clock, float], None],
) -> TrialResult:
    """adjust(clock, seconds since a command's start): sets the clock, and waits a while."""
    if shutil.which("cc") is None:
        return TrialResult(SKIPPED, "there is no C compiler")
    workspace.reset()
    clock, line = Clock(workspace), ""
    for arguments in workload.commands:
        clock.set()
        session = workspace.start(arguments, environment=clock.environment)
        while session.process.poll() is None and (elapsed := time.monotonic() - session.start_time) < LIMIT_SECONDS:
            adjust(clock, elapsed)
        if (exit_code := session.wait()) != 0:
            try:
                line = find_error_line(exit_code, session.read_output())
            except ValueError as error:
                return TrialResult(BAD, str(error))
            break
    clock.set()
    result = workspace.finish_workload(workload, expected, environment=clock.environment)
    return TrialResult(NAMED, line) if line and result.verdict == EQUAL else result


def stop_clock(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    """The clock stands still for a while, from a random moment on."""
    start, duration = rng.uniform(0, 10), rng.uniform(5, 20)

    def adjust(clock, elapsed):
        if start < elapsed < start + duration:
            clock.set(fixed_ns=time.time_ns())
            time.sleep(duration)
        else:
            clock.set()
            time.sleep(0.02)

    return run_with_clock(workspace, workload, expected, adjust)


def jump_clock(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    """The clock jumps to another day, or hour, again and again."""

    def adjust(clock, elapsed):
        clock.set(offset=rng.choice(JUMPS))
        time.sleep(rng.uniform(0.1, 1))

    return run_with_clock(workspace, workload, expected, adjust)
