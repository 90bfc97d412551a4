"""What one needs to know of a start of a run to get its numbers again: code, versions, devices."""
import json
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from mlm.train.step import parallel

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece", "tokenizers")
COPIED = "copied.json"  # beside the packages of a copy: `source` of what it was copied from


def source() -> dict:
    """The commit of this code, None where it is no checkout, and which of its files were changed since."""
    def git(*words):
        done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    copied = Path(__file__).parents[3] / COPIED
    if copied.exists():  # it may lie in a checkout, such as that which it is of: that has changed since
        return json.loads(copied.read_bytes())
    return {"commit": git("rev-parse", "HEAD"), "changed_files": git("status", "--porcelain")}


def record(step: int) -> dict:
    """Of this process, which starts at a step."""
    return {"step": step, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": sys.argv, **source(),
            "python": sys.version.split()[0], "versions": {name: metadata.version(name) for name in PACKAGES},
            **parallel.describe()}
