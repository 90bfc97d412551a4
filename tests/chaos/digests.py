"""Digests, by name, of all parts of a trial's outcome, without times, so that two trials can be compared."""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from mlm.base import files
from mlm.report import series
from mlm.training.run import checkpoint, trained_run
from mlm.training.run.directory import RunDirectory
from tests.chaos import workloads

TIME_KEY = re.compile("second|timed")
TABLES = ("table.csv", "table.md", "table.tex", "claims.md")


def list_workdirs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"{workloads.RUNS}/**/provenance.json"))


def drop_times(value):
    """A JSON value without times."""
    if isinstance(value, Mapping):
        return {name: drop_times(item) for name, item in value.items() if not TIME_KEY.search(name)}
    return [drop_times(item) for item in value] if isinstance(value, list | tuple) else value


def digest_run(workdir: Path, folder: Path) -> dict[str, str]:
    """Raises DamagedFile for a damaged file, including a checkpoint's arrays."""
    run = RunDirectory(workdir).read_finished()
    if run is None:
        return {"result": "none"}
    columns = run.pop("held_out")
    run["history"] = list(series.merge_by_step(run["history"]).values())
    del run["provenance"]
    digests = {
        name: files.json_sha256(json.loads(json.dumps(drop_times({"": value}), default=repr)))
        for name, value in run.items()
        if not TIME_KEY.search(name)
    }
    digests["held-out examples"] = hashlib.sha256(
        b"".join(name.encode() + columns[name].tobytes() for name in sorted(columns))
    ).hexdigest()
    digests["checkpoint"] = checkpoint.read_newest_digest(RunDirectory(workdir))
    if digests["checkpoint"]:
        with contextlib.chdir(folder):  # the text's path is relative to it
            trained_run.load(str(workdir), {"data.cache_dir": workloads.CACHE})
    for path in sorted([*workdir.glob("predictions-*"), *workdir.glob("tokenizer/*")]):
        digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def collect_digests(folder: Path) -> dict[str, str]:
    digests = {
        f"{workdir.relative_to(folder)}: {name}": digest
        for workdir in list_workdirs(folder)
        for name, digest in digest_run(workdir, folder).items()
    }
    digests |= {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name in TABLES
        if (path := folder / workloads.RUNS / name).exists()
    }
    for manifest in sorted(folder.glob(f"{workloads.CACHE}/*/manifest.json")):
        content = files.read_json_with_digest(manifest) or {}
        content.pop("states", None)  # times
        digests[f"rows: {manifest.parent.name}"] = files.json_sha256(content)
    return digests


def list_differences(digests: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """The names of the parts that are not as expected."""
    return [name for name in sorted(digests.keys() | expected.keys()) if digests.get(name) != expected.get(name)]


def list_leftovers(folder: Path) -> list[str]:
    """Temporary files and folders that remain."""
    temporary = [path for path in folder.rglob(".*") if not path.name.endswith(".lock") and path.name != ".lock"]
    return sorted(str(path.relative_to(folder)) for path in [*temporary, *folder.glob(f"{workloads.RUNS}/**/*-tmp*")])
