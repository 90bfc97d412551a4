"""Tensors by name in a safetensors file. Pickles are refused, since reading one can run code."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from mlm.base import errors, files

TENSOR_FILE = "model.safetensors"
PICKLE_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "tf_model.h5", "flax_model.msgpack")
SHARD_INDEX_FILE = f"{TENSOR_FILE}.index.json"
FLOAT_TYPES = ("F32", "F16")  # the types that are read, as float32


@contextlib.contextmanager
def open_tensors(folder: Path) -> Iterator:
    """The open tensor file of a folder, with keys(), get_slice(name).get_shape() and get_tensor(name).

    Raises ConfigError if the file is missing, a pickle or damaged.
    """
    import safetensors

    path = folder / TENSOR_FILE
    if not path.exists():
        pickle = next((name for name in PICKLE_FILES if (folder / name).exists()), None)
        if pickle:
            remedy = (
                "mlm convert FOLDER OUT writes one"
                if pickle.startswith("pytorch_model")
                else "transformers writes one: AutoModelForMaskedLM.from_pretrained(FOLDER).save_pretrained(OUT)"
            )
            raise errors.ConfigError(
                f"{folder / pickle}: expected {TENSOR_FILE}, since reading a pickle can run code; {remedy}"
            )
        sharded = (
            "; it has shards, save it as one file (max_shard_size)" if (folder / SHARD_INDEX_FILE).exists() else ""
        )
        raise errors.ConfigError(f"{folder}: expected a folder with {TENSOR_FILE}{sharded}")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise errors.ConfigError(
            f"{path}: cannot be read ({files.describe_error(error)}); expected a complete safetensors file"
        ) from None


def check_tensor(where: str, file, name: str, shape: tuple[int, ...] | None = None) -> None:
    """Raises ConfigError for a tensor of another shape or of no float type; does not read its values."""
    tensor = file.get_slice(name)
    errors.require(
        tensor.get_dtype() in FLOAT_TYPES,
        f"{where}: {name}",
        tensor.get_dtype(),
        f"{' or '.join(FLOAT_TYPES)}; transformers' model.float().save_pretrained(FOLDER) writes F32",
    )
    actual = tuple(tensor.get_shape())
    errors.require(shape is None or actual == shape, f"{where}: {name}, its shape", actual, f"{shape}")


def read_tensor(file, name: str) -> np.ndarray:
    """A tensor as float32."""
    return np.asarray(file.get_tensor(name), np.float32)


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes tensors as float32 into one file, with the metadata that transformers needs."""
    import safetensors.numpy

    arrays = {name: np.asarray(array, np.float32, order="C") for name, array in tensors.items()}
    with files.atomic_write(folder / TENSOR_FILE) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # by the user's umask; safetensors lets nobody else read its files
        safetensors.numpy.save_file(arrays, temporary, metadata={"format": "pt"})
        temporary.chmod(mode)
