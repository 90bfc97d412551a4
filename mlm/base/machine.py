"""This machine: its processor, and the cache folder for files that fit only this machine. Imports nothing slow."""

import contextlib
import os
import platform

CPUINFO_FIELDS = ("model name", "flags", "Features", "CPU implementer", "CPU part")  # x86 and ARM


def cache_folder(name: str) -> str:
    """The user's cache folder of this name; "" if the user has no home folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "mlm", name) if os.path.isabs(folder) else ""


def describe_processor() -> str:
    """The processor's name and instruction sets."""
    parts = [platform.machine()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():
                break  # end of the first core's fields
            name, _, value = line.partition(":")
            if name.strip() in CPUINFO_FIELDS:
                parts.append(value.strip())
    return "; ".join(parts)
