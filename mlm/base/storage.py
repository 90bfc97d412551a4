"""Where files lie: on a disk or on a bucket, behind one interface. No other module tells one from the other.

A bucket cannot rename, append and lock as a disk does. There a file is written to the disk first and uploaded in one
request; a rename is a copy, then a removal; growing files are uploaded from time to time; a lease holds a folder
(lease.py). Reads and listings show the last upload. A bucket that cannot be reached raises buckets.BucketError.
"""

import contextlib
import errno
import fcntl
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Generator
from pathlib import Path, PurePath
from typing import Any

from mlm.base import buckets, lease

UPLOAD_SECONDS = 10.0  # least time between two uploads of growing files to a bucket,
UPLOAD_SHARE = 0.02  # and largest share of the run's time that uploads take


def get_storage(path: PurePath | str) -> "Storage":
    """The storage of a path."""
    return BUCKET if buckets.is_bucket_path(path) else DISK


class Storage:
    """The disks of this machine. A storage holds no path: each method is given one of its own."""

    is_remote = False

    def remove_folder(self, path: Path) -> None:
        """Removes the folder and its contents, as far as it can."""
        shutil.rmtree(path, ignore_errors=True)

    def list(self, folder: Path | str) -> "list[str]":
        """The names in a folder, sorted; none if there is no folder."""
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def read(self, path: Path | str, max_bytes: float = math.inf) -> bytes:
        """The content of a file. Raises OSError, also for a pipe, device or larger file; on a bucket BucketError."""
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            is_folder = stat.S_ISDIR(status.st_mode)
            raise OSError(errno.EISDIR if is_folder else errno.EINVAL, "not a regular file", str(path))
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"{status.st_size:,} bytes, more than {max_bytes:,}", str(path))
        return Path(path).read_bytes()

    @contextlib.contextmanager
    def write_atomic(self, path: Path) -> Generator[Path]:
        """Yields a temporary path on a disk; moves that file to `path` if the block succeeds, else removes it.

        The temporary path has path's suffix, by which libraries recognize a format. Makes the folder if there is none.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
        try:
            yield temporary
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)

    def rename(self, path: Path, target: Path) -> None:
        """Renames a file."""
        path.rename(target)

    def lock(self, folder: Path, message: str = "") -> Any:
        """Makes a folder and holds it until the returned object is closed.

        message: raises FolderInUse with it if another process holds the folder; if empty, waits for that.
        """
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if message else 0))
        except BlockingIOError:
            raise lease.FolderInUse(message) from None
        return file

    def is_locked(self, folder: Path) -> bool:
        """Whether some process holds a folder; on a bucket by this machine's clock."""
        try:
            with (folder / ".lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no lock file, or a file system without locks
            return False
        return False


class _Bucket(Storage):
    is_remote = True

    def remove_folder(self, path: Path) -> None:
        lease.check_held(path)
        with buckets.connect(path) as bucket, contextlib.suppress(FileNotFoundError):
            bucket.rm(str(path), recursive=True)

    def list(self, folder: Path | str) -> "list[str]":
        with buckets.connect(folder) as bucket, contextlib.suppress(FileNotFoundError):
            return sorted(PurePath(name).name for name in bucket.ls(str(folder), detail=False))
        return []

    def read(self, path: Path | str, max_bytes: float = math.inf) -> bytes:
        with buckets.connect(path) as bucket:
            return bucket.cat_file(str(path))

    def write(self, path: Path | str, content: bytes, *, exclusive: bool = False) -> None:
        """Writes a file. exclusive: raises FileExistsError if there is one, where the store heeds that."""
        with buckets.connect(path) as bucket:
            bucket.pipe_file(str(path), content, **{"mode": "create"} if exclusive else {})

    def upload(self, file: Path, path: Path) -> None:
        lease.check_held(path)
        with buckets.connect(path) as bucket:
            bucket.put_file(str(file), str(path))

    def download(self, path: Path, file: Path) -> None:
        with buckets.connect(path) as bucket:
            bucket.get_file(str(path), str(file))

    @contextlib.contextmanager
    def write_atomic(self, path: Path) -> Generator[Path]:
        with tempfile.TemporaryDirectory() as parent:
            temporary = Path(parent, PurePath(path).name)
            yield temporary
            self.upload(temporary, path)

    def rename(self, path: Path, target: Path) -> None:
        lease.check_held(path)
        with buckets.connect(path) as bucket:  # after a kill in between both exist, and a second call completes it
            bucket.cp_file(str(path), str(target))
            bucket.rm_file(str(path))

    def lock(self, folder: Path, message: str = "") -> Any:
        while True:
            try:
                return lease.Lease(self, folder, message)
            except lease.FolderInUse:
                if message:
                    raise
            time.sleep(lease.POLL_SECONDS)

    def is_locked(self, folder: Path) -> bool:
        return not lease.has_expired(lease.read_newest(self, folder)[1])


DISK, BUCKET = Storage(), _Bucket()


class GrowingFolder:
    """A folder whose files grow: `local` is on a disk. On a bucket it is a copy, which `upload` brings there."""

    def __init__(self, path: Path):
        self.path, self.is_remote = path, get_storage(path).is_remote
        self.local = Path(tempfile.mkdtemp()) if self.is_remote else path
        self.last_upload, self.upload_seconds, self.pending = time.monotonic(), 0.0, False

    def upload(self, *, now: bool = True) -> None:
        """Uploads every file; now: even soon after the last upload. Raises FolderInUse if the lease is lost."""
        if not self.is_remote:
            return
        start, self.pending = time.monotonic(), True
        if now or start - self.last_upload >= max(UPLOAD_SECONDS, self.upload_seconds / UPLOAD_SHARE):
            self.pending = False  # `close` does not retry an upload that failed
            for file in sorted(path for path in self.local.rglob("*") if path.is_file()):
                BUCKET.upload(file, self.path / file.relative_to(self.local))
            self.last_upload = time.monotonic()
            self.upload_seconds = self.last_upload - start

    def close(self) -> None:
        """Uploads what still waits, and removes the copy; does nothing on a disk."""
        if self.is_remote:
            try:
                if self.pending:
                    self.upload()
            finally:
                shutil.rmtree(self.local, ignore_errors=True)
