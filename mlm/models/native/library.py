"""recurrence.cc as a library: made by the machine's compiler, kept for its processor and sources, told to XLA."""
import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

import jax

SOURCES = [Path(__file__).with_name(name) for name in ("recurrence.cc", "product.h")]
COMMAND = (os.environ.get("CXX", "c++"), "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
           "-shared", "-fPIC", "-w")


@functools.cache
def target() -> str | None:
    """The name by which XLA calls it; None where it cannot be made."""
    content = b"".join(source.read_bytes() for source in SOURCES)
    made_of = [content, " ".join(COMMAND).encode(), jax.__version__.encode(), processor().encode()]
    name = "mlm_recurrence_" + hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
    try:
        path = folder() / f"{name}.so"
        if not path.exists():
            make(path)
        function = ctypes.CDLL(str(path)).Recurrence
    except (OSError, AttributeError, RuntimeError, subprocess.SubprocessError):
        return None
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
    return name


def make(path: Path) -> None:
    """Raises OSError or subprocess.SubprocessError where there is no compiler, or none that can."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        subprocess.run([*COMMAND, f"-I{jax.ffi.include_dir()}", "-o", made, SOURCES[0]], check=True,
                       capture_output=True, timeout=300)
        made.replace(path)


def folder() -> Path:
    """Beside compiled programs (launch/environ.py). Raises RuntimeError where there is no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlm" / "native"


def processor() -> str:
    """What -march=native asks."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor()
