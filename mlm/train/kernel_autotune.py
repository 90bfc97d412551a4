"""What this machine measured of the hand-written paths (calibrate.py), kept in a file of the user's cache.

The file is known by what the measure hangs on: processor, cores, versions, flags of XLA and the measured sources.
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
from mlm.train import kernel_benchmark

MLM = Path(__file__).parents[1]
MODULES = ("models", "objectives/tokens.py", "objectives/cross_entropy.py", "train/calibrate.py")


class Found(NamedTuple):
    """What was measured for a config."""

    ratios: dict[str, float]   # by path: how many times its time the plain formula takes
    seconds: float             # that measuring took now; 0: all of it was kept
    file: Path | None          # that keeps it

    @property
    def plain(self) -> str:
        """As config.model.disabled_kernels."""
        return ",".join(path for path, ratio in self.ratios.items() if not kernel_benchmark.worth(ratio))


def kept(cfg: config.Config, folder: str, cores: int) -> Found | None:
    """What was measured of all that a config comes by, on this machine with so many cores, else None.

    folder: where it is kept, "" if nowhere. Touches no device.
    """
    file, names = place(folder, cores), kernel_benchmark.names(cfg)
    ratios = read(file)
    if not set(names.values()) <= ratios.keys():
        return None
    return Found({path: ratios[name] for path, name in names.items()}, 0.0, file)


def measure(cfg: config.Config, folder: str, cores: int) -> Found:
    """As `kept`, after measuring what is lacking; nothing on a device that is no CPU."""
    if jax.default_backend() != "cpu":
        return Found({}, 0.0, None)
    file, names, began = place(folder, cores), kernel_benchmark.names(cfg), time.perf_counter()
    known = read(file)
    new = kernel_benchmark.measured(cfg.model, names, known)
    if new and file:
        with contextlib.suppress(OSError):
            files.make_folder(file.parent)
            files.write_sealed(file, {"machine": here(cores), "ratios": read(file) | new})
    return Found({path: (known | new)[name] for path, name in names.items()},
                 time.perf_counter() - began if new else 0.0, file if file and file.exists() else None)


def forget(folder: str, cores: int) -> None:
    """All that is kept of this machine with so many cores is to be measured again."""
    file = place(folder, cores)
    if file:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def read(file: Path | None) -> dict[str, float]:
    """Ratios by name; none of a file that is not there, or damaged."""
    with contextlib.suppress(files.Damaged):
        return ((files.read_sealed(file) if file else None) or {"ratios": {}})["ratios"]
    return {}


def place(folder: str, cores: int) -> Path | None:
    return Path(folder, f"{files.sha256(here(cores))[:16]}.json") if folder else None


def here(cores: int) -> dict:
    """All that the ratios hang on."""
    digest = hashlib.sha256()
    for module in MODULES:
        path = MLM / module
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{file.relative_to(MLM)}\n".encode() + file.read_bytes())
    return {"processor": machine.processor(), "cores": cores, "jaxlib": jaxlib.__version__,
            "flags": os.environ.get("XLA_FLAGS", ""), "compiler": shutil.which("c++"), "sources": digest.hexdigest()}
