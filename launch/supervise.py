"""A process of several that train one run, watched by its parent: whatever ends it, the last word is one line.

XLA ends a process whose peers are gone by abort(), with a page of C++: the parent keeps that to itself.
"""
import os
import re
import signal
import subprocess
import sys
import threading

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
    with subprocess.Popen([sys.executable, *sys.orig_argv[1:]], pass_fds=[theirs], stderr=subprocess.PIPE,
                          env={"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ | {LIFELINE: str(theirs)}) as child:
        os.close(theirs)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the child, too
        signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
        fatal = b""
        for line in child.stderr:
            if fatal or FATAL.match(line.decode("utf-8", "replace")):
                fatal += line
            elif not NATIVE.match(line.decode("utf-8", "replace")):
                sys.stderr.buffer.write(line)
                sys.stderr.flush()
        code = child.wait()
    os.close(ours)
    if code >= 0:
        return code
    gone = UNHEALTHY.search(fatal.decode("utf-8", "replace"))
    who = f"process {gone[1]}" if gone else "process 0"
    why = f"{who} of this run ended" if fatal else f"this process was ended by {signal.Signals(-code).name}"
    print(f"error: {why}; start all again, they continue", file=sys.stderr)
    return 1
