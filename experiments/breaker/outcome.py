"""All that a trial made, but for the times: by name, the digest of each part, so that two trials can be compared."""
import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from experiments.breaker import subject
from mlm.base import files
from mlm.report import series
from mlm.train.run import checkpoint, directory, trained_run

TIMED = re.compile("second|timed")
TABLES = ("table.csv", "table.md", "table.tex", "claims.md")


def workdirs(folder: Path) -> list[Path]:
    found = folder.glob(f"{subject.RUNS}/**/provenance.json")
    return sorted(path.parent for path in found)


def untimed(value):
    """A JSON value without what times are in, or what was timed."""
    if isinstance(value, Mapping):
        return {name: untimed(one) for name, one in value.items() if not TIMED.search(name)}
    return [untimed(one) for one in value] if isinstance(value, list | tuple) else value


def of_run(workdir: Path, folder: Path) -> dict[str, str]:
    """Raises Damaged for a file that is not what was written, a checkpoint's arrays among them."""
    found = directory.reported(workdir)
    if found is None:
        return {"result": "none"}
    columns = found.pop("held_out")
    found["history"] = list(series.by_step(found["history"]).values())
    del found["provenance"]
    parts = {name: files.sha256(json.loads(json.dumps(untimed({"": value}), default=repr)))
             for name, value in found.items() if not TIMED.search(name)}
    parts["held-out rows"] = hashlib.sha256(b"".join(
        name.encode() + columns[name].tobytes() for name in sorted(columns))).hexdigest()
    parts["checkpoint"] = checkpoint.newest_digest(workdir)
    if parts["checkpoint"]:
        with contextlib.chdir(folder):  # where its text lies
            trained_run.load(str(workdir), {"data.cache": subject.CACHE})
    for path in sorted([*workdir.glob("predictions-*"), *workdir.glob("tokenizer/*")]):
        parts[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return parts


def outcome(folder: Path) -> dict[str, str]:
    found = {f"{workdir.relative_to(folder)}: {name}": digest for workdir in workdirs(folder)
             for name, digest in of_run(workdir, folder).items()}
    found |= {name: hashlib.sha256(path.read_bytes()).hexdigest() for name in TABLES
              if (path := folder / subject.RUNS / name).exists()}
    for manifest in sorted(folder.glob(f"{subject.CACHE}/*/manifest.json")):
        found[f"rows: {manifest.parent.name}"] = files.sha256(files.read_sealed(manifest))
    return found


def differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """The names of what is not as it was wanted."""
    return [name for name in sorted(found.keys() | wanted.keys()) if found.get(name) != wanted.get(name)]


def leftovers(folder: Path) -> list[str]:
    """Files and folders that were written aside and are neither in their place nor gone."""
    aside = [path for path in folder.rglob(".*") if not path.name.endswith(".lock") and path.name != ".lock"]
    return sorted(str(path.relative_to(folder)) for path in [*aside, *folder.glob(f"{subject.RUNS}/**/*-tmp*")])
