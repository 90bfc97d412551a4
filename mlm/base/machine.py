"""This machine: what its processor can do, and where what is made for it alone is kept. Imports nothing slow."""
import contextlib
import os
import platform

FLAGS = ("model name", "flags", "Features", "CPU implementer", "CPU part")  # of /proc/cpuinfo, on x86 and ARM


def cache(name: str) -> str:
    """A folder of the user's for what one machine makes once; "" where there is no home."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "mlm", name) if os.path.isabs(folder) else ""


def processor() -> str:
    """Its name and what it can do."""
    found = [platform.machine()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():
                break  # the first core's end
            name, _, value = line.partition(":")
            if name.strip() in FLAGS:
                found.append(value.strip())
    return "; ".join(found)
