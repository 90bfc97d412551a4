"""What a process sets before it imports libraries: JAX's compilation cache, and how malloc keeps memory."""

import contextlib
import ctypes
import os

from mlm.base import machine

# Memory that glibc returns to the kernel must be faulted in again at every step: keep freed memory, in one arena, with
# huge pages. Tokenizing threads would wait for that arena, so that one thread is faster than two. Processes that this
# one starts read the variables; this one sets by mallopt what has a number in malloc.h.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(2**26),
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "TOKENIZERS_PARALLELISM": "false",
}
MALLOPT_NUMBERS = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_MAX_": -4, "MALLOC_ARENA_MAX": -8}


def compilation_cache_settings() -> dict[str, str]:
    """JAX keeps compiled programs in a folder of the user, so that only the first start of a program compiles it."""
    folder = machine.cache_folder("compiled")
    return {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"} if folder else {}


def tune_malloc() -> None:
    """Sets what the environment does not say of malloc, for this process and those that it starts."""
    missing = {name: value for name, value in ALLOCATOR.items() if name not in os.environ}
    os.environ |= missing
    with contextlib.suppress(AttributeError):  # a C library without mallopt
        mallopt = ctypes.CDLL(None).mallopt
        for name in missing.keys() & MALLOPT_NUMBERS.keys():
            mallopt(MALLOPT_NUMBERS[name], int(missing[name]))


def exit_at_once(number, frame):
    """A signal handler that ends the process at once: an exception in the middle of an import could end in an abort."""
    os.write(2, b"\nstopped\n")
    os._exit(128 + number)
