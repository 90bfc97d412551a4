"""mlm convert FOLDER OUT: converts the pickled weights of a Hugging Face folder to safetensors.

A pickle can run code when it is read. torch (the extra `convert`) reads it with `weights_only`, which allows tensors
and plain containers only. Files of settings and of the vocabulary are copied.
"""

import shutil
from pathlib import Path

from mlm.base import errors, extras, files
from mlm.cli import command

PICKLE_GLOB = "pytorch_model*.bin"
COPIED_SUFFIXES = (".json", ".txt", ".model")  # of config.json and the tokenizer's files


def read_pickle(path: Path) -> dict:
    """The tensors of a pickle by name, as NumPy arrays; bfloat16 becomes float32. Raises ConfigError for other data."""
    torch = extras.import_extra("torch", "convert", str(path))
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many classes
        reason = errors.first_line(error).partition(". ")[0]
        raise errors.ConfigError(f"{path}: expected tensors that torch reads with weights_only ({reason})") from None
    is_tensor_dict = isinstance(loaded, dict) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in loaded.items()
    )
    errors.require(is_tensor_dict, str(path), type(loaded).__name__, "tensors by name")
    arrays = {}
    for name, tensor in loaded.items():
        # Others are sparse or quantized.
        with errors.explain(f"{path}: {name}", "a dense tensor of numbers", RuntimeError, TypeError):
            dense = tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()
            # C-contiguous: safetensors writes the memory of an array as it is, whatever its strides.
            arrays[name] = dense.contiguous().numpy(force=True)
    return arrays


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(
        prog="mlm convert",
        description="Convert the pickled weights of a Hugging Face folder to model.safetensors, which mlm.load reads.",
    )
    parser.add_argument("folder", metavar="FOLDER", help=f"Hugging Face folder with {PICKLE_GLOB}")
    parser.add_argument("out", metavar="OUT", help="new folder to write")
    return parser


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    args = make_parser().parse_words(words[1:])
    from mlm.models.hub import tensors

    folder, out = Path(args.folder), Path(args.out)
    pickles, index = sorted(folder.glob(PICKLE_GLOB)), folder / tensors.PICKLE_INDEX_FILE
    errors.require(bool(pickles), "FOLDER", str(folder), f"a folder with {PICKLE_GLOB}")
    if index.exists() or pickles[0].name != tensors.PICKLE_FILES[0]:
        pickles = tensors.list_shards(index)
        missing = next((path.name for path in pickles if not path.is_file()), None)
        errors.require(missing is None, f"{index}: weight_map", missing, "a file of this folder")
    files.check_empty_folder("OUT", str(out))
    extras.import_extra("torch", "convert", str(pickles[0]))
    import safetensors.numpy

    command.raise_on_interrupt()
    arrays = {name: array for path in pickles for name, array in read_pickle(path).items()}
    if index.exists():
        missing = min(files.read_json_object(index)["weight_map"].keys() - arrays.keys(), default=None)
        errors.require(missing is None, f"{index}: weight_map", missing, "a tensor of these files")
    with files.atomic_folder(out) as temporary:
        for path in folder.iterdir():
            if path.is_file() and path.suffix in COPIED_SUFFIXES and not path.name.endswith(".index.json"):
                shutil.copyfile(path, temporary / path.name)
        safetensors.numpy.save_file(arrays, temporary / tensors.TENSOR_FILE, metadata={"format": "pt"})
    print(f"done: {out}: {len(arrays)} tensors")
