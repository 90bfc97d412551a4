"""Part scaling: weak scaling, with the same number of examples on each device.

Measured: simulated devices share this machine's cores, so n devices have n times the work of one. Efficiency is n times
the time of one device over the time of n; the loss is the cost of partitioning and of collectives.

Projected for pods and clusters: compute time is the compiler's FLOP count at a share of the peak; communication time is
the bytes of each collective, from the program compiled for that many devices, over the links' bandwidth. Communication
may overlap with compute, so the true efficiency lies between two numbers: with all of it hidden, and with none.
Latency, memory bandwidth and stragglers are not modelled.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from experiments.benchmark import mlm_step, timing
from mlm.base import config, fields
from mlm.launch.cluster.accelerators import ACCELERATORS
from mlm.launch.sweep import plan, subprocess_worker
from mlm.training.compilation import cost
from mlm.training.step import program

COUNTS = (1, 2, 4, 8)
SECONDS = 30  # of rounds for each mode
UTILISATION = 0.4  # share of the dense peak FLOP/s while a device computes
MODES = ("data_parallel", "fsdp")
MEASURED_FIELDS = {"model.size": "mini", "train.batch_size": 4, "pack.seq_len": 128, "tokenizer.vocab_size": 8192}
# XLM-R large (Conneau et al. 2020), 16 examples of 512 tokens on each device.
PROJECTED_FIELDS = {
    "model.size": "large",
    "tokenizer.vocab_size": 250_002,
    "pack.seq_len": 512,
    "model.dtype": "bfloat16",
    "model.remat": True,
    "train.batch_size": 16,
}


class Pod(NamedTuple):
    """A group of devices, and the bytes per second that each sends, one way."""

    kind: str
    number: int  # of hosts, or one slice
    link: float  # within its slice or host
    network: float  # between hosts


PODS = (
    Pod("v5p-256", 1, 600e9, 0),  # Google Cloud's TPU v5p: 4,800 Gbit/s a chip
    Pod("H200-8", 8, 450e9, 50e9),
)  # NVIDIA's DGX H200: NVLink of 900 GB/s both ways, 400 Gbit/s a GPU


def make_config(mode: str, count: int, changes: Mapping) -> config.Config:
    return mlm_step.make_config(
        changes | {"parallel.mode": mode, "train.batch_size": count * changes["train.batch_size"]}
    )


def measure_steps(mode: str) -> dict[int, np.ndarray]:
    """Seconds per step for each number of this process's devices, one number per round."""
    return timing.measure_times(
        {
            count: mlm_step.build_sharded_step(make_config(mode, count, MEASURED_FIELDS), jax.devices()[:count])[0]
            for count in COUNTS
        },
        SECONDS,
    )


def estimate_collective_seconds(collective_bytes: Mapping[str, int], pod: Pod) -> tuple[float, float]:
    """Seconds of a step's collectives, as rings over all devices: within a slice or host, and between hosts.

    Each of n devices sends (n - 1) / n of the bytes, twice in an all-reduce. Between hosts, the devices of a host share
    what it sends.
    """
    shares = sum(size * (2 if name == "all-reduce" else 1) for name, size in collective_bytes.items())
    chips = ACCELERATORS[pod.kind].num_chips
    between = shares * (pod.number - 1) / pod.number / chips / pod.network if pod.number > 1 else 0.0
    return shares * (chips - 1) / chips / pod.link, between


def project_pod(pod: Pod) -> Iterator[dict]:
    kind = ACCELERATORS[pod.kind]
    count = pod.number * kind.num_chips
    with plan.simulate_devices(count) as compile_step:
        for mode in MODES:
            cfg = make_config(mode, count, PROJECTED_FIELDS)
            vocab_size = cfg.tokenizer.vocab_size
            device_cfg = fields.override(
                cfg, {"train.batch_size": PROJECTED_FIELDS["train.batch_size"], "model.remat": False}
            )
            computing = cost.count_step_flops(device_cfg, vocab_size) * plan.REMAT_WORK / (kind.flops * UTILISATION)
            step_cost = compile_step(program.make_static_config(cfg), vocab_size)
            times = dict(
                zip(
                    ("computing", "links", "network"),
                    (computing, *estimate_collective_seconds(step_cost.collective_bytes, pod)),
                    strict=True,
                )
            )
            case = f"{pod.number} x {pod.kind}, {mode}, {cfg.train.batch_size:,} x 512"
            yield from (
                timing.make_size_row(f"{case}: {name}", "ms", seconds * 1e3)
                for name, seconds in times.items()
                if seconds
            )
            yield from make_byte_rows(case, step_cost.collective_bytes)
            yield timing.make_size_row(f"{case}: memory as compiled", "GB a device", step_cost.memory / 1e9)
            bound = max(times, key=times.get)
            yield timing.make_size_row(f"{case}: hidden, bound by {bound}", "efficiency", computing / times[bound])
            yield timing.make_size_row(f"{case}: not hidden", "efficiency", computing / sum(times.values()))


def make_byte_rows(case: str, collective_bytes: Mapping[str, int]) -> Iterator[dict]:
    yield from (
        timing.make_size_row(f"{case}: {name}", "MB a step", size / 1e6)
        for name, size in collective_bytes.items()
        if size
    )


def measure() -> Iterator[dict]:
    max_devices = max(COUNTS)
    with contextlib.closing(subprocess_worker.SubprocessWorker("cpu")) as process:
        process.call(plan.set_device_count, max_devices)
        times = {mode: process.call(measure_steps, mode) for mode in MODES}
    with plan.simulate_devices(max_devices) as compile_step:
        for mode in MODES:
            for count in COUNTS:
                case = f"{mode}, {count} simulated devices"
                yield timing.make_row(case, "ms", times[mode][count])
                yield timing.make_size_row(
                    case, "efficiency", timing.compute_ratio(times[mode][count], count * times[mode][1])
                )
            cfg = make_config(mode, max_devices, MEASURED_FIELDS)
            yield from make_byte_rows(
                case, compile_step(program.make_static_config(cfg), cfg.tokenizer.vocab_size).collective_bytes
            )
    for pod in PODS:
        yield from project_pod(pod)
