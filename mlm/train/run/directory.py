"""A run's directory: its resolved config, where it came from, and its result, which is written last."""
import fcntl
import json
import os
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import jax
import numpy as np

from mlm.base import config, errors, fields, files, types

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece", "tokenizers")


class Taken(errors.ConfigError):
    """Another process is at work in the directory."""


def finished(cfg: config.Config, data: dict) -> dict | None:
    """The result of a run that is done, or None. Raises ConfigError where it is another config's, or of other rows."""
    kept, result = Path(cfg.workdir, "config.json"), Path(cfg.workdir, "result.json")
    if kept.exists():
        fields.check_same(cfg, data, json.loads(kept.read_text()), cfg.workdir)
    return json.loads(result.read_text()) if result.exists() else None


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
        with (Path(cfg.workdir) / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def finish(workdir: Path, result: dict, lost: types.Losses) -> None:
    """Writes held_out.npz, what each held-out row lost (nats_N) over its predictions_N, and at last result.json."""
    aside = workdir / f".held_out.{os.getpid()}.npz"
    np.savez(aside, nats_N=lost.loss_B["mlm"], predictions_N=lost.weight_B["mlm"])
    aside.rename(workdir / "held_out.npz")
    files.write_json(workdir / "result.json", result)


def describe(cfg: config.Config, data: dict, step: int) -> None:
    """Writes config.json, and adds this start at `step` to provenance.json: what one needs to get the numbers again."""
    def git(*words):
        done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    path = Path(cfg.workdir) / "provenance.json"
    starts = json.loads(path.read_text()) if path.exists() else []
    files.write_json(Path(cfg.workdir) / "config.json", {"config": fields.flatten(cfg), "data": data})
    files.write_json(path, [*starts, {
        "step": step, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": sys.argv,
        "commit": git("rev-parse", "HEAD"), "changed_files": git("status", "--porcelain"),
        "python": sys.version.split()[0], "versions": {name: metadata.version(name) for name in PACKAGES},
        "device": jax.devices()[0].device_kind, "devices": jax.device_count(), "processes": jax.process_count()}])
