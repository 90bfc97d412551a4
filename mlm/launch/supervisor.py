"""A process of several that train one run, watched by its parent: whatever ends it, the last word is one line.

XLA ends a process whose peers are gone by abort(), with a page of C++: the parent keeps that to itself.
"""
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

LIFELINE = "MLM_LIFELINE"  # the environment's name for a pipe of which the parent holds the other end
NATIVE = re.compile(r"[IWE]\d{4} [\d:.]+ +\d+ \S+\.(?:cc|h):\d+\]|Additional GRPC error information |:\{|:UN[A-Z]+:")
FATAL = re.compile(r"F\d{4} [\d:.]+ +\d+ \S+\.(?:cc|h):\d+\]")
UNHEALTHY = re.compile(r"stopped sending heartbeats\):\s*(\d+)")


def several(argv: list[str]) -> bool:
    """Whether a command line is of one process among several."""
    return any(re.match(r"--?(coordinator|distributed)\b", word) for word in argv)


def supervise() -> None:
    """Starts this command again as a child, and ends as it ends; returns in the child, and where there is no other."""
    if LIFELINE in os.environ:
        threading.Thread(target=follow, args=(int(os.environ[LIFELINE]),), daemon=True).start()
    elif several(sys.argv[1:]):
        sys.exit(watch())


def follow(lifeline: int) -> None:
    os.read(lifeline, 1)  # ends when the parent does
    os.kill(os.getpid(), signal.SIGKILL)


def watch() -> int:
    theirs, ours = os.pipe()
    with start(sys.orig_argv[1:], theirs, stderr=subprocess.PIPE) as child:
        os.close(theirs)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the child, too
        signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))

        def write(line):
            sys.stderr.buffer.write(line)
            sys.stderr.flush()

        fatal = tell(child.stderr, write)
        code = child.wait()
    os.close(ours)
    if code >= 0:
        return code
    print(f"error: {why(code, fatal)}; start all again, they continue", file=sys.stderr)
    return 1


def start(words: Sequence[str], lifeline: int, environment: Mapping[str, str] = MappingProxyType({}),
          pass_fds: Sequence[int] = (), **options) -> subprocess.Popen:
    """Python with these words as a child that ends when the other end of the pipe `lifeline` is closed."""
    told = {"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ | environment | {LIFELINE: str(lifeline)}
    return subprocess.Popen([sys.executable, *words], pass_fds=[lifeline, *pass_fds], env=told, **options)


def tell(said: Iterable[bytes], write: Callable[[bytes], None]) -> bytes:
    """Hands on what a child says on stderr, but for native pages; returns that with which native code ended it."""
    fatal = b""
    for line in said:
        if fatal or FATAL.match(line.decode("utf-8", "replace")):
            fatal += line
        elif not NATIVE.match(line.decode("utf-8", "replace")):
            write(line)
    return fatal


def why(code: int, fatal: bytes, me: str = "this process") -> str:
    """How a child ended that a signal ended, in a few words."""
    if not fatal:
        return f"{me} was ended by {signal.Signals(-code).name}"
    gone = UNHEALTHY.search(fatal.decode("utf-8", "replace"))
    return f"{f'process {gone[1]}' if gone else 'process 0'} of this run ended"
