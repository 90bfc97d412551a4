"""Measurements of the hand-written kernels on this machine (kernel_benchmark.py), in a file of the user's cache.

The file's name is a digest of what they depend on: processor, cores, versions, flags of XLA and the measured sources.
"""

import contextlib
import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jaxlib

from mlm.base import config, files, machine
from mlm.training import kernel_benchmark

PACKAGE = Path(__file__).parents[1]
SOURCES = ("models", "objectives/token_prediction.py", "objectives/cross_entropy.py", "train/kernel_benchmark.py")


class AutotuneResult(NamedTuple):
    """The measurements for a config."""

    ratios: dict[str, float]  # by kernel: the plain formula's time over the kernel's
    seconds: float  # that measuring took just now; 0: all ratios were cached
    file: Path | None  # of the cache

    @property
    def disabled_kernels(self) -> str:
        """The slower kernels, as config.model.disabled_kernels."""
        return ",".join(kernel for kernel, ratio in self.ratios.items() if not kernel_benchmark.is_worthwhile(ratio))


def read_result(cfg: config.Config, folder: str, cores: int) -> AutotuneResult | None:
    """The cached measurements of all kernels that a config uses, on this many cores; None if one is missing.

    folder: of the cache, "" for none. Uses no device.
    """
    file, names = get_cache_file(folder, cores), kernel_benchmark.name_cases(cfg)
    ratios = read_ratios(file)
    if not set(names.values()) <= ratios.keys():
        return None
    return AutotuneResult({kernel: ratios[name] for kernel, name in names.items()}, 0.0, file)


def autotune(cfg: config.Config, folder: str, cores: int) -> AutotuneResult:
    """As `read_result`, but measures what is missing. Empty on a device other than a CPU."""
    if jax.default_backend() != "cpu":
        return AutotuneResult({}, 0.0, None)
    file, names, start = get_cache_file(folder, cores), kernel_benchmark.name_cases(cfg), time.perf_counter()
    cached_ratios = read_ratios(file)
    new_ratios = kernel_benchmark.measure_ratios(cfg.model, names, cached_ratios)
    if new_ratios and file:
        with contextlib.suppress(OSError):
            files.make_folder(file.parent)
            files.write_json_with_digest(
                file, {"machine": describe_machine(cores), "ratios": read_ratios(file) | new_ratios}
            )
    return AutotuneResult(
        {kernel: (cached_ratios | new_ratios)[name] for kernel, name in names.items()},
        time.perf_counter() - start if new_ratios else 0.0,
        file if file and file.exists() else None,
    )


def clear_cache(folder: str, cores: int) -> None:
    """Removes the measurements of this machine with this many cores."""
    file = get_cache_file(folder, cores)
    if file:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def read_ratios(file: Path | None) -> dict[str, float]:
    """Ratios by name; {} if there is no file, or it is damaged."""
    with contextlib.suppress(files.DamagedFile):
        return ((files.read_json_with_digest(file) if file else None) or {"ratios": {}})["ratios"]
    return {}


def get_cache_file(folder: str, cores: int) -> Path | None:
    """The file of this machine's measurements on this many cores; None where nothing is cached."""
    return Path(folder, f"{files.json_sha256(describe_machine(cores))[:16]}.json") if folder else None


def describe_machine(cores: int) -> dict:
    """All that the ratios depend on."""
    digest = hashlib.sha256()
    for source in SOURCES:
        path = PACKAGE / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{file.relative_to(PACKAGE)}\n".encode() + file.read_bytes())
    return {
        "processor": machine.describe_processor(),
        "cores": cores,
        "jaxlib": jaxlib.__version__,  # pyright: ignore[reportPrivateImportUsage]
        "flags": os.environ.get("XLA_FLAGS", ""),
        "compiler": shutil.which("c++"),
        "sources": digest.hexdigest(),
    }
