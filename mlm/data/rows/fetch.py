"""A cache on a bucket: what is made on one host is put there once, and fetched by the others into a folder of theirs.

Under its name lie the files, each called by its digest too, and at last the manifest, which says which they are: two
that put at once never mix. While one makes, others wait (base/lease.py), and fetch.
"""
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import logging

from mlm.base import buckets, files, lease

MANIFEST = "manifest.json"


def maker(there: Path, inputs: dict[str, Any], make: Callable[[Path], dict[str, Any]]) -> Callable:
    """`make` of store.made for a cache on a bucket, where the folder is `there`."""
    def fetched_or_made(folder):
        found = fetched(there, folder, inputs)
        if found is not None:
            return found
        with lease.alone(there):
            found = fetched(there, folder, inputs)
            if found is None:
                found = make(folder)
                put(folder, there, {"inputs": inputs, **found})
        return found

    return fetched_or_made


def fetched(there: Path, folder: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """Fills a folder from a bucket and returns what the manifest there says beside inputs and digests; None, and the
    folder is empty, where nothing whole is there, of which a warning says why."""
    try:
        manifest = files.read_sealed(there / MANIFEST)
        if manifest is None:
            return None
        if manifest["inputs"] != inputs:
            raise files.Damaged(f"{there / MANIFEST} is damaged: it was changed")
        for name, digest in manifest["sha256"].items():
            try:
                buckets.get(_object(there, name, digest), folder / name)
            except FileNotFoundError:
                raise files.Damaged(f"{there} is damaged: it lacks {name}") from None
            if sha256(folder / name) != digest:
                raise files.Damaged(f"{there} is damaged: {name} is not what its digest is of")
    except files.Damaged as damaged:
        logging.warning("%s; making it again", damaged)
        for file in folder.iterdir():
            file.unlink()
        return None
    return {name: value for name, value in manifest.items() if name not in ("inputs", "sha256")}


def put(folder: Path, there: Path, manifest: dict[str, Any]) -> None:
    """Puts the files of a folder on a bucket, and last the manifest with their digests."""
    digests = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    for name, digest in digests.items():
        lease.check(there / MANIFEST)
        buckets.put(folder / name, _object(there, name, digest))
    files.write_sealed(there / MANIFEST, {**manifest, "sha256": digests})


def _object(there, name, digest):
    return there / f"{digest[:16]}-{name}"


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
