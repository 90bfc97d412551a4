"""Short measurements of this machine, in subprocesses: its peak speed, its memory, and steps of each program."""

import itertools
import statistics
import time
import timeit
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, fields, types
from mlm.base.special import NUM_SPECIAL
from mlm.base.types import StaticConfig
from mlm.data.rows import pack
from mlm.launch.sweep import plan, subprocess_worker
from mlm.training.step import parallel, program

MAX_MATRIX_SIZE = 8192  # of the matrices that are multiplied to measure the peak
WARMUP_STEPS = 1
TIMED_STEPS, TIMED_SECONDS = 5, 3  # whichever comes first ends the measurement of a program
PROGRAM_TIMEOUT, TOTAL_TIMEOUT = 30, 180  # seconds for the measurement of one program, and of all
TARGET_STEP_SECONDS = 1.0  # of a batch whose step would take longer, fewer examples are measured


class MachineSpeed(NamedTuple):
    """What this machine's devices can do, as measured."""

    name: str
    num_devices: int
    memory: float  # bytes per device
    flops: dict[str, float]  # per second and device, in products of large matrices, by dtype


class LocalMachine:
    """Step times on this machine. Each program is measured once, when it is first needed.

    A program that takes more than PROGRAM_TIMEOUT seconds, or comes after TOTAL_TIMEOUT, is assumed to reach the median
    utilisation of those measured before, or else `utilisation`.
    """

    def __init__(self, dtypes: set[str], utilisation: float):
        self.worker = subprocess_worker.SubprocessWorker()
        self.machine = self.worker.call(measure_machine, sorted(dtypes))
        self.utilisation, self.measured_utilisations = utilisation, []
        self.step_times: dict[StaticConfig, tuple[float, str]] = {}
        self.seconds_spent = 0.0

    def measure_step(self, cfg: config.Config, vocab_size: int, flops: float | None) -> tuple[float, str]:
        """Seconds of a step with a full batch, of so many FLOPs, and a description of how they were found."""
        static_cfg = make_full_batch_config(cfg)
        if static_cfg not in self.step_times:
            self.step_times[static_cfg] = self._measure(static_cfg, vocab_size, flops)
        return self.step_times[static_cfg]

    def _measure(self, cfg, vocab_size, flops) -> tuple[float, str]:
        batch_size, peak = cfg.train.batch_size, self.machine.flops[cfg.model.dtype] * self.machine.num_devices
        utilisation = statistics.median(self.measured_utilisations) if self.measured_utilisations else self.utilisation
        expected = flops / (peak * utilisation)
        num_examples = self._choose_num_examples(cfg, vocab_size, expected)
        if not num_examples or self.seconds_spent > TOTAL_TIMEOUT:
            return expected, f"{expected:.2g} s from its FLOPs"
        start = time.monotonic()
        try:
            measured = self.worker.call(time_step, cfg, vocab_size, num_examples, timeout=PROGRAM_TIMEOUT)
        except subprocess_worker.WorkerEnded as ended:
            self.worker.call(measure_machine, [])  # the first call of a new process is slow
            return expected, f"{expected:.2g} s from its FLOPs: {ended}"
        finally:
            self.seconds_spent += time.monotonic() - start
        seconds = measured * batch_size / num_examples
        self.measured_utilisations.append(flops / seconds / peak)
        part = f", from {num_examples} of {batch_size} examples" if num_examples < batch_size else ""
        return seconds, f"{seconds:.2g} s{part}"

    def _choose_num_examples(self, cfg, vocab_size, expected) -> int:
        """The examples to measure: all, or as many as TARGET_STEP_SECONDS and half the memory allow, or 0."""
        batch_size, num_devices = cfg.train.batch_size, self.machine.num_devices

        def fits(num_examples, accum_steps):
            device_batch = {"train.batch_size": num_examples // num_devices, "train.grad_accum_steps": accum_steps}
            return plan.estimate_memory(fields.override(cfg, device_batch), vocab_size) < self.machine.memory / 2

        accum_steps = cfg.train.grad_accum_steps
        divides = batch_size % (num_devices * accum_steps) == 0
        if expected <= TARGET_STEP_SECONDS and divides and fits(batch_size, accum_steps):
            return batch_size
        num_examples = max(1, int(batch_size * TARGET_STEP_SECONDS / expected) // num_devices)
        num_examples = min(num_examples, max(1, batch_size // num_devices)) * num_devices
        while num_examples and not fits(num_examples, 1):
            num_examples = num_examples // num_devices // 2 * num_devices
        return num_examples


def make_full_batch_config(cfg: config.Config) -> StaticConfig:
    """What the time of a step depends on, for a step after the warm-up of the batch size."""
    return program.make_static_config(fields.override(cfg, {"train.steps": 1, "train.batch_warmup_fraction": 0.0}))


def measure_machine(dtypes) -> MachineSpeed:
    """Describes all devices of this machine; measures the first."""
    described, memory = parallel.describe_devices(), float(parallel.device_memory())
    flops = {dtype: measure_peak_flops(dtype) for dtype in dtypes}
    return MachineSpeed(described["device"], described["devices"], memory, flops)


def measure_peak_flops(dtype: str) -> float:
    """FLOPs per second of one device in the product of two square matrices, larger ones until it takes 0.05 s."""
    multiply = jax.jit(lambda a: jnp.dot(a, a, preferred_element_type=jnp.float32))
    size, seconds = 512, 0.0
    while size < MAX_MATRIX_SIZE and seconds < 0.05:
        size *= 2
        matrix = jax.block_until_ready(jnp.ones((size, size), dtype))
        multiply(matrix).block_until_ready()
        seconds = min(timeit.repeat(lambda matrix=matrix: multiply(matrix).block_until_ready(), number=1, repeat=3))
    return 2 * size**3 / seconds


def time_step(cfg: StaticConfig, vocab_size: int, num_examples: int) -> float:
    """The median seconds of a step of so many random examples."""
    accum_steps = cfg.train.grad_accum_steps if num_examples == cfg.train.batch_size else 1
    cfg = fields.override(cfg, {"train.batch_size": num_examples, "train.grad_accum_steps": accum_steps})
    about = pack.build_dataset_info(cfg, vocab_size)
    built, batch = program.build_program(cfg, about), random_batch(num_examples, about)
    hparams = program.make_placeholder_hparams(cfg)
    return time_steps(built, hparams, itertools.repeat(batch), WARMUP_STEPS, TIMED_STEPS, TIMED_SECONDS)


def time_steps(
    built: program.Program, hparams, batches: Iterable[types.Batch], num_warmup: int, num_timed: int, seconds: float
) -> float:
    """The median seconds of a step, with its batch, of `num_timed` steps after a warm-up, or of those in `seconds`."""
    partitioner, times = built.partitioner, []
    state = partitioner.put_state(jax.device_get(built.init_state(hparams)))
    for batch in batches:
        start = time.perf_counter()
        state, metrics = partitioner.train_step(state, partitioner.put_batch(batch), hparams)
        np.asarray(partitioner.get_metrics(metrics)["loss"])
        times.append(time.perf_counter() - start)
        if len(times) == num_warmup + num_timed or (len(times) > num_warmup and sum(times[num_warmup:]) > seconds):
            break
    return statistics.median(times[num_warmup:])


def random_batch(num_examples: int, dataset_info: types.DatasetInfo) -> types.Batch:
    """A batch of full examples, each one segment of uniformly sampled tokens."""
    rng, template = np.random.default_rng(0), types.abstract_batch(num_examples, dataset_info)
    shape = template.text.ids_BxL.shape
    ids_BxL = rng.integers(min(NUM_SPECIAL, dataset_info.vocab_size - 1), dataset_info.vocab_size, shape, np.int32)
    positions_BxL = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy()
    text = types.Tokens(ids_BxL, np.ones(shape, np.int32), positions_BxL, np.zeros(shape, np.int32))
    labels = {name: np.zeros(label.shape, np.int32) for name, label in template.labels.items()}
    zeros_B = np.zeros(num_examples, np.int32)
    return types.Batch(text, labels, np.arange(num_examples, dtype=np.int32), split_index_B=zeros_B, epoch_B=zeros_B)
