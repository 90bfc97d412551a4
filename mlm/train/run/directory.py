"""A run's directory, the one place that knows what its files are called and what they hold.

config.json, the resolved config and the rows' identity; provenance.json, a record of each start; metrics.jsonl, what
the run logged; tensorboard/, the same; checkpoints/; held_out.npz, what each held-out row gave; result.json, written
last; judged.json, what the trained model was asked since; error.txt, how a sweep's point failed.
"""
import fcntl
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np

from mlm.base import config, errors, fields, files
from mlm.train.step import parallel
from mlm.train.step.evaluation import Columns

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece", "tokenizers")


class Taken(errors.ConfigError):
    """Another process is at work in the directory."""


def checkpoints(workdir: Path | str) -> Path:
    return Path(workdir, "checkpoints")


def metrics(workdir: Path | str) -> Path:
    return Path(workdir, "metrics.jsonl")


def events(workdir: Path | str) -> Path:
    """The folder of TensorBoard's events."""
    return Path(workdir, "tensorboard")


def failure(workdir: Path | str) -> Path:
    return Path(workdir, "error.txt")


def origin(workdir: Path | str) -> dict | None:
    """The "config" and "data" that a run was begun with, or None where no run was."""
    return files.read_json(Path(workdir, "config.json"))


def beside(workdir: Path | str) -> list[str]:
    """The runs in the folder that holds a directory."""
    return [str(found.parent) for found in Path(workdir).parent.glob("*/config.json")]


def result(workdir: Path | str) -> dict | None:
    """The result of a run that is done, or None."""
    return files.read_json(Path(workdir, "result.json"))


def judged(workdir: Path | str) -> dict:
    """What a run's model was asked, with the "fingerprint" and "step" that it had then; {} where it was not."""
    return files.read_json(Path(workdir, "judged.json")) or {}


def held_out(workdir: Path | str) -> Columns | None:
    """The columns of the evaluation that a result is of, or None where they are missing."""
    path = Path(workdir, "held_out.npz")
    if not path.exists():
        return None
    with np.load(path) as file:
        return dict(file)


def reported(workdir: Path | str) -> dict | None:
    """A finished run as reports read it, or None: its result, with the directory that it is in now, and beside that

    "answers", "summary": what it was asked at that step; "history": the records of metrics.jsonl; "held_out": columns.
    """
    found = result(workdir)
    if found is None:
        return None
    kept = judged(workdir)
    asked = (kept.get("fingerprint"), kept.get("step")) == (found["fingerprint"], found["steps"])
    return found | {"config": found["config"] | {"workdir": str(workdir)},
                    "answers": kept["answers"] if asked else {}, "summary": kept["summary"] if asked else {},
                    "history": files.read_lines(metrics(workdir)), "held_out": held_out(workdir)}


def finished(cfg: config.Config, data: dict) -> dict | None:
    """The result of a run that is done, or None. Raises ConfigError where it is another config's, or of other rows."""
    kept = origin(cfg.workdir)
    if kept is not None:
        fields.check_same(cfg, data, kept, cfg.workdir)
    return result(cfg.workdir)


def claim(cfg: config.Config):
    """Makes the directory and holds it until the returned file is closed.

    Raises Taken where another process is at work in it.
    """
    workdir = Path(cfg.workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    lock = (workdir / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Taken(f"config.workdir = {cfg.workdir!r}: another process is training there now") from None
    return lock


def held(cfg: config.Config) -> bool:
    """Whether some process has claimed the directory."""
    try:
        with Path(cfg.workdir, ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def finish(workdir: Path, found: dict, columns: Columns) -> None:
    """Writes what each held-out row gave, and at last the result."""
    with files.whole(workdir / "held_out.npz") as aside:
        np.savez(aside, **columns)
    files.write_json(workdir / "result.json", found)


def keep_judged(workdir: Path | str, found: dict) -> None:
    files.write_json(Path(workdir, "judged.json"), found)


def fail(workdir: Path | str, error: str) -> None:
    """Keeps how a point of a sweep failed."""
    Path(workdir).mkdir(parents=True, exist_ok=True)
    files.write_text(failure(workdir), error + "\n")


def describe(cfg: config.Config, data: dict, step: int) -> None:
    """Writes the config, and adds this start at `step` to the provenance: what one needs to get the numbers again."""
    def git(*words):
        done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    path = Path(cfg.workdir, "provenance.json")
    starts = files.read_json(path) or []
    files.write_json(Path(cfg.workdir, "config.json"), {"config": fields.flatten(cfg), "data": data})
    files.write_json(path, [*starts, {
        "step": step, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": sys.argv,
        "commit": git("rev-parse", "HEAD"), "changed_files": git("status", "--porcelain"),
        "python": sys.version.split()[0], "versions": {name: metadata.version(name) for name in PACKAGES},
        **parallel.describe()}])
