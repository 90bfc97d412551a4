"""This machine's cache folder. Imports nothing slow."""

import os
import platform
from pathlib import Path


def cache_folder(name: str) -> str:
    """The user's cache folder of this name; "" if the user has no home folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "mlm", name) if os.path.isabs(folder) else ""


def describe_processor() -> str:
    """The name of this machine's processor and the number of its cores that this process may use."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if os.path.exists("/proc/cpuinfo") else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{names[0] if names else platform.processor() or platform.machine()}, {count} cores"
