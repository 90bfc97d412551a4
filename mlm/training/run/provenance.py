"""The provenance of a run's start, to reproduce its numbers: code, versions, devices."""

import json
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from mlm.base import machine
from mlm.training.step import parallel

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece", "tokenizers")
SNAPSHOT_FILE = "code_snapshot.json"  # in a copy of the code: `describe_source` of the original


def describe_source() -> dict:
    """The commit of this code and its changed files; None where neither git nor pip, which installed it, knows them."""
    here = Path(__file__)

    def run_git(*arguments):
        try:
            process = subprocess.run(["git", *arguments], cwd=here.parent, capture_output=True, text=True, check=False)
        except OSError:  # git is not installed
            return None
        return process.stdout.strip() if process.returncode == 0 else None

    snapshot = here.parents[3] / SNAPSHOT_FILE
    if snapshot.exists():  # the copy may lie in a checkout, such as the original, which may have changed since
        return json.loads(snapshot.read_bytes())
    for record in here.parents[3].glob("mlm-*.dist-info/direct_url.json"):  # of pip, beside what it installed from git
        if commit := json.loads(record.read_bytes()).get("vcs_info", {}).get("commit_id"):
            return {"commit": commit, "changed_files": ""}
    if run_git("ls-files", "--error-unmatch", here.name) is None:  # an installation within a checkout of something else
        return {"commit": None, "changed_files": None}
    return {"commit": run_git("rev-parse", "HEAD"), "changed_files": run_git("status", "--porcelain")}


def make_record(step: int) -> dict:
    """The record of a start of this process at a step."""
    return {
        "step": step,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],  # not where it is installed: runs are given away
        **describe_source(),
        "python": sys.version.split()[0],
        "versions": {name: metadata.version(name) for name in PACKAGES},
        **parallel.describe_devices(),
        "processor": machine.name_processor(),
    }
