"""Heartbeats of a run: lines on a pipe to the process that started it, if that process listens."""

import contextlib
import os

PIPE_VARIABLE = "MLM_HEARTBEAT_PIPE"  # the environment variable with the pipe's file descriptor
# A step has started; the run prepares its first step, evaluates or saves; the last step is done; the run failed, and
# another start would fail the same way.
STEP, PAUSE, DONE, FATAL = "step", "pause", "done", "fatal"


def send_heartbeat(state: str, step: int) -> None:
    """Sends the run's state and step. Never waits: a heartbeat is dropped if the pipe is full."""
    if pipe := os.environ.get(PIPE_VARIABLE):
        with contextlib.suppress(OSError, ValueError):
            os.write(int(pipe), f"{state} {step}\n".encode())
