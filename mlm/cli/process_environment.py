"""What libraries read as a process starts: where compiled programs are kept, and how memory is held."""
import os
import re
import signal
import sys

from mlm.base import machine

# What glibc gave back to the kernel it must fault in again at every step: keep freed memory, one arena, huge pages.
# Tokenizing threads would wait for that arena: one of them is faster than two.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**26),
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "TOKENIZERS_PARALLELISM": "false",
}
SAYS = re.compile(r"--?(no)?(allocator|flagfile|help|\?)")  # flags that ask for another environment, or for none


def compiled() -> dict[str, str]:
    """Compiled programs are kept in a folder of the user's, so that only the first start of a program compiles it."""
    folder = machine.cache("compiled")
    return {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"} if folder else {}


def restart(settings: dict[str, str]) -> None:
    """Starts this very command again, in this process, with those of the settings that the environment is without."""
    if not settings.keys() <= os.environ.keys():
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until launch/__init__.py can answer it
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], settings | os.environ)
