"""What starts processes. From its first line on, Ctrl-C on a command ends in one line, imports included."""
import gc
import os
import signal
import sys

from mlm.cli import process_environment


def end(number, frame):
    """Leaves at once: an exception in the middle of an import becomes another, or ends in an abort."""
    os.write(2, b"\nstopped\n")
    os._exit(128 + number)


COMMAND = sys.argv[:1] == ["-m"]                    # python -m launch.COMMAND, and neither a test nor a worker
WORKER = "--multiprocessing-fork" in sys.orig_argv  # of a sweep

if COMMAND:
    signal.signal(signal.SIGINT, end)
if not WORKER:  # which hears nothing of it, before its starter's word and after
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which environ.restart blocks
if COMMAND and not any(map(process_environment.SAYS.match, sys.argv)):
    process_environment.restart(
        process_environment.compiled() | process_environment.ALLOCATOR
    )  # before anything is imported, which would be lost
if COMMAND or WORKER:
    gc.set_threshold(2**17)  # what is imported and traced stays: to look through it every 700 objects takes 0.3 s
