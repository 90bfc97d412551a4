"""This machine's cache folder and processor, and the peaks of accelerators. Imports nothing slow."""

import os
import platform
from pathlib import Path

# Dense bfloat16 FLOP/s of a device as JAX counts them, by generation; a tpu7x chip is two devices. The sources are
# named in mlm/launch/cluster/accelerators.toml.
PEAK_FLOPS = {
    "v4": 275e12,
    "v5e": 197e12,
    "v5p": 459e12,
    "v6e": 918e12,
    "tpu7x": 2307e12 / 2,
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
}
# A generation by what its device_kind begins with, a longer beginning first.
DEVICE_KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v6 lite": "v6e",
    "TPU7x": "tpu7x",
    "NVIDIA A100-SXM": "A100",
    "NVIDIA H100 80GB HBM3": "H100",  # the SXM module; others are slower
    "NVIDIA H200": "H200",
    "NVIDIA B200": "B200",
}


def cache_folder(name: str) -> str:
    """The user's cache folder of this name; "" if the user has no home folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "mlm", name) if os.path.isabs(folder) else ""


def name_processor() -> str:
    """The name of this machine's processor."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if os.path.exists("/proc/cpuinfo") else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def find_peak_flops(device_kind: str) -> float | None:
    """The dense bfloat16 FLOP/s of a device, by its device_kind; None for a device without an entry, such as a CPU."""
    kind = next((kind for kind in DEVICE_KINDS if device_kind.startswith(kind)), None)
    return PEAK_FLOPS[DEVICE_KINDS[kind]] if kind else None
