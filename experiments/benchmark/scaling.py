"""Part scaling: weak scaling. Devices are added, each with as many rows as the first had.

Measured on simulated devices, which share this machine's cores: n of them have n times the work of one, so that
efficiency is n times the time of one over that of n, and what it lacks is the price of splitting and of collectives.
Then on paper, for pods and clusters: operations by the compiler's count at a share of the peak, bytes by collective
from the program that is compiled for so many devices, at what the links between them carry. Collectives that stand
beside computing cost nothing as long as they are the shorter, so that the truth lies between two efficiencies: with all
of them hidden, and with none. Of latency, of memory's bandwidth and of waiting for the slowest host paper says nothing.
"""
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from experiments.benchmark import ours, timing
from mlm.base import config, fields
from mlm.launch.cluster.accelerators import KINDS
from mlm.launch.sweep import plan, subprocess_worker
from mlm.train.step import cost, program

COUNTS = (1, 2, 4, 8)
SECONDS = 30        # of rounds, a mode
UTILISATION = 0.4   # of the dense peak, while a device computes
MODES = ("jit", "sharded")
MEASURED = {"model.size": "mini", "train.batch_size": 4, "pack.seq_len": 128, "tokenizer.vocab_size": 8192}
# XLM-R large (Conneau et al. 2020), 16 rows of 512 tokens on each device.
PAPER = {"model.size": "large", "tokenizer.vocab_size": 250_002, "pack.seq_len": 512, "model.dtype": "bfloat16",
         "model.remat": True, "train.batch_size": 16}


class Pod(NamedTuple):
    """Devices on paper, and the bytes a second that each sends, one way."""

    kind: str
    number: int       # of the kind: hosts, or one slice
    link: float       # to others of its slice or host
    network: float    # to other hosts


PODS = (Pod("v5p-256", 1, 600e9, 0),       # Google Cloud's TPU v5p: 4,800 Gbit/s a chip
        Pod("H200-8", 8, 450e9, 50e9))     # NVIDIA's DGX H200: NVLink of 900 GB/s both ways, 400 Gbit/s a GPU


def recipe(mode: str, count: int, changes: Mapping) -> config.Config:
    return ours.checked(changes | {"parallel.mode": mode, "train.batch_size": count * changes["train.batch_size"]})


def measured(mode: str) -> dict[int, np.ndarray]:
    """Seconds a step of each number of this process's devices, one a round."""
    return timing.measure({count: step(recipe(mode, count, MEASURED), jax.devices()[:count]) for count in COUNTS},
                          SECONDS)


def step(cfg: config.Config, devices) -> Callable[[], None]:
    made, knobs = program.build(cfg, ours.about(cfg), devices), program.knobs(cfg)
    state, placed = made.run.put_state(made.initial(knobs)), itertools.cycle(map(made.run.put_batch, ours.batches(cfg)))

    def update():
        nonlocal state
        state, metrics = made.run.train_step(state, next(placed), knobs)
        jax.block_until_ready((state, metrics))

    return update


def seconds(moved: Mapping[str, int], pod: Pod) -> tuple[float, float]:
    """Of a step's collectives, rings over all devices: on the links of a slice or host, and between those.

    Of bytes that n devices share each sends (n - 1) / n, in an all-reduce twice. Between hosts every device carries its
    part of what its host sends.
    """
    shares = sum(size * (2 if name == "all-reduce" else 1) for name, size in moved.items())
    chips = KINDS[pod.kind].chips
    between = shares * (pod.number - 1) / pod.number / chips / pod.network if pod.number > 1 else 0.0
    return shares * (chips - 1) / chips / pod.link, between


def on_paper(pod: Pod) -> Iterator[dict]:
    kind = KINDS[pod.kind]
    count = pod.number * kind.chips
    with plan.simulated(count) as compiled:
        for mode in MODES:
            cfg = recipe(mode, count, PAPER)
            entries = cfg.tokenizer.vocab_size
            own = fields.override(cfg, {"train.batch_size": PAPER["train.batch_size"], "model.remat": False})
            computing = cost.per_step(own, entries) * plan.AGAIN / (kind.flops * UTILISATION)
            found = compiled(program.blank(cfg), entries)
            times = dict(zip(("computing", "links", "network"), (computing, *seconds(found.moved, pod)), strict=True))
            case = f"{pod.number} x {pod.kind}, {mode}, {cfg.train.batch_size:,} x 512"
            yield from (timing.size_row(f"{case}: {name}", "ms", took * 1e3) for name, took in times.items() if took)
            yield from bytes_of(case, found.moved)
            yield timing.size_row(f"{case}: memory as compiled here", "GB a device", found.memory / 1e9)
            bound = max(times, key=times.get)
            yield timing.size_row(f"{case}: hidden, bound by {bound}", "efficiency", computing / times[bound])
            yield timing.size_row(f"{case}: not hidden", "efficiency", computing / sum(times.values()))


def bytes_of(case: str, moved: Mapping[str, int]) -> Iterator[dict]:
    yield from (timing.size_row(f"{case}: {name}", "MB a step", size / 1e6) for name, size in moved.items() if size)


def rows() -> Iterator[dict]:
    most = max(COUNTS)
    with contextlib.closing(subprocess_worker.Process("cpu")) as process:
        process.ask(plan.simulate, most)
        times = {mode: process.ask(measured, mode) for mode in MODES}
    with plan.simulated(most) as compiled:
        for mode in MODES:
            for count in COUNTS:
                case = f"{mode}, {count} simulated devices"
                yield timing.row(case, "ms", times[mode][count])
                yield timing.size_row(case, "efficiency", timing.ratio(times[mode][count], count * times[mode][1]))
            cfg = recipe(mode, most, MEASURED)
            yield from bytes_of(case, compiled(program.blank(cfg), cfg.tokenizer.vocab_size).moved)
    for pod in PODS:
        yield from on_paper(pod)
