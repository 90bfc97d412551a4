"""recurrence.cc as a library: made by the machine's compiler, kept for its processor and sources, told to XLA."""
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
COMMAND = ("c++", "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
           "-shared", "-fPIC", "-w")


@functools.cache
def target() -> str | None:
    """The name by which XLA calls it; None where it cannot be made."""
    folder = machine.cache("native")
    if not folder:
        return None
    try:
        content = b"".join(source.read_bytes() for source in SOURCES)
        made_of = [content, " ".join(COMMAND).encode(), jax.__version__.encode(), machine.processor().encode()]
        name = "mlm_recurrence_" + hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
        function = loaded(Path(folder, f"{name}.so"))
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error).encode()
        logging.info("recurrent nets go without mlm/models/native: %s", said.decode(errors="replace").strip()[-300:])
        return None
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
    return name


def loaded(path: Path):
    """The library's function; made where there is none, or one that cannot be loaded."""
    try:
        return ctypes.CDLL(str(path)).Recurrence
    except (OSError, AttributeError):
        make(path)
    return ctypes.CDLL(str(path)).Recurrence


def make(path: Path) -> None:
    """Raises OSError or subprocess.SubprocessError where there is no compiler, or none that can."""
    logging.info("compiling mlm/models/native for this machine, once, in some seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        subprocess.run([*COMMAND, f"-I{jax.ffi.include_dir()}", "-o", made, SOURCES[0]], check=True,
                       capture_output=True, timeout=300)
        made.replace(path)
