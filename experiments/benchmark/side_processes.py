"""A process for each side, so that the threads and the memory of one side do not disturb the other."""

import concurrent.futures
import contextlib
import gc
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool

import jax

from mlm.cli import entry

ALL_CORES = 10**6  # cores


@contextlib.contextmanager
def open_process(cores: int, tune_malloc: bool) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """A process that may use this many cores and runs one job at a time.

    tune_malloc: pass on the malloc settings of this process (mlm/cli/entry.py); they suit training.
    """
    settings = {} if tune_malloc else {name: os.environ.pop(name) for name in entry.ALLOCATOR if name in os.environ}
    try:
        with concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _bind_cores, (cores,)
        ) as pool:
            pool.submit(int).result()  # starts it
            os.environ |= settings
            yield pool
    finally:
        os.environ |= settings


def _bind_cores(cores: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


class SideProcesses(contextlib.ExitStack):
    """Processes for training steps, by name, on all cores; all end with the block."""

    def __init__(self):
        super().__init__()
        self._pools: dict[str, concurrent.futures.ProcessPoolExecutor] = {}
        self._numbers = itertools.count()

    def run(self, name: str, job: Callable, *arguments):
        """Runs a job in the process of this name; returns its result or raises its error."""
        if name not in self._pools:
            self._pools[name] = self.enter_context(open_process(ALL_CORES, tune_malloc=True))
        try:
            return self._pools[name].submit(job, *arguments).result()
        except BrokenProcessPool:
            del self._pools[name]  # the next job starts a new process
            raise

    def build_side(self, name: str, build: Callable[..., Callable[[], object]], *arguments) -> Callable[[], None]:
        """Calls build(*arguments) in the process of this name; returns a function that runs the built side there.

        On a TPU, which only one process can use, all happens in this process.
        """
        if jax.default_backend() == "tpu":
            return build(*arguments)
        number, start = next(self._numbers), time.monotonic()
        self.run(name, _build, number, build, arguments)
        print(f"  built {name}: {time.monotonic() - start:,.0f} s", flush=True)
        return lambda: self.run(name, _run_side, number)

    def clear_sides(self) -> None:
        """Drops all sides and their compiled programs; sides built before cannot be used any more."""
        for name in self._pools:
            self.run(name, _clear_sides)


_sides: dict[int, Callable[[], object]] = {}  # in the process of a side


def _build(number, build, arguments):
    with _simplify_errors():
        _sides[number] = build(*arguments)


def _run_side(number):
    with _simplify_errors():
        _sides[number]()


@contextlib.contextmanager
def _simplify_errors():
    """Turns errors in this block into RuntimeError, which every process can unpickle."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _clear_sides():
    _sides.clear()
    if "torch" in sys.modules:  # beyond a few versions of a function, torch silently runs it uncompiled
        sys.modules["torch"].compiler.reset()
    jax.clear_caches()
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()  # other sides need the device's memory
