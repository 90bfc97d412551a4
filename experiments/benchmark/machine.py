"""A description of the machine, and the environment variables of both sides."""

import importlib.metadata
import os
import platform
import time
from pathlib import Path

from mlm.cli import entry

ENVIRONMENT = entry.ALLOCATOR | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # on a GPU, PyTorch needs room beside JAX
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "transformers", "tokenizers", "datasets")
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # they determine the speed of matrix products


def describe_machine() -> dict:
    """Devices, processor, memory, load and versions."""
    import jax

    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in reversed(info.splitlines()) if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "processor": fields.get("model name", platform.processor()),
        "cores": cores,
        "instructions": [flag for flag in CPU_FLAGS if flag in fields.get("flags", "").split()],
        "memory_gib": round(memory / 2**30),
        "load_average": round(os.getloadavg()[0], 2),
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        "python": platform.python_version(),
        "versions": versions,
    }
