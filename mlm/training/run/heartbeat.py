"""What a run tells the process that started it, if one listens: heartbeats, and the line with which it ends."""

import contextlib
import functools
import json
import os
import socket

CONNECTION_VARIABLE = "MLM_PARENT_CONNECTION"  # the environment variable with the file descriptor of a socket
# A step has started; the run prepares its first step, evaluates or saves; the last step is done; the run failed, and
# another start would fail the same way.
STEP, PAUSE, DONE, FATAL = "step", "pause", "done", "fatal"
# With an exit code and a line: how the process ends, and how it ends if native code aborts from now on.
ERROR, LAST_WORDS = "error", "last_words"


@functools.cache
def connect_to_parent() -> socket.socket | None:
    """The connection to the process that started this one; None if that process does not listen."""
    with contextlib.suppress(OSError, ValueError):
        return socket.socket(fileno=int(os.environ.pop(CONNECTION_VARIABLE, "")))


def send_heartbeat(state: str, step: int) -> None:
    """Sends the run's state and step. Never waits: a heartbeat is dropped if the parent has not read the last ones."""
    if connection := connect_to_parent():
        with contextlib.suppress(OSError):
            connection.send(f"{state} {step}\n".encode(), socket.MSG_DONTWAIT)


def send_end(kind: str, exit_code: int, line: str) -> bool:
    """Sends how this process ends, for its parent to print; kind: ERROR or LAST_WORDS. False if no parent listens."""
    if connection := connect_to_parent():
        with contextlib.suppress(OSError):
            connection.sendall(f"{kind} {json.dumps([exit_code, line])}\n".encode())
    return connection is not None
