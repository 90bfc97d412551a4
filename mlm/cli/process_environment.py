"""Environment variables that libraries read when a process starts: JAX's compilation cache, and malloc."""

import os
import signal
import sys

from mlm.base import machine

# Memory that glibc returns to the kernel must be faulted in again at every step: keep freed memory, in one arena, with
# huge pages. Tokenizing threads would wait for that arena, so that one thread is faster than two.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**26),
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "TOKENIZERS_PARALLELISM": "false",
}


def compilation_cache_settings() -> dict[str, str]:
    """JAX keeps compiled programs in a folder of the user, so that only the first start of a program compiles it."""
    folder = machine.cache_folder("compiled")
    return {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"} if folder else {}


def restart_process(settings: dict[str, str]) -> None:
    """Starts the same command again in this process if the environment lacks one of the settings.

    glibc reads its variables only when a process starts.
    """
    if not settings.keys() <= os.environ.keys():
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until mlm/cli/entry.py handles it
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], settings | os.environ)


def exit_at_once(number, frame):
    """A signal handler that ends the process at once: an exception in the middle of an import could end in an abort."""
    os.write(2, b"\nstopped\n")
    os._exit(128 + number)
