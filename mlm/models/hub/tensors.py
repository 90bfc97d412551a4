"""Tensors by name in a file of the safetensors library, which checks its header. Never a pickle, which can run code."""
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from mlm.base import errors, files

NAME = "model.safetensors"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "tf_model.h5", "flax_model.msgpack")
SHARDS = f"{NAME}.index.json"
FLOATS = ("F32", "F16")       # what is read; 16 bits are widened


@contextlib.contextmanager
def reading(folder: Path) -> Iterator:
    """The tensors of a folder, none of them read yet: keys(), get_slice(name).get_shape(), get_tensor(name).

    Raises ConfigError where there is no file, a pickle instead, or one that is not whole.
    """
    import safetensors

    path = folder / NAME
    if not path.exists():
        other = next((name for name in PICKLES if (folder / name).exists()), None)
        if other:
            way = ("python -m mlm.cli.convert FOLDER OUT writes one" if other.startswith("pytorch_model") else
                   "transformers writes one: AutoModelForMaskedLM.from_pretrained(FOLDER).save_pretrained(OUT)")
            raise errors.ConfigError(f"{folder / other}: expected {NAME}, since to read this file could run code that "
                                     f"is in it; {way}")
        sharded = "; it has shards, save it as one file (max_shard_size)" if (folder / SHARDS).exists() else ""
        raise errors.ConfigError(f"{folder}: expected a folder with {NAME}{sharded}")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise errors.ConfigError(f"{path}: cannot be read ({files.brief(error)}); expected a whole file of the "
                                 "safetensors library") from None


def check(where: str, file, name: str, shape: tuple[int, ...] | None = None) -> None:
    """Raises ConfigError for a tensor that is not of this shape, or not of floating point; reads nothing of it."""
    found = file.get_slice(name)
    errors.require(found.get_dtype() in FLOATS, f"{where}: {name}", found.get_dtype(),
                  f"{' or '.join(FLOATS)}; transformers' model.float().save_pretrained(FOLDER) writes F32")
    have = tuple(found.get_shape())
    errors.require(shape is None or have == shape, f"{where}: {name}, its shape", have, f"{shape}")


def read(file, name: str) -> np.ndarray:
    """float32."""
    return np.asarray(file.get_tensor(name), np.float32)


def write(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes float32 tensors as one file, marked as transformers asks for it."""
    import safetensors.numpy

    whole = {name: np.asarray(array, np.float32, order="C") for name, array in tensors.items()}
    with files.atomic_write(folder / NAME) as aside:
        safetensors.numpy.save_file(whole, aside, metadata={"format": "pt"})
