"""Writes a Hugging Face folder of pickled weights again with model.safetensors, which `mlm.open` reads.

    python -m mlm.cli.convert FOLDER OUT

To read a pickle can run code that is in it. torch (pip install -e .[bench]) reads it here with `weights_only`: tensors
and plain containers alone, all else is refused. config.json and the tokenizer's files are copied.
"""
import shutil
from pathlib import Path

from mlm.cli import command

PICKLED = "pytorch_model*.bin"


def read(path: Path) -> dict:
    """The tensors of a pickle by name, numpy; bfloat16 as float32. Raises ConfigError for what is anything else."""
    import torch

    from mlm.base import errors

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the library raises nothing more exact
        raise errors.ConfigError(f"{path}: expected tensors that torch reads with weights_only "
                                 f"({errors.first_line(error).partition('. ')[0]})") from None
    plain = isinstance(found, dict) and all(isinstance(name, str) and isinstance(one, torch.Tensor)
                                            for name, one in found.items())
    errors.require(plain, str(path), type(found).__name__, "tensors by name")
    return {name: _array(path, name, one) for name, one in found.items()}


def _array(path, name, tensor):
    """In the order of rows: safetensors writes another one's numbers as they lie in memory."""
    import numpy as np
    import torch

    from mlm.base import errors

    try:
        dense = tensor.detach()
        return np.asarray((dense.float() if dense.dtype == torch.bfloat16 else dense).numpy(force=True), order="C")
    except (RuntimeError, TypeError) as error:  # of sparse ones, quantized ones and other kinds
        raise errors.ConfigError(f"{path}: {name}: expected a tensor of plain numbers ({errors.first_line(error)})") from None


def main(argv):
    from mlm.base import errors, files
    from mlm.data.tokenizers import hub
    from mlm.models.hub import settings, tensors

    errors.require(len(argv) == 3, "convert", argv[1:], "two folders: python -m mlm.cli.convert FOLDER OUT")
    folder, out = Path(argv[1]), Path(argv[2])
    pickles = sorted(folder.glob(PICKLED))
    errors.require(bool(pickles), "FOLDER", str(folder), f"a folder with {PICKLED}")
    files.check_empty("OUT", str(out))
    try:
        import torch  # noqa: F401
    except ImportError:
        raise errors.ConfigError(f"{pickles[0]}: expected torch to read it with: pip install -e .[bench]") from None
    import safetensors.numpy

    command.listen()
    found = {name: x for path in pickles for name, x in read(path).items()}
    with files.atomic_folder(out) as aside:
        for name in (settings.NAME, hub.FILE, hub.WORDS, hub.KNOBS, hub.OLDER):
            if (folder / name).exists():
                shutil.copyfile(folder / name, aside / name)
        safetensors.numpy.save_file(found, aside / tensors.NAME, metadata={"format": "pt"})
    print(f"done: {out}: {len(found)} tensors")


if __name__ == "__main__":
    command.run(main)
