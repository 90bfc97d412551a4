"""SHA-256 of source files, kept in the cache, so that a start hashes only what changed by its size or time."""

import concurrent.futures
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from mlm.base import files

SETTLED_NS = 2 * 10**9  # age at which a later change of a file changes its time, however coarse its file system's clock


def hash_files(paths: Sequence[str], cache_dir: str) -> list[bytes]:
    """The SHA-256 of each file, as bytes; of files with the size and time of an earlier call, what that one found.

    cache_dir: the folder that keeps digests; where there is none, all files are hashed. Raises OSError.
    """
    paths = [os.path.abspath(path) for path in paths]
    memo, now = _make_path(cache_dir, paths), time.time_ns()
    states = [[status.st_size, status.st_mtime_ns] for status in map(os.stat, paths)]
    known = {}
    with contextlib.suppress(files.DamagedFile):
        known = (files.read_json_with_digest(memo) or {}).get("files", {})
    new = [path for path, state in zip(paths, states, strict=True) if known.get(path, [])[:2] != state]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        hashed = dict(zip(new, pool.map(files.compute_sha256, map(Path, new)), strict=True))
    digests = [hashed.get(path) or known[path][2] for path in paths]
    if new and memo.parent.is_dir():
        entries = zip(paths, states, digests, strict=True)
        settled = {path: [*state, digest] for path, state, digest in entries if state[1] < now - SETTLED_NS}
        with contextlib.suppress(OSError):  # a cache that is only read
            files.write_json_with_digest(memo, {"files": settled})
    return [bytes.fromhex(digest) for digest in digests]


def forget(cache_dir: str) -> None:
    """Removes all digests, so that each file is hashed again."""
    for path in _make_path(cache_dir, ()).parent.glob("sources-*.json"):
        path.unlink(missing_ok=True)


def _make_path(cache_dir, paths) -> Path:
    folder = files.local_folder(files.make_path(cache_dir))
    return folder / f"sources-{files.json_sha256(list(paths))[:16]}.json"
