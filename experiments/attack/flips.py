"""Flips bits in the files of a finished and of a half-done run, one at a time, and sees what becomes of each.

    python -m experiments.attack.flips [--flips=200] [--seed=0]

Each flip is of a copy, in a file of chance. The run is taken up again, reported, and its model opened: either a line
names what is damaged, or all that comes out is bit for bit what it was, parameters included; anything else is wrong.
"""
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
from absl import app, flags
from absl import logging as absl_logging

from mlm.base import config, fields, files
from mlm.report import series
from mlm.train import resolution
from mlm.train.run import directory, loop, shutdown, trained_run

SMALL = {"model.num_layers": 1, "model.width": 16, "model.mlp_dim": 24, "model.num_heads": 2, "pack.seq_len": 32,
         "data.language.train_documents": 300, "data.language.validation_documents": 80, "train.steps": 6,
         "train.batch_size": 8, "train.checkpoint_every": 2, "train.log_every": 2, "eval.batch_size": 8}
HALF = 4  # the step at which the half-done run was stopped


def made(folder: Path, name: str) -> config.Config:
    return resolution.resolve(config.Config(), SMALL | {"data.cache": str(folder / "cache"),
                                                        "workdir": str(folder / name)})


def runs(folder: Path) -> None:
    """Trains the run "done" to its end, and "half" to a step before it, in the folder."""
    loop.train(made(folder, "done"))
    now, shutdown.Asked.now = shutdown.Asked.now, lambda self, checkpoints, number: number == HALF
    try:
        with contextlib.suppress(shutdown.Stopped):
            loop.train(made(folder, "half"))
    finally:
        shutdown.Asked.now = now


def flip(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def outcome(workdir: str) -> dict:
    """All that a finished run says of its model, but for the time it took."""
    found = directory.reported(workdir)
    history = [{name: value for name, value in record.items() if "second" not in name}
               for record in series.by_step(found["history"]).values()]
    return {"evaluation": found["evaluation"], "totals": [found[name] for name in ("tokens", "predictions")],
            "held_out": {name: column.tolist() for name, column in found["held_out"].items()}, "history": history}


def parameters(workdir: str) -> list[np.ndarray]:
    return jax.tree.leaves(jax.device_get(trained_run.load(workdir, {}).state.params))


class Heard(logging.Handler):
    """Keeps the warnings that are logged."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def tried(cfg: config.Config, want: dict, whole: list[np.ndarray], heard: Heard) -> str:
    """What becomes of a run with a damaged file."""
    heard.lines.clear()
    directory.tell.cache_clear()
    refused = False
    for look in (lambda: loop.train(cfg), lambda: outcome(cfg.workdir), lambda: parameters(cfg.workdir)):
        try:
            found = look()
        except files.Damaged:
            refused = True
            continue
        if isinstance(found, list):
            same = all(map(np.array_equal, found, whole))
        elif "held_out" in found and "history" in found:
            lost = any("metrics" in line for line in heard.lines)  # and named
            same = found == want or (lost and found | {"history": []} == want | {"history": []})
        else:
            same = found["evaluation"] == want["evaluation"]
        if not same:
            return "WRONG"
    if refused:
        return "named, and refused where it is needed"
    return "named, and made again or gone back from" if any("damaged" in line for line in heard.lines) else \
        "not named: all that comes out is bit for bit the same"


def main(argv):
    rng, counts = random.Random(flags.FLAGS.seed), collections.Counter()
    heard = Heard()
    absl_logging.get_absl_logger().addHandler(heard)
    absl_logging.use_absl_handler()
    absl_logging.get_absl_handler().setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(place)
        runs(folder)
        want, whole = outcome(folder / "done"), parameters(str(folder / "done"))
        every = [(name, path.relative_to(folder / name)) for name in ("done", "half")
                 for path in sorted((folder / name).rglob("*")) if path.is_file() and path.stat().st_size]
        for number in range(flags.FLAGS.flips):
            name, path = every[number] if number < len(every) else rng.choice(every)
            cfg = fields.override(made(folder, name), {"workdir": str(folder / f"flip{number}")})
            shutil.copytree(folder / name, cfg.workdir)
            spoilt = Path(cfg.workdir, path)
            flip(spoilt, rng.randrange(spoilt.stat().st_size), rng.randrange(8))
            became = tried(cfg, want, whole, heard)
            counts[name, path.parts[0], became] += 1
            shutil.rmtree(cfg.workdir)
    for (name, kind, became), count in sorted(counts.items()):
        print(f"{count:4d}  {name:4s}  {kind:16s}  {became}")
    totals = collections.Counter()
    for (_, _, became), count in counts.items():
        totals[became] += count
    print(f"{flags.FLAGS.flips} flips (seed {flags.FLAGS.seed}) over {len(every)} files: "
          + "; ".join(f"{count} {became}" for became, count in sorted(totals.items())))
    sys.exit(bool(totals["WRONG"]))


if __name__ == "__main__":
    flags.DEFINE_integer("flips", 200, "How many.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Of the places.")
    app.run(main)
