"""Trains the points of a sweep that are not done: gives them to worker processes, and outlives what befalls those."""
import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing import connection
from pathlib import Path

from mlm.base import config, errors, files
from mlm.launch.sweep import worker
from mlm.launch.sweep.subprocess_worker import CannotStart, apart
from mlm.launch.sweep.sweep_state import Overview, state
from mlm.train.run import directory
from mlm.train.step import program

MOST = 16      # points side by side
BUSY = 1e12    # FLOPs a step from which one model is thought to keep an accelerator busy; to be measured on one


def side_by_side(platform: str, cfg: config.Config) -> tuple[int, str]:
    """How many points of one program to train as one population on a kind of device, and why: what alone chooses.

    platform: as JAX names it, "cpu" or an accelerator. FLOPs are taken as six for each token and each weight of a
    Transformer of the same depth and width.
    """
    if platform == "cpu":
        return 1, "a CPU is busy with one (16 one after the other took 43 s, side by side 57 s)"
    if cfg.parallel.mode != "jit":
        return 1, f"config.parallel.mode is {cfg.parallel.mode}"
    flops = 6 * 12 * cfg.model.num_layers * cfg.model.width**2 * cfg.train.batch_size * cfg.pack.seq_len
    return max(1, min(MOST, int(BUSY / flops))), f"a step takes about {flops:.0e} FLOPs of {BUSY:.0e} at a time"


class Worker:
    """A worker process as its runner sees it."""

    def __init__(self, points: Sequence[config.Config], cpus: Sequence[int], log: Path):
        context = multiprocessing.get_context("spawn")
        self.cpus, self.log = cpus, log
        self.platform = None                    # of its devices; None until it is ready
        self.given: list[config.Config] = []    # what it is at
        self.warm = None                        # the program that it compiled last
        self.orders, theirs = context.Pipe()
        self.process = context.Process(target=worker.main, args=(theirs, points, cpus, log))
        with apart():
            self.process.start()
        theirs.close()


class Runner:
    """One call of `run`: which points wait, which worker is at which, and what failed."""

    def __init__(self, root: Path, points: Sequence[config.Config], *, workers: int, together: int):
        self.root, self.points, self.together = root, points, together
        self.programs = {cfg.workdir: program.blank(cfg) for cfg in points}
        states = [state(cfg) for cfg in points]
        self.waiting = [cfg for cfg, at in zip(points, states, strict=True) if at.name != "done"]
        self.damaged = [at.error for at in states if at.name == "damaged"]
        self.failed: dict[str, str] = {}
        self.told: set[config.Config] = set()   # programs of which was said how their points are trained
        self.signal = None
        self.team: list[Worker] = []
        self.started = 0
        count = min(workers, len(self.waiting))
        cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count()))
        self.free = [cpus[i::count] or [cpus[i % len(cpus)]] for i in range(count)]  # cores of workers not at work

    def run(self, view: Overview) -> None:
        """Returns when every point is done, here or by another runner, or failed, or once asked to stop.

        A point that another runner is at is waited for. Raises ConfigError for what no worker could train, CannotStart
        where workers cannot. SIGTERM and SIGINT are passed to the workers, which save: see `signal` after it.
        """
        before = {number: signal.signal(number, self.stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for fault in self.damaged:
                view.say(fault)
            while self.signal is None and (self.waiting or any(member.given for member in self.team)):
                self.staff()
                self.assign(view)
                self.listen(view)
                view.show(self.at_work())
        except BaseException:
            self.stop(signal.SIGTERM, None)
            raise
        finally:
            for member in self.team:
                member.orders.close()
            for member in self.team:
                member.process.join()
            for number, handler in before.items():
                signal.signal(number, handler)
            view.show((), last=True)

    def stop(self, number, frame) -> None:
        self.signal = number
        for member in self.team:
            if member.process.is_alive():
                os.kill(member.process.pid, signal.SIGTERM)

    def at_work(self) -> set[str]:
        return {cfg.workdir for member in self.team for cfg in member.given}

    def staff(self) -> None:
        """Starts workers in the places that are free, as long as there are points for them."""
        while self.free and sum(not member.given for member in self.team) < len(self.waiting):
            log = files.here(self.root) / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self.started}.log"
            try:
                log.parent.mkdir(parents=True, exist_ok=True)
                log.touch()
            except OSError as error:
                raise CannotStart(f"a worker cannot write its log: {error.strerror}: {error.filename}") from None
            self.team.append(Worker(self.points, self.free.pop(0), log))
            self.started += 1

    def assign(self, view: Overview) -> None:
        for member in self.team:
            if member.platform is None or member.given:
                continue
            self.waiting = [cfg for cfg in self.waiting if state(cfg).name != "done"]
            open_ = [cfg for cfg in self.waiting if not directory.held(cfg)]
            if not open_:
                return
            others = {other.warm for other in self.team if other is not member}
            group = self.choose(open_, member.warm, others)
            made = self.programs[group[0].workdir]
            count, why = side_by_side(member.platform, group[0])
            if self.together and group[0].parallel.mode != "sharded":
                count, why = self.together, "--together"
            if made not in self.told and len(group) > 1:
                self.told.add(made)
                how = "one after the other" if count == 1 else f"side by side, up to {count}"
                view.say(f"{len(group)} points share a program, trained {how}: {why}")
            member.given, member.warm = group[:count], made
            self.waiting = [cfg for cfg in self.waiting if cfg not in member.given]
            for cfg in member.given:
                with contextlib.suppress(OSError):
                    directory.failure(cfg.workdir).unlink()
            with contextlib.suppress(BrokenPipeError):  # one that has just ended is buried with what it was given
                member.orders.send(member.given)

    def choose(self, open_: Sequence[config.Config], warm, others) -> list[config.Config]:
        """The points of the program to go on with: the one compiled last, else one that no other worker is at, the
        first in order; else that with most points left.
        """
        groups = {}
        for cfg in open_:
            groups.setdefault(self.programs[cfg.workdir], []).append(cfg)
        if warm in groups:
            return groups[warm]
        new = [group for made, group in groups.items() if made not in others]
        return new[0] if new else max(groups.values(), key=len)

    def listen(self, view: Overview) -> None:
        """Waits a little for what workers say, and for their end."""
        heard = connection.wait([member.orders for member in self.team], timeout=0.5)
        for member in [member for member in self.team if member.orders in heard]:
            try:
                word, said = member.orders.recv()
            except (EOFError, ConnectionResetError):
                self.bury(member)
                continue
            if word == "refused":
                raise errors.ConfigError(said)
            if word == "ready":
                member.platform = said
                continue
            given, member.given = member.given, []
            self.waiting = [cfg for cfg in given if cfg.workdir not in said] + self.waiting  # another is at those
            for cfg in given:
                if cfg.workdir in said:
                    at = state(cfg) if not said[cfg.workdir] else None
                    error = said[cfg.workdir] or (at.error if at.name != "done" else "")
                    if error:
                        self.fail(cfg.workdir, f"{error} (log: {member.log})")

    def bury(self, member: Worker) -> None:
        """A worker ended on its own: what it was at failed, unless this runner asked it to stop."""
        member.process.join()
        member.orders.close()
        self.team.remove(member)
        self.free.append(member.cpus)
        if self.signal is not None:
            return
        code = member.process.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if member.platform is None:
            raise CannotStart(f"a worker could not start: it {how} (log: {member.log})")
        for cfg in member.given:
            if state(cfg).name != "done":
                self.fail(cfg.workdir, f"the worker {how} (log: {member.log})")

    def fail(self, workdir: str, error: str) -> None:
        self.failed[workdir] = error
        with contextlib.suppress(OSError):  # what keeps the point from being trained may keep this from being written
            directory.fail(workdir, error)
