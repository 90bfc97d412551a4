"""The machine in front of you, measured shortly: its peak, its memory, and steps of each program.

What touches the devices is done in processes of their own (elsewhere.py).
"""
import itertools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, fields, types
from mlm.base.special import NUM_SPECIAL
from mlm.data.rows import pack
from mlm.launch.cluster.accelerators import Kind
from mlm.launch.sweep import plan, subprocess_worker
from mlm.train.step import parallel, program

LARGEST = 8192               # of the matrices multiplied for the peak
WARM, TIMED, TIME = 1, 5, 3  # steps before the clock starts; at most under it, while no more than so many seconds pass


PROGRAM, TOTAL = 30, 180  # seconds that a program, and all of them, may take to be measured
AIM = 1.0                 # seconds a step should take at most; of larger batches some rows are measured


class Machine(NamedTuple):
    name: str
    devices: int
    memory: float            # bytes of each device
    flops: dict[str, float]  # a second of each device, of products of large matrices, by dtype


class Here:
    """What steps take on this machine: each program's measured once, when it is first asked for.

    One that does not answer within PROGRAM seconds, or comes after TOTAL, is taken to reach the share of the peak that
    the median of those measured before it did, or `utilisation`.
    """

    def __init__(self, dtypes: set[str], utilisation: float):
        self.process = subprocess_worker.Process()
        self.machine = self.process.ask(machine, sorted(dtypes))
        self.utilisation, self.reached = utilisation, []
        self.kept: dict[config.Config, tuple[float, str]] = {}
        self.spent = 0.0

    def kind(self) -> Kind:
        return Kind(max(self.machine.flops.values()), self.machine.memory, self.machine.devices, "measured just now")

    def step(self, cfg: config.Config, entries: int, flops: float) -> tuple[float, str]:
        """Seconds of a step of so many FLOPs, and in words how that is known."""
        alike = program.blank(fields.override(cfg, {"train.steps": 1}))
        if alike not in self.kept:
            self.kept[alike] = self.measure(alike, entries, flops)
        return self.kept[alike]

    def measure(self, cfg, entries, flops) -> tuple[float, str]:
        batch, peak = cfg.train.batch_size, self.machine.flops[cfg.model.dtype] * self.machine.devices
        likely = flops / (peak * (statistics.median(self.reached) if self.reached else self.utilisation))
        rows = self.rows(cfg, entries, likely)
        if not rows or self.spent > TOTAL:
            return likely, f"{likely:.2g} s by its FLOPs"
        began = time.monotonic()
        try:
            took = self.process.ask(step_seconds, (cfg, entries, rows), PROGRAM)
        except subprocess_worker.Ended as ended:
            self.close()
            self.process = subprocess_worker.Process()
            self.process.ask(machine, [])  # who has just begun is slow to answer
            return likely, f"{likely:.2g} s by its FLOPs: {ended}"
        finally:
            self.spent += time.monotonic() - began
        seconds = took * batch / rows
        self.reached.append(flops / seconds / peak)
        return seconds, f"{seconds:.2g} s" + (f", by {rows} of {batch} rows" if rows < batch else "")

    def close(self) -> None:
        self.process.close()

    def rows(self, cfg, entries, likely) -> int:
        """How many rows of a batch to measure: all of them, or what takes about AIM seconds and half of the memory; 0
        where not even one a device does."""
        batch, devices = cfg.train.batch_size, self.machine.devices

        def fits(rows, accumulate):
            part = {"train.batch_size": rows // devices, "train.grad_accum_steps": accumulate}
            return plan.estimated(fields.override(cfg, part), entries) < self.machine.memory / 2

        if (
            likely <= AIM
            and batch % (devices * cfg.train.grad_accum_steps) == 0
            and fits(batch, cfg.train.grad_accum_steps)
        ):
            return batch
        rows = min(max(1, int(batch * AIM / likely) // devices), max(1, batch // devices)) * devices
        while rows and not fits(rows, 1):
            rows = rows // devices // 2 * devices
        return rows


def machine(dtypes) -> Machine:
    """All devices of this machine; the first is measured."""
    return Machine(jax.devices()[0].device_kind, jax.device_count(), float(parallel.device_memory()),
                   {dtype: peak(dtype) for dtype in dtypes})


def peak(dtype: str) -> float:
    """FLOPs a second of one device in the product of two square matrices, the larger until it takes a while."""
    multiply = jax.jit(lambda a: jnp.dot(a, a, preferred_element_type=jnp.float32))
    size, seconds = 512, 0.0
    while size < LARGEST and seconds < 0.05:
        size *= 2
        matrix = jax.block_until_ready(jnp.ones((size, size), dtype))
        multiply(matrix).block_until_ready()
        seconds = min(timed(lambda matrix=matrix: multiply(matrix).block_until_ready()) for _ in range(3))
    return 2 * size**3 / seconds


def timed(call: Callable) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def step_seconds(asked: tuple[config.Config, int, int]) -> float:
    """The median time of a step on all devices; asked: the config, its vocabulary's entries, rows to take in a step.

    The rows are drawn, not the corpus's, which costs a step nothing else.
    """
    cfg, entries, rows = asked
    cfg = fields.override(cfg, {"train.batch_size": rows,
                                "train.grad_accum_steps": cfg.train.grad_accum_steps if rows == cfg.train.batch_size else 1})
    about = pack.shape(cfg, entries)
    made, knobs = program.build(cfg, about), program.knobs(cfg)
    state = made.run.put_state(jax.device_get(made.initial(knobs)))
    batch, times, began = made.run.put_batch(drawn(rows, about)), [], 0.0
    for number in itertools.count():
        start = time.perf_counter()
        state, metrics = made.run.train_step(state, batch, knobs)
        np.asarray(made.run.get_metrics(metrics)["loss"])
        now = time.perf_counter()
        if number < WARM:
            began = now
            continue
        times.append(now - start)
        if len(times) == TIMED or now - began > TIME:
            return statistics.median(times)


def drawn(rows: int, about: types.DatasetInfo) -> types.Batch:
    """A batch of rows that are full, each one segment of words drawn alike."""
    rng, like = np.random.default_rng(0), types.abstract(rows, about)
    shape = like.text.ids_BxL.shape
    ids_BxL = rng.integers(min(NUM_SPECIAL, about.vocab_size - 1), about.vocab_size, shape, np.int32)
    positions_BxL = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy()
    text = types.Tokens(ids_BxL, np.ones(shape, np.int32), positions_BxL, np.zeros(shape, np.int32))
    labels = {name: np.zeros(one.shape, np.int32) for name, one in like.labels.items()}
    zeros_B = np.zeros(rows, np.int32)
    return types.Batch(text, labels, np.arange(rows, dtype=np.int32), row_B=zeros_B, epoch_B=zeros_B)
