"""The compilers of TPUs and GPUs, for devices that this machine does not have, and the least time of a compiled step.

libtpu and JAX's CUDA plugin compile for a described topology on any machine: the program, its memory and its
collectives are those of the device. They run in a subprocess, since their libraries read the environment when they
load. Nothing is executed.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import files
from mlm.base.types import StaticConfig
from mlm.launch.cluster.accelerators import CHIPS, Accelerator
from mlm.launch.sweep import subprocess_worker
from mlm.training.compilation import cost
from mlm.training.compilation.data_movement import Collective

# libtpu asks no metadata server for the machine's own TPU.
TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
GPU_MEMORY_SHARE = 0.9  # of a GPU's memory; the runtime and NCCL need the rest
COMPILER_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "nvidia-cuda-nvcc")  # their versions, and
COMPILER_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")  # these flags of the environment, change programs
READER_VERSION = 7  # of what is read from a compiled program; a saved cost of another is not taken
GPU_TARGET = Path(__file__).with_name("gpu_target.textproto")  # of `string.Template`

# What the bound assumes, for the reader of a plan.
ASSUMPTIONS = (
    "Time at least: a roofline, no measurement. The longest of the counted FLOPs at the dense bfloat16 peak, the "
    "bytes that kernels read and write at the memory's bandwidth, and asynchronous collectives; then collectives that "
    "nothing overlaps. Collectives are rings over all links of a device at once, or over its share of the network if "
    "they leave its slice or host. Nothing waits, and no kernel is slower than its bounds."
)


class Target(NamedTuple):
    """Devices that a compiler compiles for."""

    platform: str  # of jax.experimental.topologies
    topology: str  # its name
    options: tuple[tuple[str, Any], ...]  # keyword arguments of get_topology_desc
    memory: float  # bytes that a program may have on each device
    module: str  # the compiler's
    extra: str  # of this project, that installs it


def make_target(name: str, accelerator: Accelerator, count: int) -> Target:
    """What to compile for; name: of the accelerator; count: of GPUs, of hosts of GPUs or of slices of TPUs."""
    generation = name.partition("-")[0]
    if accelerator.tpu is None:
        topology = f"1x{count}x{accelerator.num_chips}" if accelerator.num_chips > 1 else f"1x1x{count}"
        options = (("topology", topology), ("target_config", describe_gpu(generation, accelerator)))
        memory = accelerator.memory * GPU_MEMORY_SHARE
        return Target("cuda", topology, options, memory, "jax_plugins.xla_cuda13", "gpu-plan")
    topology, options = accelerator.tpu.topology, ()
    if generation == "v4":
        options = (("chip_config_name", "megacore"),)  # one device a chip
    elif accelerator.num_hosts == 1 and topology not in ("2x2", "2x2x1"):
        sizes = [int(size) for size in topology.split("x")]
        options = (("chips_per_host_bounds", (*sizes, *[1] * (3 - len(sizes)))),)
    if count > 1:
        options = (*options, ("num_slices", count))
    return Target("tpu", f"{generation}:{topology}", options, CHIPS[generation]["program_gib"] * 2**30, "libtpu", "tpu")


def is_installed(target: Target) -> bool:
    """Whether the compiler of a target is installed here."""
    parent = target.module.partition(".")[0]
    return bool(importlib.util.find_spec(parent)) and bool(importlib.util.find_spec(target.module))


@contextlib.contextmanager
def open_compiler(target: Target) -> Iterator[Callable[[StaticConfig, int], cost.StepCost]]:
    """(static config, vocabulary size) -> the cost of a step on the target's devices; compiles no program twice.

    A compiler that ends its process, as libtpu may, ends the plan of that step alone.
    """
    with contextlib.closing(subprocess_worker.SubprocessWorker("cpu")) as worker:
        yield functools.cache(lambda cfg, vocab_size: worker.call(compile_step, target, cfg, vocab_size))


def compile_step(target: Target, cfg: StaticConfig, vocab_size: int) -> cost.StepCost:
    """The cost of a step for a target's devices, in the subprocess, or as an earlier plan found it."""
    os.environ.update(TPU_ENVIRONMENT)  # before the first call loads libtpu
    import jax

    jax.config.update("jax_enable_compilation_cache", False)  # it cannot load programs for devices that are not here
    lowered = cost.lower_step(cfg, vocab_size, devices=get_devices(target))
    path = files.make_path(cfg.data.cache_dir, "compiled_steps", f"{digest_program(target, lowered.as_text())}.json")
    if (saved := load_cost(path)) is not None:
        return saved
    try:
        found = cost.read_cost(lowered.compile())
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        found = cost.StepCost(read_needed_memory(str(error)), {})
    files.write_json_with_digest(path, found._asdict())
    return found


def digest_program(target: Target, text: str) -> str:
    """A name for a program, its target and its compiler; text: of the lowered program."""
    versions = {}
    for name in COMPILER_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    flags = {name: os.environ.get(name, "") for name in COMPILER_VARIABLES}
    identity = json.dumps([READER_VERSION, target, versions, flags], sort_keys=True)
    return hashlib.sha256(f"{identity}\n{text}".encode()).hexdigest()[:32]


def load_cost(path: files.Path) -> cost.StepCost | None:
    """The cost that an earlier plan saved; None if there is none, or the file is damaged."""
    with contextlib.suppress(files.DamagedFile):
        if saved := files.read_json_with_digest(path):
            transfers = tuple(Collective(*values, group=tuple(group)) for *values, group in saved.pop("transfers"))
            return cost.StepCost(transfers=transfers, **saved)
    return None


@functools.cache
def get_devices(target: Target) -> tuple[Any, ...]:
    """The described devices of a target."""
    from jax.experimental import topologies

    description = topologies.get_topology_desc(
        platform=target.platform, topology_name=target.topology, **dict(target.options)
    )
    return tuple(description.devices)


def read_needed_memory(message: str) -> float:
    """The bytes that libtpu says a program needs at least when it is too large; infinity if it does not say."""
    needed = re.search(r"(?:Used |temporaries \()([\d.]+)([KMGT])", message)
    return float(needed[1]) * 2 ** (10 * (1 + "KMGT".index(needed[2]))) if needed else float("inf")


def describe_gpu(generation: str, accelerator: Accelerator) -> str:
    """A GPU's figures, as XLA's text of a GpuTargetConfig."""
    chip = CHIPS[generation]
    major, minor = chip["capability"]
    values = {
        "name": generation,
        "major": major,
        "minor": minor,
        "block_memory": chip["shared_memory"] - 2**10,
        "fpus": 64 if major == 8 else 128,
        "clock": accelerator.flops / (chip["num_cores"] * (2048 if major == 8 else 4096) * 1e9),
        "bandwidth": int(accelerator.bandwidth),
        "memory": int(accelerator.memory),
    }
    return string.Template(GPU_TARGET.read_text()).substitute(chip | values).rstrip()


class Roofline(NamedTuple):
    """Seconds of a step, at least, by what bounds it."""

    compute: float
    memory: float
    overlapped: float  # collectives beside compute
    exposed: float  # collectives that everything else waits for

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return max(self.compute, self.memory, self.overlapped) + self.exposed


def bound_step(step_cost: cost.StepCost, flops: float, accelerator: Accelerator, num_devices: int) -> Roofline | None:
    """The bound of a step on so many devices; flops: of the whole step. None where the step's memory was not read."""
    if step_cost.traffic is None or not accelerator.bandwidth:
        return None
    # A single GPU is planned as one of a host.
    num_linked = accelerator.num_devices if accelerator.num_chips > 1 else num_devices
    seconds = {
        one: one.times * bound_collective(one, accelerator, num_devices, num_linked) for one in set(step_cost.transfers)
    }
    overlapped = sum(seconds[one] for one in step_cost.transfers if one.is_overlapped)
    exposed = sum(seconds[one] for one in step_cost.transfers if not one.is_overlapped)
    return Roofline(
        flops / num_devices / accelerator.flops, step_cost.traffic / accelerator.bandwidth, overlapped, exposed
    )


def bound_collective(one: Collective, accelerator: Accelerator, num_devices: int, num_linked: int) -> float:
    """Seconds of one call of a collective; num_linked: devices of a slice or host."""
    group = one.group or tuple(range(num_devices))
    share = 1.0 if one.kind == "collective-permute" else (len(group) - 1) / len(group)
    leaves = len({device // num_linked for device in group}) > 1
    bandwidth = accelerator.network_bandwidth if leaves else accelerator.link_bandwidth
    return one.size * share * (2 if one.kind == "all-reduce" else 1) / bandwidth


def describe_roofline(bound: Roofline) -> str:
    """The bound in milliseconds, with what makes it."""
    parts = {"FLOPs": bound.compute, "memory": bound.memory, "overlapped collectives": bound.overlapped}
    parts |= {"exposed collectives": bound.exposed}
    described = ", ".join(f"{name} {1e3 * seconds:.3g}" for name, seconds in parts.items() if seconds)
    return f"{1e3 * bound.total:.3g} ms ({described})"
