"""Tensors by name in a safetensors file. Pickles are refused, since reading one can run code."""

import contextlib
import errno
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlm.base import errors, files

TENSOR_FILE = "model.safetensors"
PICKLE_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "tf_model.h5", "flax_model.msgpack")
SHARD_INDEX_FILE = f"{TENSOR_FILE}.index.json"
PICKLE_INDEX_FILE = "pytorch_model.bin.index.json"
SHARD_GLOB = "model-*-of-*.safetensors"
FLOAT_TYPES = ("F32", "F16", "BF16")  # the types that are read, as float32


@contextlib.contextmanager
def open_tensors(folder: Path) -> Iterator[dict[str, Any]]:
    """The open file of each tensor of a folder; raises ConfigError if one is missing, a pickle or damaged."""
    import safetensors

    path, opened = folder, []
    try:
        with contextlib.ExitStack() as stack:
            for path in list_tensor_files(folder):
                if not path.is_file():
                    raise OSError(errno.ENOENT, "no such regular file")
                opened.append(stack.enter_context(safetensors.safe_open(path, framework="numpy")))
            yield {name: file for file in opened for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise errors.ConfigError(
            f"{path}: cannot be read ({errors.describe_error(error)}); expected a complete safetensors file"
        ) from None


def list_tensor_files(folder: Path) -> list[Path]:
    """The tensor file of a folder, or its shards in order of name. Raises ConfigError if it has neither."""
    index = folder / SHARD_INDEX_FILE
    if (folder / TENSOR_FILE).exists():
        return [folder / TENSOR_FILE]
    if not index.exists():
        pickle = next((name for name in PICKLE_FILES if (folder / name).exists()), None)
        if pickle:
            remedy = (
                "mlm convert FOLDER OUT writes one"
                if pickle.startswith("pytorch_model")
                else "transformers writes one: AutoModelForMaskedLM.from_pretrained(FOLDER).save_pretrained(OUT)"
            )
            raise errors.ConfigError(f"{folder / pickle}: expected {TENSOR_FILE}; a pickle can run code; {remedy}")
        raise errors.ConfigError(f"{folder}: expected a folder with {TENSOR_FILE}")
    return list_shards(index)


def list_shards(index: Path) -> list[Path]:
    """The files that an index of shards names, in order of name."""
    weight_map: Any = files.read_json_object(index).get("weight_map")
    names = {*weight_map.values()} if isinstance(weight_map, dict) else set()
    is_valid = bool(names) and all(isinstance(name, str) and name == Path(name).name for name in names)
    errors.require(is_valid, f"{index}: weight_map", weight_map, "the name of a file of this folder for each tensor")
    return [index.parent / name for name in sorted(names)]


def check_tensor(where: str, file_by_name: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> None:
    """Raises ConfigError for a tensor of another shape or of no float type; does not read its values."""
    tensor = file_by_name[name].get_slice(name)
    expected = f"{' or '.join(FLOAT_TYPES)}; transformers' model.float().save_pretrained(FOLDER) writes F32"
    errors.require(tensor.get_dtype() in FLOAT_TYPES, f"{where}: {name}", tensor.get_dtype(), expected)
    actual = tuple(tensor.get_shape())
    errors.require(actual == shape, f"{where}: {name}, its shape", actual, f"{shape}")


def read_tensor(where: str, file_by_name: Mapping[str, Any], name: str) -> np.ndarray:
    """A tensor as float32. Raises ConfigError if a value is infinite or not a number."""
    tensor = np.asarray(file_by_name[name].get_tensor(name), np.float32)
    errors.require(bool(np.isfinite(tensor).all()), f"{where}: {name}", "NaN or infinite values", "finite numbers")
    return tensor


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes tensors as float32 into one file, with the metadata that transformers needs."""
    import safetensors.numpy

    arrays = {name: np.asarray(array, np.float32, order="C") for name, array in tensors.items()}
    with files.atomic_write(folder / TENSOR_FILE) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # by the user's umask; safetensors lets nobody else read its files
        safetensors.numpy.save_file(arrays, temporary, metadata={"format": "pt"})
        temporary.chmod(mode)
