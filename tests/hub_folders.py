"""The folders of fixtures/hub.npz, and changes of them, for the tests to share."""

import functools
import json
import shutil
from pathlib import Path

import numpy as np
from fixtures import hub as theirs
from fixtures import hub_heads as heads
from safetensors.numpy import load, save_file
from small import load_arrays

load_outputs = functools.partial(load_arrays, theirs.PATH)


def make_folders(top: Path) -> dict[str, Path]:
    """Writes the folder of each name below `top`."""
    for key, content in load_outputs().items():
        name, _, file = key.partition("/")
        if file:
            (top / name).mkdir(exist_ok=True)
            (top / name / file).write_bytes(content.tobytes())
    return {name: top / name for name in theirs.FOLDERS}


def change_folder(made: dict[str, Path], tmp_path: Path, name: str = "bert", drop=(), **settings) -> Path:
    """A copy of a folder without some files, its config.json changed; None: without that field."""
    folder = tmp_path / "changed"
    shutil.copytree(made[name], folder)
    said = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    for file in drop:
        (folder / file).unlink()
    return folder


def change_tensors(folder: Path, change) -> Path:
    """The folder with other tensors: change(name, value) gives pairs of names and values."""
    path = folder / "model.safetensors"
    old = load(path.read_bytes())
    save_file(dict(pair for name, value in old.items() for pair in change(name, value)), path)
    return folder


load_head_outputs = functools.partial(load_arrays, heads.PATH)


def write_case(
    top: Path, outputs: dict, case: str, tokenizer: Path | None, draw=theirs.draw_weight, drop=(), **settings
) -> Path:
    """The folder below `top` of a case that a file of fixtures/ keeps, with the tokenizer of another folder.

    draw: (name, shape) -> a tensor. drop: the tensors that it lacks. settings: of its config.json, None: without it.
    """
    folder = top / case
    folder.mkdir(parents=True)
    for file in tokenizer.glob("*token*") if tokenizer else ():
        shutil.copy(file, folder)
    said = json.loads(outputs[f"{case}/config.json"].tobytes()) | settings
    (folder / "config.json").write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    shapes = json.loads(outputs[f"{case}/shapes"].tobytes())
    tensors = {name: draw(name, shape) for name, shape in shapes.items() if name not in drop}
    save_file(tensors, folder / "model.safetensors")
    return folder


def make_head_folder(made: dict[str, Path], top: Path, case: str, drop=(), **settings) -> Path:
    """The folder of a case of fixtures/hub_heads.py."""
    return write_case(top, load_head_outputs(), case, made[heads.CASES[case][0]], drop=drop, **settings)


def same_tensors(one: Path, other: Path) -> None:
    """Asserts that two folders hold the same tensors by the same names, to the bit."""
    had, has = (load((folder / "model.safetensors").read_bytes()) for folder in (one, other))
    assert had.keys() == has.keys()
    for name, value in had.items():
        np.testing.assert_array_equal(has[name], value, name)
