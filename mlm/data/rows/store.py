"""Folders of derived files that are made once, completely or not at all, and checked on every use.

The manifest has the SHA-256, the size and the time of change of each file. A file is hashed where size or time differ,
and always where the caller asks for it.

What is made on one host for a cache on a bucket is put there once, and fetched by the others into a folder of theirs.
There under its name lie the files, each called by its digest too, and at last the manifest, which says which they are:
two that put at once never mix. While one makes, others wait (base/lease.py), and fetch.
"""

import contextlib
import errno
import fcntl
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import logging

from mlm.base import buckets, errors, files
from mlm.base.storage import BUCKET, get_storage

MANIFEST = "manifest.json"
READ_ONLY_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)


def get_or_make_folder(
    cache: Path | str,
    prefix: str,
    inputs: dict[str, Any],
    make: Callable[[Path], dict[str, Any]],
    *,
    layout: int = 0,
    verify: bool = True,
) -> tuple[Path, dict[str, Any]]:
    """The folder under cache that follows from inputs, and its manifest; filled by make(folder) where there is none.

    Of a cache on a bucket that is a copy on this machine, fetched from there, or made and put there. A folder appears
    under its name only when it is complete. Processes that need it at the same time make it once. A file that differs
    from its SHA-256 in the manifest is named in a warning, and the folder made again.

    inputs: what the content follows from. make: writes files into the empty folder, and returns what else the manifest
    should say. layout: version of how the files hold the content; raise it with a change. verify: all files are hashed.
    """
    inputs = json.loads(json.dumps(inputs))
    name = make_name(prefix, inputs, layout)
    files.check_folder("config.data.cache_dir", str(cache), writable=False, schemes=tuple(buckets.LIBRARIES))
    folder = files.local_folder(files.make_path(cache)) / name
    if get_storage(cache).is_remote:
        make = functools.partial(_fetch_or_make, files.make_path(cache, name), inputs, make)
    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            is_locked = stack.enter_context(_hold_lock(folder.with_name(f".{name}.lock")))
        except OSError as error:
            if error.errno not in READ_ONLY_ERRORS:
                raise
            try:
                return folder, _read_manifest(folder, inputs, verify)  # a cache that others fill serves what it has
            except files.DamagedFile as damaged:
                raise errors.ConfigError(
                    f"config.data.cache_dir = {str(cache)!r}: expected a folder to write in "
                    f"({error.strerror}), or one that has {name} ({damaged})"
                ) from None
        if folder.exists():
            try:
                return folder, _read_manifest(folder, inputs, verify)
            except files.DamagedFile as damaged:
                logging.warning("%s; making it again", damaged)
            # The name goes at once, then the files; those who have them mapped keep them.
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder.rename(tempfile.mkdtemp(prefix=f".{name}.part-", dir=folder.parent)))
        if is_locked:  # what a killed process left; without the lock it might be a live one's
            for leftover in folder.parent.glob(f".{name}.part-*"):
                shutil.rmtree(leftover, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}.part-", dir=folder.parent))
        try:
            manifest = {"inputs": inputs, **make(temporary)}
            manifest["sha256"] = _compute_digests(temporary)
            _write_manifest(temporary, manifest)
            temporary.chmod(0o755)  # mkdtemp's folders are private, a cache may be shared
            _sync_to_disk(temporary)
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
                manifest = _read_manifest(folder, inputs, verify)  # another process came first, where locks do not work
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder, manifest


def remove_folder(cache: Path | str, name: str) -> None:
    """Removes a folder of the cache, where it is there."""
    path = files.make_path(cache, name)
    for folder in {path, files.local_folder(files.make_path(cache)) / name}:
        get_storage(folder).remove_folder(folder)
    (files.local_folder(files.make_path(cache)) / f".{name}.lock").unlink(missing_ok=True)


def make_name(prefix: str, inputs: dict[str, Any], layout: int = 0) -> str:
    """The name of the folder that follows from inputs."""
    return f"{prefix}-{files.json_sha256(inputs | ({'layout': layout} if layout else {}))[:16]}"


@contextlib.contextmanager
def _hold_lock(path) -> Iterator[bool]:
    """Holds a lock that ends with the process; yields False on file systems that have none."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.info("waiting for another process that makes %s", path.name.strip(".").removesuffix(".lock"))
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True


def _read_manifest(folder, inputs, verify) -> dict[str, Any]:
    """The manifest of a folder. Raises DamagedFile unless the folder is complete and intact."""
    manifest = files.read_json_with_digest(folder / MANIFEST)
    if manifest is None or manifest["inputs"] != inputs:
        raise files.DamagedFile(f"{folder} is damaged: it lacks the {MANIFEST} of its inputs")
    states = manifest.pop("states", {})
    changed = [name for name in manifest["sha256"] if states.get(name) != _get_state(folder / name)]
    for name in manifest["sha256"] if verify else changed:
        files.check_sha256(folder / name, manifest["sha256"][name])
    if changed:  # a copy, for example: hashed once
        with contextlib.suppress(OSError):
            _write_manifest(folder, manifest)
    return manifest


def _write_manifest(folder, manifest):
    states = {name: _get_state(folder / name) for name in manifest["sha256"]}
    files.write_json_with_digest(folder / MANIFEST, {**manifest, "states": states})


def _get_state(path) -> list[int] | None:
    """The size of a file and its time of change; None: it is not there."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return [status.st_size, status.st_mtime_ns]


def _compute_digests(folder):
    return {path.name: files.compute_sha256(path) for path in sorted(folder.iterdir())}


def _sync_to_disk(folder):
    """Brings the files to the disk before the rename does: a power cut must not leave a name without its bytes."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _fetch_or_make(bucket_folder, inputs, make, folder):
    """`make` of a folder for a cache on a bucket, where it is `bucket_folder`."""
    manifest = _fetch_folder(bucket_folder, folder, inputs)
    if manifest is None:
        with BUCKET.lock(bucket_folder):
            manifest = _fetch_folder(bucket_folder, folder, inputs)
            if manifest is None:
                manifest = make(folder)
                _upload_folder(folder, bucket_folder, {"inputs": inputs, **manifest})
    return manifest


def _fetch_folder(bucket_folder, folder, inputs) -> dict[str, Any] | None:
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


def _upload_folder(folder, bucket_folder, manifest):
    """Puts the files of a folder on a bucket, and last the manifest with their digests."""
    digests = _compute_digests(folder)
    for name, digest in digests.items():
        BUCKET.upload(folder / name, _make_object_path(bucket_folder, name, digest))
    files.write_json_with_digest(bucket_folder / MANIFEST, {**manifest, "sha256": digests})


def _make_object_path(bucket_folder, name, digest):
    return bucket_folder / f"{digest[:16]}-{name}"
