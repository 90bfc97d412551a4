"""A parent process that watches one of several processes of a run, and reduces however it ends to one line.

XLA ends a process whose peers are gone by abort(), with a page of C++, which the parent does not show.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

LIFELINE = "MLM_LIFELINE"  # environment variable: a pipe whose other end the parent holds
NATIVE = re.compile(r"[IWE]\d{4} [\d:.]+ +\d+ \S+\.(?:cc|h):\d+\]|Additional GRPC error information |:\{|:UN[A-Z]+:")
FATAL = re.compile(r"F\d{4} [\d:.]+ +\d+ \S+\.(?:cc|h):\d+\]")
UNHEALTHY = re.compile(r"stopped sending heartbeats\):\s*(\d+)")


def is_multiprocess_command(argv: list[str]) -> bool:
    """Whether a command line is of one process among several."""
    return any(re.match(r"--?(coordinator|distributed)\b", word) for word in argv)


def supervise() -> None:
    """Starts this command again as a child, and ends as it ends; returns in the child, and for a single process."""
    if LIFELINE in os.environ:
        threading.Thread(target=exit_with_parent, args=(int(os.environ[LIFELINE]),), daemon=True).start()
    elif is_multiprocess_command(sys.argv[1:]):
        sys.exit(run_child())


def exit_with_parent(lifeline: int) -> None:
    """Ends this process when its parent does; lifeline: the read end of a pipe that the parent holds open."""
    os.read(lifeline, 1)  # returns when the parent ends
    os.kill(os.getpid(), signal.SIGKILL)


def run_child() -> int:
    """Runs the same command in a child process; returns its exit code."""
    read_end, write_end = os.pipe()
    with start_python(sys.orig_argv[1:], read_end, stderr=subprocess.PIPE) as child:
        os.close(read_end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the child, too
        signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))

        def write(line):
            sys.stderr.buffer.write(line)
            sys.stderr.flush()

        assert child.stderr is not None
        fatal = forward_stderr(child.stderr, write)
        exit_code = child.wait()
    os.close(write_end)
    if exit_code >= 0:
        return exit_code
    print(f"error: {describe_signal_end(exit_code, fatal)}; restart all processes to continue", file=sys.stderr)
    return 1


def start_python(
    arguments: Sequence[str],
    lifeline: int,
    environment: Mapping[str, str] = MappingProxyType({}),
    pass_fds: Sequence[int] = (),
    **options,
) -> subprocess.Popen:
    """Starts Python with these arguments as a child that ends when the other end of the pipe `lifeline` is closed."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **environment, LIFELINE: str(lifeline)}
    return subprocess.Popen([sys.executable, *arguments], pass_fds=[lifeline, *pass_fds], env=environment, **options)


def forward_stderr(lines: Iterable[bytes], write: Callable[[bytes], None]) -> bytes:
    """Writes a child's stderr, without log lines of native code; returns the lines with which native code aborted."""
    fatal = b""
    for line in lines:
        if fatal or FATAL.match(line.decode("utf-8", "replace")):
            fatal += line
        elif not NATIVE.match(line.decode("utf-8", "replace")):
            write(line)
    return fatal


def describe_signal_end(exit_code: int, fatal: bytes, name: str = "this process") -> str:
    """How a child ended that a signal ended, in a few words."""
    if not fatal:
        return f"{name} was ended by {signal.Signals(-exit_code).name}"
    peer = UNHEALTHY.search(fatal.decode("utf-8", "replace"))
    return f"{f'process {peer[1]}' if peer else 'process 0'} of this run ended"
