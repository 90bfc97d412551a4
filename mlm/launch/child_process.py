"""One of several processes of a run on this host: its share of the devices, its signs of life, and what it says."""
import contextlib
import glob
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlm.launch import supervisor
from mlm.train.run import heartbeat

PATIENCE = {heartbeat.STEP: 1, heartbeat.REST: 10}  # how often --hang_after, by what a process said last
HEAR = 8     # seconds for the last words of one that has ended
KEPT = 1000  # lines of each process but the first, for when something fails


class Child:
    """Starts the process; ends it when the context ends. What the first says is shown, what others say is kept."""

    def __init__(self, number: int, processes: int, words: Sequence[str], port: int, lifeline: int):
        """words: mlm.cli.train's, after Python's name; port: of the coordinator; lifeline: supervise.start's."""
        self.number, self.word, self.step, self.steps, self.over = number, "", 0, False, False
        self.heard, self.said, self.error, self.fatal = time.monotonic(), deque(maxlen=KEPT), b"", b""
        words = [*words, "--local_processes=0"]
        if processes > 1:
            words += [f"--coordinator=127.0.0.1:{port}", f"--processes={processes}", f"--process={number}"]
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        with on_own_cores(number, processes):
            self.popen = supervisor.start(
                words, lifeline, {heartbeat.PIPE: str(theirs)} | own_gpus(number, processes), pass_fds=[theirs],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if number else None, stderr=subprocess.PIPE,
                process_group=0)  # a terminal's Ctrl-C reaches the parent alone
        os.close(theirs)
        self.threads = [threading.Thread(target=target, args=(source,), daemon=True) for target, source in (
            (self.listen, os.fdopen(ours)), (self.read, self.popen.stderr), (self.collect, self.popen.stdout or ()))]
        for thread in self.threads:
            thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.end()

    @property
    def code(self) -> int | None:
        """Its exit code, or None while it lives."""
        return self.popen.poll()

    def listen(self, beats: Iterable[str]) -> None:
        for line in beats:
            self.heard = time.monotonic()
            self.word, step = line.split()
            self.step = max(self.step, int(step))
            self.steps |= self.word == heartbeat.STEP
            self.over |= self.word == heartbeat.OVER

    def read(self, stderr: Iterable[bytes]) -> None:
        self.fatal = supervisor.tell(stderr, self.hear)

    def collect(self, stdout: Iterable[bytes]) -> None:
        for line in stdout:
            self.hear(line)

    def hear(self, line: bytes) -> None:
        if line.startswith(b"error: "):
            self.error = line  # not shown yet: it may but follow from how another ended
        if self.number:
            self.said.append(line)
        elif line is not self.error:
            show(line)

    def silent(self, seconds: float) -> bool:
        """Whether it lives and has said nothing for so long, or for as much longer as what it is at may take."""
        patience = PATIENCE.get(self.word)
        return self.code is None and patience is not None and time.monotonic() - self.heard > seconds * patience

    def saves(self) -> bool:
        """Whether it lives and, told to stop, has something to save."""
        return self.code is None and self.steps and self.word in PATIENCE

    def end(self) -> None:
        """Ends it, if it lives, and hears it out."""
        self.popen.kill()
        self.popen.wait()
        for thread in self.threads:
            thread.join(HEAR)  # not for ever: what it may have started could hold its pipes

    def hung(self, seconds: float) -> str:
        return f"process {self.number} hangs at step {self.step:,}: silent for {seconds} s or more (--hang_after)"

    def why(self) -> str:
        """How it ended, in a few words."""
        if self.code < 0:
            return f"{supervisor.why(self.code, self.fatal, f'process {self.number}')} at step {self.step:,}"
        said = self.error.decode("utf-8", "replace").strip().removeprefix("error: ")
        return f"process {self.number} ended at step {self.step:,}: {said or f'exit code {self.code}'}"

    def confess(self) -> None:
        """Shows the error that it ended with, if any."""
        show(self.error)

    def keep(self, workdir: str) -> str:
        """Writes beside the run what it said, and returns where; "" where it said nothing, or that cannot be."""
        with contextlib.suppress(OSError):
            if self.said:
                place = Path(f"{workdir}-process-{self.number}.txt")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(b"".join(self.said) + self.fatal)
                return str(place)
        return ""


def show(line: bytes) -> None:
    sys.stderr.buffer.write(line)
    sys.stderr.flush()


def gpus() -> list[str]:
    """The GPUs that JAX would use, as CUDA_VISIBLE_DEVICES names them."""
    if not on_gpus():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(len(glob.glob("/dev/nvidia[0-9]*")))]
    return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]


def on_gpus() -> bool:
    """Whether JAX would look for GPUs: it may, and a plugin for them is there."""
    platforms = os.environ.get("JAX_PLATFORMS") or "cuda"
    return bool({"cuda", "gpu"} & {*platforms.split(",")}) and importlib.util.find_spec("jax_plugins") is not None


def own_gpus(number: int, processes: int) -> dict[str, str]:
    """The environment by which a process sees its part of the GPUs; {} where there are none."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(part(found, number, processes))} if (found := gpus()) else {}


@contextlib.contextmanager
def on_own_cores(number: int, processes: int):
    """What is started in this block has its part of the cores, for each of which XLA makes a thread, where no GPU
    computes."""
    cores = [] if gpus() or not hasattr(os, "sched_setaffinity") else sorted(os.sched_getaffinity(0))
    if len(cores) >= processes:
        os.sched_setaffinity(0, part(cores, number, processes))
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, cores)


def part(of: Sequence, number: int, processes: int) -> Sequence:
    return of[number * len(of) // processes:(number + 1) * len(of) // processes]
