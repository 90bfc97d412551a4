"""Flips bits in the files of a finished and of a half-done run, one at a time, and checks what follows.

Each flip changes a random file of a copy. The run is then continued and reported, and its model is loaded. Either a
line names the damage, or all outcomes are bit for bit the same, parameters included; anything else is wrong.
"""

import contextlib
import random
import shutil
from pathlib import Path

import jax
import numpy as np

from mlm.base import config, errors, fields, files, warnings_
from mlm.report import series
from mlm.training.run import hooks, resolution, trained_run
from mlm.training.run.directory import RunDirectory
from tests.small import train_config

SMALL = {
    "model.num_layers": 1,
    "model.width": 16,
    "model.mlp_dim": 24,
    "model.num_heads": 2,
    "pack.seq_len": 32,
    "data.language.train_documents": 300,
    "data.language.validation_documents": 80,
    "train.steps": 6,
    "train.batch_size": 8,
    "train.checkpoint_every": 2,
    "train.log_every": 2,
    "eval.batch_size": 8,
}
STOP_STEP = 4  # of the half-done run


def make_config(folder: Path, name: str) -> config.Config:
    return resolution.resolve(
        config.Config(), SMALL | {"data.cache_dir": str(folder / "cache"), "workdir": str(folder / name)}
    )


def train_runs(folder: Path) -> None:
    """Trains the run "done" to its end, and "half" to STOP_STEP."""
    train_config(make_config(folder, "done"))
    original = hooks.Preemption.is_requested
    hooks.Preemption.is_requested = lambda self, checkpoints, step: step == STOP_STEP
    try:
        with contextlib.suppress(errors.RunStopped):
            train_config(make_config(folder, "half"))
    finally:
        hooks.Preemption.is_requested = original


def flip_bit(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def read_outcome(workdir: str) -> dict:
    """All results of a finished run, without times. Raises DamagedFile for one that training refused to finish."""
    run = RunDirectory(workdir).read_finished()
    if run is None:
        raise files.DamagedFile(f"{workdir} has no result")
    history = [
        {name: value for name, value in record.items() if "second" not in name}
        for record in series.merge_by_step(run["history"]).values()
    ]
    return {
        "evaluation": run["evaluation"],
        "totals": [run[name] for name in ("tokens", "predictions")],
        "held_out": {name: column.tolist() for name, column in run["held_out"].items()},
        "history": history,
    }


def load_parameters(workdir: str) -> list[np.ndarray]:
    return jax.tree.leaves(jax.device_get(trained_run.load(workdir, {}).state.params))


def is_named_or_harmless(cfg: config.Config, name: str, expected: dict, expected_params: list[np.ndarray]) -> bool:
    """Whether each use of a run whose file `name` is damaged ends in a line of error or gives what it gave before.

    metrics.jsonl of a run that is not done may say anything.
    """
    warnings_.warn_once.cache_clear()
    for use in (lambda: train_config(cfg), lambda: read_outcome(cfg.workdir), lambda: load_parameters(cfg.workdir)):
        try:
            result = use()
        except files.DamagedFile:
            continue
        if isinstance(result, list):
            same = all(map(np.array_equal, result, expected_params))
        elif "totals" in result:  # of `read_outcome`
            may_differ = {"history": []} if name == "metrics.jsonl" else {}
            same = result | may_differ == expected | may_differ
        else:
            same = result["evaluation"] == expected["evaluation"]
        if not same:
            return False
    return True


def flip_and_check(folder: Path, num_flips: int, rng: random.Random) -> list[str]:
    """Trains both runs in a folder and flips so many bits, one in each file first; returns the damage that is wrong."""
    train_runs(folder)
    expected, expected_params = read_outcome(folder / "done"), load_parameters(str(folder / "done"))
    paths = [
        (name, path.relative_to(folder / name))
        for name in ("done", "half")
        for path in sorted((folder / name).rglob("*"))
        if path.is_file() and path.stat().st_size
    ]
    wrong = []
    for number in range(num_flips):
        name, path = paths[number] if number < len(paths) else rng.choice(paths)
        cfg = fields.override(make_config(folder, name), {"workdir": str(folder / f"flip{number}")})
        shutil.copytree(folder / name, cfg.workdir)
        damaged = Path(cfg.workdir, path)
        position, bit = rng.randrange(damaged.stat().st_size), rng.randrange(8)
        flip_bit(damaged, position, bit)
        if not is_named_or_harmless(cfg, path.name, expected, expected_params):
            wrong.append(f"{name}/{path}: bit {bit} of byte {position}")
        shutil.rmtree(cfg.workdir)
    return wrong
