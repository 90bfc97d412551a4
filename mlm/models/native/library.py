"""recurrence.cc as a shared library: compiled on this machine, cached by processor and sources, registered with XLA."""

import ctypes
import functools
import hashlib
import subprocess
import tempfile
from pathlib import Path

import jax
from absl import logging

from mlm.base import machine

SOURCES = [Path(__file__).with_name(name) for name in ("recurrence.cc", "product.h")]
COMPILER_COMMAND = (
    "c++",
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
    "-w",
)


@functools.cache
def get_ffi_target() -> str | None:
    """The name of the XLA FFI target of recurrence.cc; None if it cannot be compiled."""
    folder = machine.cache_folder("native")
    if not folder:
        return None
    try:
        sources = b"".join(source.read_bytes() for source in SOURCES)
        key_parts = [
            sources,
            " ".join(COMPILER_COMMAND).encode(),
            jax.__version__.encode(),
            machine.describe_processor().encode(),
        ]
        name = "mlm_recurrence_" + hashlib.sha256(b"\0".join(key_parts)).hexdigest()[:16]
        function = load_function(Path(folder, f"{name}.so"))
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error).encode()
        logging.info(
            "recurrent models run without mlm/models/native: %s", output.decode(errors="replace").strip()[-300:]
        )
        return None
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
    return name


def load_function(path: Path):
    """The function of the library, which is compiled if it is missing or cannot be loaded."""
    try:
        return ctypes.CDLL(str(path)).Recurrence
    except (OSError, AttributeError):
        compile_library(path)
    return ctypes.CDLL(str(path)).Recurrence


def compile_library(path: Path) -> None:
    """Compiles the library. Raises OSError or subprocess.SubprocessError if there is no compiler, or it fails."""
    logging.info("compiling mlm/models/native for this machine, which takes some seconds and happens once")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled = Path(folder) / path.name
        subprocess.run(
            [*COMPILER_COMMAND, f"-I{jax.ffi.include_dir()}", "-o", compiled, SOURCES[0]],
            check=True,
            capture_output=True,
            timeout=300,
        )
        compiled.replace(path)
