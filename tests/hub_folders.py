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


def make_head_folder(made: dict[str, Path], top: Path, case: str, drop=(), **settings) -> Path:
    """The folder of a case of fixtures/hub_heads.py below `top`, without some tensors, its config.json changed."""
    folder = top / case
    folder.mkdir(parents=True)
    for file in made[heads.CASES[case][0]].glob("*token*"):
        shutil.copy(file, folder)
    said = json.loads(load_head_outputs()[f"{case}/config.json"].tobytes()) | settings
    (folder / "config.json").write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    shapes = json.loads(load_head_outputs()[f"{case}/shapes"].tobytes())
    save_file(
        {name: theirs.draw_weight(name, shape) for name, shape in shapes.items() if name not in drop},
        folder / "model.safetensors",
    )
    return folder


def same_tensors(one: Path, other: Path) -> None:
    """Asserts that two folders hold the same tensors by the same names, to the bit."""
    had, has = (load((folder / "model.safetensors").read_bytes()) for folder in (one, other))
    assert had.keys() == has.keys()
    for name, value in had.items():
        np.testing.assert_array_equal(has[name], value, name)
