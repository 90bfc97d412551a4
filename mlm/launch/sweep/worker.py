"""A worker of a sweep: a process that trains the points it is assigned, and compiles a shared program only once.

It answers its runner with tuples: first ("ready", platform) or ("refused", reason), then for each assignment ("ended",
{workdir: error, or "" if the point is done}), without the points that another process is training.
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


def run_worker(pipe: connection.Connection, points: Sequence[config.Config], cpus: Sequence[int], log: Path) -> None:
    """Serves the runner until it closes the pipe. If the runner dies, saves the current point and ends too.

    points: of the sweep, all checked before the first is trained; cpus: cores to use; log: of this process's output.
    """
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the runner alone, which passes it on
    threading.Thread(target=_exit_with_runner, daemon=True).start()
    with log.open("a", buffering=1) as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)  # XLA starts a thread for each core that it sees
    import jax

    from mlm.evaluation import evaluated_run

    with contextlib.suppress(EOFError, BrokenPipeError):  # the runner has closed its end
        try:
            for cfg in points:
                evaluated_run.check(cfg)
        except errors.ConfigError as error:
            return pipe.send(("refused", str(error)))
        pipe.send(("ready", jax.default_backend()))
        while True:
            assigned = pipe.recv()
            try:
                pipe.send(("ended", train_points(assigned)))
            except errors.RunStopped as stop:
                print(stop, flush=True)
                sys.exit(128 + stop.signal)


def train_points(points: Sequence[config.Config]) -> dict[str, str]:
    """Trains points, several of them vmapped, and evaluates each. Returns errors by workdir, "" for one that is done.

    If they cannot be trained together, for lack of memory or because of one of them, each is trained on its own.
    """
    from mlm.data.rows import pack
    from mlm.evaluation import evaluated_run, evaluation_tasks
    from mlm.training.run import hooks, vmapped_runs

    if len(points) > 1:
        try:
            outcomes = {
                workdir: describe_error(outcome) if isinstance(outcome, hooks.DivergenceError) else ""
                for workdir, outcome in vmapped_runs.train_vmapped(points).items()
            }
            for cfg in points:
                if outcomes.get(cfg.workdir) == "":
                    evaluation_tasks.finish_evaluations(cfg)
            return outcomes
        except errors.RunStopped:
            raise
        except Exception:
            log_exception("training the points one after the other instead")
    outcomes = {}
    for cfg in points:
        try:
            evaluated_run.train_and_evaluate(cfg, pack.load_dataset(cfg))
            outcomes[cfg.workdir] = ""
        except errors.RunStopped:
            raise
        except lease.FolderInUse:
            continue  # another process trains it, which the runner learns from its absence
        except Exception as error:
            log_exception()
            outcomes[cfg.workdir] = describe_error(error)
    return outcomes


def log_exception(note: str = "") -> None:
    """Writes the current exception to the log, if that can be written."""
    with contextlib.suppress(OSError):
        traceback.print_exc()
        print(note, flush=True)


def describe_error(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0]


def _exit_with_runner():
    runner = parent_process()
    assert runner is not None
    connection.wait([runner.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
