"""What starts processes. From its first line on, Ctrl-C on a command ends in one line, imports included."""
import os
import signal
import sys


def end(number, frame):
    """Leaves at once: what an import has half done would turn an exception into another."""
    os.write(2, b"\nstopped before anything was begun\n")
    os._exit(128 + number)


if sys.argv[:1] == ["-m"]:  # python -m launch.COMMAND, and neither a test nor a worker
    signal.signal(signal.SIGINT, end)
