"""Sides in processes of their own: nothing of one, such as its threads and its memory, is in the other's way."""
import concurrent.futures
import contextlib
import gc
import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool

import jax

from mlm.cli import process_environment

ALL = 10**6  # cores


@contextlib.contextmanager
def process(cores: int, allocator: bool) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """A process that may use this many cores, for one job at a time; allocator: with the settings of mlm/cli/process_environment.py
    if this process has them, which are made for training steps."""
    settings = ({} if allocator else {name: os.environ.pop(name) for name in process_environment.ALLOCATOR if name in os.environ})
    try:
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _bind, (cores,)) as pool:
            pool.submit(int).result()  # starts it
            os.environ |= settings
            yield pool
    finally:
        os.environ |= settings


def _bind(cores: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


class Processes(contextlib.ExitStack):
    """Processes for steps, on all cores, by the names of what they make; all end with the block."""

    def __init__(self):
        super().__init__()
        self._pools: dict[str, concurrent.futures.ProcessPoolExecutor] = {}
        self._numbers = itertools.count()

    def run(self, name: str, job: Callable, *given):
        """What a job gives in the process of this name; raises what it raises."""
        if name not in self._pools:
            self._pools[name] = self.enter_context(process(ALL, allocator=True))
        try:
            return self._pools[name].submit(job, *given).result()
        except BrokenProcessPool:
            del self._pools[name]  # the next that is asked of it gets another
            raise

    def side(self, name: str, build: Callable[..., Callable[[], object]], *given) -> Callable[[], None]:
        """What build(*given) makes in the process of this name, as a side to be timed here.

        On a TPU, which one process has, in this one.
        """
        if jax.default_backend() == "tpu":
            return build(*given)
        number = next(self._numbers)
        self.run(name, _build, number, build, given)
        return lambda: self.run(name, _turn, number)

    def forget(self) -> None:
        """Drops all that was built, and what was compiled for it; no side made before may be used after."""
        for name in self._pools:
            self.run(name, _forget)


_built: dict[int, Callable[[], object]] = {}  # in a side's process


def _build(number, build, given):
    with _told():
        _built[number] = build(*given)


def _turn(number):
    with _told():
        _built[number]()


@contextlib.contextmanager
def _told():
    """What is raised in this block as an error that every process knows."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _forget():
    _built.clear()
    if "torch" in sys.modules:  # it keeps few versions of a function, and beyond them runs it uncompiled without a word
        sys.modules["torch"].compiler.reset()
    jax.clear_caches()
    gc.collect()
