"""This machine's cache folder and processor, and the peaks of accelerators. Imports nothing slow."""

import os
import platform
import tomllib
from pathlib import Path

CHIPS = tomllib.loads(Path(__file__).with_name("chips.toml").read_text(encoding="utf-8"))  # accelerators


def cache_folder(name: str) -> str:
    """The user's cache folder of this name; "" if the user has no home folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "mlm", name) if os.path.isabs(folder) else ""


def name_processor() -> str:
    """The name of this machine's processor."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if os.path.exists("/proc/cpuinfo") else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def list_cores() -> list[int]:
    """The cores that this process may use, as the system numbers them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def find_peak_flops(device_kind: str) -> float | None:
    """The dense bfloat16 FLOP/s of a device, by its device_kind; None for a device without an entry, such as a CPU."""
    fitting = [chip for chip in CHIPS.values() if device_kind.startswith(chip["device_kind"])]
    return max(fitting, key=lambda chip: len(chip["device_kind"]))["flops"] if fitting else None
