"""Trains the points of a sweep that are not done, in worker processes; it survives whatever happens to those."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from mlm.base import config, errors, files, groups, machine
from mlm.launch.sweep import worker
from mlm.launch.sweep.subprocess_worker import WorkerEnded, describe_exit, start_process
from mlm.launch.sweep.sweep_state import LOG_PREFIX, SweepDisplay, is_done, read_state
from mlm.training.run.directory import RunDirectory
from mlm.training.step import parallel, program

MAX_VMAP_RUNS = 16  # points that are vmapped together
SATURATING_FLOPS = 1e12  # of a step: from here one model is assumed to keep an accelerator busy (not yet measured)


def choose_vmap_runs(platform: str, cfg: config.Config, vmap_runs: int = 0) -> tuple[int, str]:
    """How many points of one program to vmap together on a kind of device, and why. Only these arguments decide.

    platform: JAX's name, "cpu" or an accelerator; vmap_runs: so many, if they can be vmapped; 0: what pays. A step's
    FLOPs are estimated as six for each token and each weight of a Transformer of the same depth and width.
    """
    if not parallel.MODES[cfg.parallel.mode].vmaps_runs:
        return 1, f"config.parallel.mode is {cfg.parallel.mode}"
    if cfg.phases.shares:
        return 1, "their phases have programs of their own"
    if vmap_runs:
        return vmap_runs, "--vmap_runs"
    if platform == "cpu":
        return 1, "one keeps a CPU busy (16 took 43 s one after the other, 57 s vmapped)"
    flops = 6 * 12 * cfg.model.num_layers * cfg.model.width**2 * cfg.train.batch_size * cfg.pack.seq_len
    count = max(1, min(MAX_VMAP_RUNS, int(SATURATING_FLOPS / flops)))
    return count, f"a step takes about {flops:.0e} FLOPs of {SATURATING_FLOPS:.0e} at a time"


class WorkerProcess:
    """A worker process as its runner sees it."""

    def __init__(self, points: Sequence[config.Config], cpus: Sequence[int], log: Path):
        self.cpus, self.log = cpus, log
        self.platform: str | None = None  # of its devices; None until it is ready
        self.assigned: list[config.Config] = []  # the points that it trains
        self.last_program: Any = None  # the program that it compiled last
        self.process, self.pipe = start_process(worker.run_worker, points, cpus, log)


class SweepRunner:
    """One call of `mlm sweep run`: which points wait, which worker trains which, and what failed."""

    def __init__(self, root: Path, points: Sequence[config.Config], *, num_workers: int, vmap_runs: int):
        self.root, self.points, self.vmap_runs = root, points, vmap_runs
        self.programs = {cfg.workdir: (program.make_static_config(cfg), cfg.phases) for cfg in points}
        self.display = SweepDisplay(points)
        self.waiting = [cfg for cfg in points if self.display.states[cfg.workdir].name != "done"]
        # They have a result, but lack evaluations, or a file is damaged.
        self.incomplete = {cfg.workdir for cfg in self.waiting if is_done(cfg)}
        self.failures: dict[str, str] = {}  # errors by workdir
        self.announced_programs: set[Any] = set()
        self.signal = None
        self.workers: list[WorkerProcess] = []
        self.num_started = 0
        count = min(num_workers, len(self.waiting))
        cpus = machine.list_cores()
        shares = (cpus[i::count] or [cpus[i % len(cpus)]] for i in range(count))
        self.free_cpus: list[Sequence[int]] = [*shares]  # of workers not started

    def run(self) -> None:
        """Trains until no point is left. Raises RunStopped on a signal, ConfigError, WorkerEnded if none can train."""
        handlers = {number: signal.signal(number, self.stop) for number in (signal.SIGTERM, signal.SIGINT)}
        with self.display:
            try:
                self.train()
            except BaseException:
                self.stop(signal.SIGTERM, None)
                raise
            finally:
                for member in self.workers:
                    member.pipe.close()
                for member in self.workers:
                    member.process.join()
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        if self.signal is not None:
            num_done = sum(map(is_done, self.points))
            line = f"stopped; {num_done} of {len(self.points)} points are done; the same command continues"
            raise errors.RunStopped(line, self.signal)

    def train(self) -> None:
        """Starts workers, gives them points and reads what they answer, until no point waits or is trained."""
        for state in self.display.states.values():
            if state.name == "damaged":
                self.display.print_line(state.error)
        while self.signal is None and (self.waiting or any(member.assigned for member in self.workers)):
            self.start_workers()
            self.assign_points()
            self.read_answers()
            self.display.update({cfg.workdir for member in self.workers for cfg in member.assigned})

    def stop(self, number, frame) -> None:
        """Handles a signal: stores its number and sends SIGTERM to all workers, which then save."""
        self.signal = number
        for member in self.workers:
            member.process.terminate()

    def start_workers(self) -> None:
        """Starts workers on free cores, as long as there are points for them."""
        while self.free_cpus and sum(not member.assigned for member in self.workers) < len(self.waiting):
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self.num_started}.log"
            log = files.local_folder(self.root) / "logs" / name
            try:
                log.parent.mkdir(parents=True, exist_ok=True)
                log.touch()
            except OSError as error:
                raise WorkerEnded(f"a worker cannot write its log: {error.strerror}: {error.filename}") from None
            self.workers.append(WorkerProcess(self.points, self.free_cpus.pop(0), log))
            self.num_started += 1

    def assign_points(self) -> None:
        """Gives each ready and idle worker points of one program that no process holds, several if they are vmapped."""
        for member in self.workers:
            if member.platform is None or member.assigned:
                continue
            self.waiting = [cfg for cfg in self.waiting if cfg.workdir in self.incomplete or not is_done(cfg)]
            available = [cfg for cfg in self.waiting if not RunDirectory(cfg.workdir).is_locked()]
            if not available:
                return
            others = {other.last_program for other in self.workers if other is not member}
            group = self.choose_points(available, member.last_program, others)
            group_program = self.programs[group[0].workdir]
            count, reason = choose_vmap_runs(member.platform, group[0], self.vmap_runs)
            if group_program not in self.announced_programs and len(group) > 1:
                self.announced_programs.add(group_program)
                how = "one after the other" if count == 1 else f"vmapped, up to {count} together"
                self.display.print_line(f"{len(group)} points share a program, trained {how}: {reason}")
            member.assigned, member.last_program = group[:count], group_program
            self.waiting = [cfg for cfg in self.waiting if cfg not in member.assigned]
            for cfg in member.assigned:
                with contextlib.suppress(OSError):
                    RunDirectory(cfg.workdir).error.unlink()
            with contextlib.suppress(BrokenPipeError):  # remove_worker handles a worker that has just ended
                member.pipe.send(member.assigned)

    def choose_points(self, available: Sequence[config.Config], last_program, other_programs) -> list[config.Config]:
        """The points of the program compiled last, else of the first that no worker uses, else of the largest."""
        by_program = groups.group_values((self.programs[cfg.workdir], cfg) for cfg in available)
        if last_program in by_program:
            return by_program[last_program]
        unused = [points for one, points in by_program.items() if one not in other_programs]
        return unused[0] if unused else max(by_program.values(), key=len)

    def read_answers(self) -> None:
        """Waits a moment for answers of workers, and for their end."""
        readable = connection.wait([member.pipe for member in self.workers], timeout=0.5)
        for member in [member for member in self.workers if member.pipe in readable]:
            try:
                kind, value = member.pipe.recv()
            except (EOFError, ConnectionResetError):
                self.remove_worker(member)
                continue
            if kind == "refused":
                raise errors.ConfigError(value)
            if kind == "ready":
                member.platform = value
                continue
            assigned, member.assigned = member.assigned, []
            self.waiting = [cfg for cfg in assigned if cfg.workdir not in value] + self.waiting  # another trains those
            for cfg in assigned:
                error = value.get(cfg.workdir)
                if error or (error == "" and (error := read_state(cfg).error)):
                    self.record_failure(cfg.workdir, f"{error}{LOG_PREFIX}{member.log})")

    def remove_worker(self, member: WorkerProcess) -> None:
        """Handles a worker that ended on its own: its points failed, unless this runner stopped it."""
        member.process.join()
        member.pipe.close()
        self.workers.remove(member)
        self.free_cpus.append(member.cpus)
        if self.signal is not None:
            return
        how = describe_exit(member.process.exitcode)
        if member.platform is None:
            raise WorkerEnded(f"a worker could not start: it {how}{LOG_PREFIX}{member.log})")
        for cfg in member.assigned:
            if read_state(cfg).name != "done":
                self.record_failure(cfg.workdir, f"the worker {how}{LOG_PREFIX}{member.log})")

    def record_failure(self, workdir: str, error: str) -> None:
        """Stores the error of a point in `failures`, and in the point's directory if that can be written."""
        self.failures[workdir] = error
        with contextlib.suppress(OSError):  # what keeps the point from training may keep this from being written
            files.write_text(RunDirectory(workdir).error, error + "\n")
