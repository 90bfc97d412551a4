"""A cache on a bucket: what is made on one host is put there once, and fetched by the others into a folder of theirs.

Under its name lie the files, each called by its digest too, and at last the manifest, which says which they are: two
that put at once never mix. While one makes, others wait (base/lease.py), and fetch.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import logging

from mlm.base import files
from mlm.base.storage import BUCKET

MANIFEST = "manifest.json"


def make_through_bucket(
    bucket_folder: Path, inputs: dict[str, Any], make: Callable[[Path], dict[str, Any]]
) -> Callable:
    """`make` of the store for a cache on a bucket, where the folder is `bucket_folder`."""

    def fetch_or_make(folder):
        manifest = fetch_folder(bucket_folder, folder, inputs)
        if manifest is not None:
            return manifest
        with BUCKET.lock(bucket_folder):
            manifest = fetch_folder(bucket_folder, folder, inputs)
            if manifest is None:
                manifest = make(folder)
                upload_folder(folder, bucket_folder, {"inputs": inputs, **manifest})
        return manifest

    return fetch_or_make


def fetch_folder(bucket_folder: Path, folder: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """Fills a folder from a bucket and returns what the manifest there says beside inputs and digests; None, and the
    folder is empty, where nothing complete is there; a warning says why.
    """
    try:
        manifest = files.read_json_with_digest(bucket_folder / MANIFEST)
        if manifest is None:
            return None
        if manifest["inputs"] != inputs:
            raise files.DamagedFile(f"{bucket_folder / MANIFEST} is damaged: it was changed")
        for name, digest in manifest["sha256"].items():
            with contextlib.suppress(FileNotFoundError):
                BUCKET.download(_make_object_path(bucket_folder, name, digest), folder / name)
            files.check_sha256(folder / name, digest)
    except files.DamagedFile as damaged:
        logging.warning("%s; making it again", damaged)
        for file in folder.iterdir():
            file.unlink()
        return None
    return {name: value for name, value in manifest.items() if name not in ("inputs", "sha256")}


def upload_folder(folder: Path, bucket_folder: Path, manifest: dict[str, Any]) -> None:
    """Puts the files of a folder on a bucket, and last the manifest with their digests."""
    digests = {path.name: files.compute_sha256(path) for path in sorted(folder.iterdir())}
    for name, digest in digests.items():
        BUCKET.upload(folder / name, _make_object_path(bucket_folder, name, digest))
    files.write_json_with_digest(bucket_folder / MANIFEST, {**manifest, "sha256": digests})


def _make_object_path(bucket_folder, name, digest):
    return bucket_folder / f"{digest[:16]}-{name}"
