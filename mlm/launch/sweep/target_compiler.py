"""The compilers of TPUs and GPUs, for devices that this machine does not have.

libtpu and JAX's CUDA plugin compile for a described topology on any machine: the program, its memory and its
collectives are those of the device. They run in a subprocess, since their libraries read the environment when they
load. Nothing is executed.
"""

import contextlib
import functools
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mlm.base import config, errors
from mlm.launch.cluster.accelerators import Accelerator
from mlm.launch.sweep import subprocess_worker
from mlm.training.step import cost

# libtpu asks no metadata server for the machine's own TPU.
TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
GIB = 2**30
# Bytes that libtpu 0.0.42 lets a program have on one device, by generation: what its error says of a larger program.
TPU_MEMORY = {"v4": 30.75 * GIB, "v5e": 15.75 * GIB, "v5p": 95.74 * GIB, "v6e": 31.25 * GIB, "tpu7x": 94.75 * GIB}
GPU_MEMORY_SHARE = 0.9  # of a GPU's memory; the runtime and NCCL need the rest
# Streaming multiprocessors, bytes per second of memory, bytes of L2 cache, major and minor compute capability: NVIDIA's
# datasheets and its CUDA programming guide, table of technical specifications.
GPUS = {
    "A100": (108, 2039e9, 40 * 2**20, (8, 0)),
    "H100": (132, 3352e9, 50 * 2**20, (9, 0)),
    "H200": (132, 4800e9, 50 * 2**20, (9, 0)),
    "B200": (148, 8000e9, 126 * 2**20, (10, 0)),
}
SHARED_MEMORY = {8: 167_936, 9: 233_472, 10: 233_472}  # bytes of a multiprocessor, by major compute capability


class Target(NamedTuple):
    """Devices that a compiler compiles for."""

    platform: str  # of jax.experimental.topologies
    topology: str  # its name
    options: tuple[tuple[str, Any], ...]  # keyword arguments of get_topology_desc
    memory: float  # bytes that a program may have on each device
    module: str  # the compiler's
    extra: str  # of this project, that installs it


def make_target(name: str, accelerator: Accelerator, count: int) -> Target:
    """What to compile for; name: of the accelerator, of which there are `count`. Raises ConfigError for several TPUs.

    Several slices of a TPU need a mesh of their own, which mlm does not build yet.
    """
    generation = name.partition("-")[0]
    if accelerator.tpu is None:
        topology = f"1x{count}x{accelerator.num_chips}" if accelerator.num_chips > 1 else f"1x1x{count}"
        options = (("topology", topology), ("target_config", describe_gpu(generation, accelerator)))
        memory = accelerator.memory * GPU_MEMORY_SHARE
        return Target("cuda", topology, options, memory, "jax_plugins.xla_cuda13", "gpu-plan")
    errors.require(count == 1, "--count", count, "1: a plan compiles for one slice of a TPU")
    topology, options = accelerator.tpu.topology, ()
    if generation == "v4":
        options = (("chip_config_name", "megacore"),)  # one device a chip
    elif accelerator.num_hosts == 1 and topology not in ("2x2", "2x2x1"):
        sizes = [int(size) for size in topology.split("x")]
        options = (("chips_per_host_bounds", (*sizes, *[1] * (3 - len(sizes)))),)
    return Target("tpu", f"{generation}:{topology}", options, TPU_MEMORY[generation], "libtpu", "tpu")


def is_installed(target: Target) -> bool:
    """Whether the compiler of a target is installed here."""
    parent = target.module.partition(".")[0]
    return bool(importlib.util.find_spec(parent)) and bool(importlib.util.find_spec(target.module))


@contextlib.contextmanager
def open_compiler(target: Target) -> Iterator[Callable[[config.Config, int], cost.StepCost]]:
    """(canonical config, vocabulary size) -> the cost of a step on the target's devices; compiles no program twice."""
    with contextlib.closing(subprocess_worker.SubprocessWorker("cpu")) as worker:
        yield functools.cache(lambda cfg, vocab_size: worker.call(compile_step, (target, cfg, vocab_size)))


def compile_step(arguments: tuple[Target, config.Config, int]) -> cost.StepCost:
    """The cost of a step for a target's devices, in the subprocess."""
    target, cfg, vocab_size = arguments
    os.environ.update(TPU_ENVIRONMENT)  # before the first call loads libtpu
    import jax

    jax.config.update("jax_enable_compilation_cache", False)  # it cannot load programs for devices that are not here
    try:
        return cost.compile_step(cfg, vocab_size, devices=get_devices(target))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return cost.StepCost(read_needed_memory(str(error)), {})


@functools.cache
def get_devices(target: Target) -> tuple[Any, ...]:
    """The described devices of a target."""
    from jax.experimental import topologies

    description = topologies.get_topology_desc(
        platform=target.platform, topology_name=target.topology, **dict(target.options)
    )
    return tuple(description.devices)


def read_needed_memory(message: str) -> float:
    """The bytes that libtpu says a program needs when it is too large; infinity if it does not say."""
    needed = re.search(r"Used ([\d.]+)([KMGT]) of", message)
    return float(needed[1]) * 2 ** (10 * (1 + "KMGT".index(needed[2]))) if needed else float("inf")


def describe_gpu(generation: str, accelerator: Accelerator) -> str:
    """A GPU's figures, as XLA's text of a GpuTargetConfig."""
    num_cores, bandwidth, l2_cache_size, (major, minor) = GPUS[generation]
    shared = SHARED_MEMORY[major]
    figures = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 * 2**10,
        "shared_memory_per_core": shared,
        "shared_memory_per_block_optin": shared - 2**10,
        "threads_per_core_limit": 2048,
        "core_count": num_cores,
        "fpus_per_core": 64 if major == 8 else 128,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "memory_bandwidth": int(bandwidth),
        "l2_cache_size": l2_cache_size,
        "clock_rate_ghz": accelerator.flops / (num_cores * (2048 if major == 8 else 4096) * 1e9),
        "device_memory_size": int(accelerator.memory),
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
    }
    lines = [f"  {name}: {value}" for name, value in figures.items()]
    capability = f"  cuda_compute_capability {{ major: {major} minor: {minor} }}"
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            capability,
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info { major: 9 minor: 8 }",
            "runtime_version { major: 13 }",
            f'device_description_str: "{generation}"',
        ]
    )
