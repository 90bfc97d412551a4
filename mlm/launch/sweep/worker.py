"""A worker of a sweep: a process that trains the points it is given, compiling a program once, and says how each ended.

Answers to its runner, as tuples: ("ready", platform) or ("refused", why) once; then for each order ("ended", {workdir:
error, or "" where it is done}), points that another process is at work on left out.
"""
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing import connection, parent_process
from pathlib import Path

from mlm.base import config, errors, lease


def main(orders: connection.Connection, points: Sequence[config.Config], cpus: Sequence[int], log: Path) -> None:
    """points: all of the sweep, to be checked before the first is trained; cpus: the cores to use; log: where to write.

    Ends when the runner closes `orders`. Where the runner is gone without a word, saves what it is at and ends too.
    """
    os.setpgid(0, 0)  # what a terminal ends reaches the runner alone, which passes it on
    threading.Thread(target=_follow, daemon=True).start()
    with log.open("a", buffering=1) as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)  # XLA makes as many threads as there are cores to run on
    import jax

    from mlm.evaluation import evaluation_tasks
    from mlm.train.run import loop
    from mlm.train.run.shutdown import Stopped

    with contextlib.suppress(EOFError, BrokenPipeError):  # the runner has closed its end
        try:
            for cfg in points:
                loop.check(cfg)
                evaluation_tasks.due(cfg)
        except errors.ConfigError as error:
            return orders.send(("refused", str(error)))
        orders.send(("ready", jax.default_backend()))
        while True:
            given = orders.recv()
            try:
                orders.send(("ended", work(given)))
            except Stopped as stop:
                print(stop, flush=True)
                sys.exit(128 + stop.signal)


def work(given: Sequence[config.Config]) -> dict[str, str]:
    """Trains the points, side by side where there are several, and asks each what every run is asked then. Returns by
    workdir the error, "" where it is done.

    Where they cannot be trained side by side, for want of memory or for one of them, each gets its own turn.
    """
    from mlm.evaluation import evaluation_tasks
    from mlm.train.run import log, loop, vmapped_runs
    from mlm.train.run.shutdown import Stopped

    if len(given) > 1:
        try:
            outcomes = {workdir: said(outcome) if isinstance(outcome, log.Diverged) else ""
                        for workdir, outcome in vmapped_runs.train(given).items()}
            for cfg in given:
                if outcomes.get(cfg.workdir) == "":
                    evaluation_tasks.finish(cfg)
            return outcomes
        except Stopped:
            raise
        except Exception:
            account("one after the other, then")
    outcomes = {}
    for cfg in given:
        try:
            loop.train(cfg)
            evaluation_tasks.finish(cfg)
            outcomes[cfg.workdir] = ""
        except Stopped:
            raise
        except lease.Taken:
            continue  # another process is at it, which the runner is told by its absence
        except Exception as error:
            account()
            outcomes[cfg.workdir] = said(error)
    return outcomes


def account(more: str = "") -> None:
    """Writes the error of the moment to the log, where that can be written."""
    with contextlib.suppress(OSError):
        traceback.print_exc()
        print(more, flush=True)


def said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0]


def _follow():
    connection.wait([parent_process().sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
