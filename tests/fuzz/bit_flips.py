"""Flips bits in the files of a finished and of a half-done run, one at a time, and checks what follows.

    python -m tests.fuzz.bit_flips [--flips=200] [--seed=0]

Each flip changes a random file of a copy. The run is then continued and reported, and its model is loaded. Either a
line names the damage, or all outcomes are bit for bit the same, parameters included; anything else is wrong.
"""

import argparse
import collections
import contextlib
import io
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
from absl import logging as absl_logging

from mlm.base import config, fields, files
from mlm.report import series
from mlm.training.run import loop, preemption, resolution, trained_run
from mlm.training.run.directory import RunDirectory

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
    loop.train(make_config(folder, "done"))
    original = preemption.Preemption.is_requested
    preemption.Preemption.is_requested = lambda self, checkpoints, step: step == STOP_STEP
    try:
        with contextlib.suppress(preemption.RunStopped):
            loop.train(make_config(folder, "half"))
    finally:
        preemption.Preemption.is_requested = original


def flip_bit(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def read_outcome(workdir: str) -> dict:
    """All results of a finished run, without times."""
    run = RunDirectory(workdir).read_finished()
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


class WarningRecorder(logging.Handler):
    """Records the logged warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def check_damaged_run(
    cfg: config.Config, name: str, expected: dict, expected_params: list[np.ndarray], warnings: WarningRecorder
) -> str:
    """The verdict on a run whose file `name` is damaged; metrics.jsonl of a run that is not done may say anything."""
    warnings.lines.clear()
    files.warn_once.cache_clear()
    refused = False
    for use in (lambda: loop.train(cfg), lambda: read_outcome(cfg.workdir), lambda: load_parameters(cfg.workdir)):
        try:
            result = use()
        except files.DamagedFile:
            refused = True
            continue
        if isinstance(result, list):
            same = all(map(np.array_equal, result, expected_params))
        elif "held_out" in result and "history" in result:
            same = result == expected or (
                name == "metrics.jsonl" and result | {"history": []} == expected | {"history": []}
            )
        else:
            same = result["evaluation"] == expected["evaluation"]
        if not same:
            return "WRONG"
    if refused:
        return "named, and refused where it is needed"
    return (
        "named, and repaired or replaced by an earlier file"
        if any("damaged" in line for line in warnings.lines)
        else "not named: all outcomes are bit for bit the same"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.bit_flips")
    parser.add_argument("--flips", type=int, default=200, help="number of flips")
    parser.add_argument("--seed", type=int, default=0, help="of the positions")
    options = parser.parse_args()
    rng, counts = random.Random(options.seed), collections.Counter()
    warnings = WarningRecorder()
    absl_logging.get_absl_logger().addHandler(warnings)
    absl_logging.use_absl_handler()
    absl_logging.get_absl_handler().setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(temporary)
        train_runs(folder)
        expected, expected_params = read_outcome(folder / "done"), load_parameters(str(folder / "done"))
        paths = [
            (name, path.relative_to(folder / name))
            for name in ("done", "half")
            for path in sorted((folder / name).rglob("*"))
            if path.is_file() and path.stat().st_size
        ]
        for i in range(options.flips):
            name, path = paths[i] if i < len(paths) else rng.choice(paths)
            cfg = fields.override(make_config(folder, name), {"workdir": str(folder / f"flip{i}")})
            shutil.copytree(folder / name, cfg.workdir)
            damaged = Path(cfg.workdir, path)
            flip_bit(damaged, rng.randrange(damaged.stat().st_size), rng.randrange(8))
            verdict = check_damaged_run(cfg, path.name, expected, expected_params, warnings)
            counts[name, path.parts[0], verdict] += 1
            shutil.rmtree(cfg.workdir)
    totals = collections.Counter()
    for (name, kind, verdict), count in sorted(counts.items()):
        print(f"{count:4d}  {name:4s}  {kind:16s}  {verdict}")
        totals[verdict] += count
    print(
        f"{options.flips} flips (seed {options.seed}) over {len(paths)} files: "
        + "; ".join(f"{count} {verdict}" for verdict, count in sorted(totals.items()))
    )
    sys.exit(bool(totals["WRONG"]))


if __name__ == "__main__":
    main()
