"""What one needs to know of a start of a run to get its numbers again: code, versions, devices."""
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from mlm.train.step import parallel

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece", "tokenizers")


def record(step: int) -> dict:
    """Of this process, which starts at a step; of code that is no checkout the commit is None."""
    def git(*words):
        done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    return {"step": step, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": sys.argv,
            "commit": git("rev-parse", "HEAD"), "changed_files": git("status", "--porcelain"),
            "python": sys.version.split()[0], "versions": {name: metadata.version(name) for name in PACKAGES},
            **parallel.describe()}
