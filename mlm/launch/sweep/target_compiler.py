"""The compilers of TPUs and GPUs, for devices that this machine does not have.

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
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mlm.base import files
from mlm.base.types import StaticConfig
from mlm.launch.cluster.accelerators import Accelerator
from mlm.launch.sweep import subprocess_worker
from mlm.training.compilation import cost, data_movement

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
# Streaming multiprocessors, bytes of L2 cache, major and minor compute capability: NVIDIA's datasheets and its CUDA
# programming guide, table of technical specifications.
GPUS = {
    "A100": (108, 40 * 2**20, (8, 0)),
    "H100": (132, 50 * 2**20, (9, 0)),
    "H200": (132, 50 * 2**20, (9, 0)),
    "B200": (148, 126 * 2**20, (10, 0)),
}
COMPILER_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "nvidia-cuda-nvcc")  # their versions, and
COMPILER_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")  # these flags of the environment, change programs
READER_VERSION = 5  # of what is read from a compiled program; a saved cost of another is not taken
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
    return Target("tpu", f"{generation}:{topology}", options, TPU_MEMORY[generation], "libtpu", "tpu")


def is_installed(target: Target) -> bool:
    """Whether the compiler of a target is installed here."""
    parent = target.module.partition(".")[0]
    return bool(importlib.util.find_spec(parent)) and bool(importlib.util.find_spec(target.module))


@contextlib.contextmanager
def open_compiler(target: Target) -> Iterator[Callable[[StaticConfig, int], cost.StepCost]]:
    """(static config, vocabulary size) -> the cost of a step on the target's devices; compiles no program twice.

    A compiler that ends its process, as libtpu may, ends the plan of that step alone.
    """
    workers: list[subprocess_worker.SubprocessWorker] = []

    @functools.cache
    def call(cfg: StaticConfig, vocab_size: int) -> cost.StepCost:
        if not workers:
            workers.append(subprocess_worker.SubprocessWorker("cpu"))
        try:
            return workers[0].call(compile_step, target, cfg, vocab_size)
        except subprocess_worker.WorkerEnded:
            workers.pop().close()
            raise

    try:
        yield call
    finally:
        for worker in workers:
            worker.close()


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
            names = data_movement.Collective._fields
            transfers = tuple(
                data_movement.Collective(**dict(zip(names, one, strict=True)))._replace(group=tuple(one[-1]))
                for one in saved.pop("transfers")
            )
            return cost.StepCost(**saved)._replace(transfers=transfers)
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
    num_cores, l2_cache_size, (major, minor) = GPUS[generation]
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
        "memory_bandwidth": int(accelerator.bandwidth),
        "l2_cache_size": l2_cache_size,
        "clock_rate_ghz": accelerator.flops / (num_cores * (2048 if major == 8 else 4096) * 1e9),
        "device_memory_size": int(accelerator.memory),
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
    }
    lines = "\n".join(f"  {name}: {value}" for name, value in figures.items())
    return f"""\
gpu_device_info {{
{lines}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 13 }}
device_description_str: "{generation}\""""
