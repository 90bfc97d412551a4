"""Objects on cloud buckets, gs://BUCKET/NAME or s3://BUCKET/NAME, through fsspec, which itself retries what fails."""

import contextlib
import difflib
import functools
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from mlm.base import errors, extras

LIBRARIES = {"gs": "gcsfs", "s3": "s3fs"}  # by scheme; the extra that installs a library has the scheme's name
# An error of a class from one of these modules is a bucket's.
ERROR_MODULES = {*LIBRARIES.values(), "aiobotocore", "aiohttp", "botocore", "google", "requests"}
RETRY_HINT = "the same command continues once it can be reached"


class BucketError(Exception):
    """A request to a bucket failed."""


class BucketAccessError(errors.ConfigError):
    """The path may be right, but this machine cannot access its bucket."""


def is_bucket_path(path: PurePath | str) -> bool:
    """Whether the path is on a bucket, not on a disk."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(path)) is not None


def make_path(*parts: PurePath | str) -> Any:
    """An etils.epath.Path, which has pathlib's methods. Listings are not cached: other processes write there too."""
    import fsspec.config
    from etils import epath

    for name in ("gs", "gcs", "s3"):
        fsspec.config.conf.setdefault(name, {}).setdefault("use_listings_cache", False)
    for library in LIBRARIES.values():
        logging.getLogger(library).setLevel(logging.CRITICAL)  # the errors that they log they also raise
    return epath.Path(*parts)


def check_access(field: str, path: str, schemes: Sequence[str], *, writable: bool) -> None:
    """Checks that this machine can read the bucket of a path or, if `writable`, write to it; leaves no object there.

    Raises:
        ConfigError: the path's scheme is not among `schemes`.
        BucketAccessError: the scheme's library is missing, or the bucket cannot be accessed.
    """
    scheme, _, rest = path.partition(":")
    rest = rest.lstrip("/")
    matches = difflib.get_close_matches(scheme.lower(), schemes, n=1)
    suggestion = f"{matches[0]}://{rest}" if matches and rest else ""
    kinds = ["a folder on a disk", *(f"{name}://BUCKET/FOLDER" for name in schemes)]
    errors.require(
        path == suggestion, field, path, " or ".join(kinds) + (f"; did you mean {suggestion!r}?" if suggestion else "")
    )
    bucket = rest.partition("/")[0]
    if not extras.is_installed(LIBRARIES[scheme]):
        raise BucketAccessError(f"{field} = {path!r}: expected {extras.format_hint(LIBRARIES[scheme], scheme)}")
    try:
        _probe(f"{scheme}://{bucket}", "" if writable else path)
    except (BucketError, FileNotFoundError) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "no such bucket" if missing else errors.first_line(error.__cause__ or error)
        raise BucketAccessError(
            f"{field} = {path!r}: expected a bucket to {'write to' if writable else 'read'} ({reason})"
        ) from None


@functools.lru_cache
def _probe(bucket, path_to_read):
    with translate_errors(bucket):
        if path_to_read:
            with contextlib.suppress(FileNotFoundError):
                get_filesystem(bucket).ls(path_to_read)
                return
            get_filesystem(bucket).ls(bucket)
        else:
            probe = f"{bucket}/.probe-{uuid.uuid4().hex}"
            get_filesystem(bucket).pipe_file(probe, b"")
            get_filesystem(bucket).rm_file(probe)


def get_filesystem(path: PurePath | str):
    """The fsspec file system of the path."""
    return _get_filesystem(str(path).partition("://")[0])


@functools.lru_cache
def _get_filesystem(scheme):
    import fsspec

    make_path(f"{scheme}://")
    return fsspec.filesystem("gcs" if scheme == "gs" else scheme)


@contextlib.contextmanager
def translate_errors(path: PurePath | str) -> Iterator[None]:
    """Turns what a library raises in the block into BucketError, but for FileNotFoundError and FileExistsError."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, BucketError, errors.ConfigError):
        raise
    except Exception as error:  # network, credentials, permissions
        raise BucketError(f"{path}: {errors.first_line(error) or type(error).__name__}; {RETRY_HINT}") from error


def describe_error(error: BaseException | None) -> str:
    """The message of an error that a bucket caused, "" for any other error.

    Orbax passes on its libraries' errors unchanged, and those of tensorstore as ValueError.
    """
    while error is not None:
        if isinstance(error, BucketError):
            return errors.first_line(error)
        text = errors.first_line(error)
        if type(error).__module__.partition(".")[0] in ERROR_MODULES or (type(error) is ValueError and "gs://" in text):
            return f"the bucket: {text or type(error).__name__}; {RETRY_HINT}"
        error = error.__cause__ or error.__context__
    return ""


def read(path: PurePath | str) -> bytes:
    """The object's content. Raises FileNotFoundError and BucketError, like all functions below."""
    with translate_errors(path):
        return get_filesystem(path).cat_file(str(path))


def write(path: PurePath | str, content: bytes, *, exclusive: bool = False) -> None:
    """Writes an object atomically.

    exclusive: raises FileExistsError if the object exists, provided that the store honors the condition
    (ifGenerationMatch=0, If-None-Match: *).
    """
    with translate_errors(path):
        get_filesystem(path).pipe_file(str(path), content, **{"mode": "create"} if exclusive else {})


def upload(file: Path, path: PurePath | str) -> None:
    """Uploads a file on a disk."""
    with translate_errors(path):
        get_filesystem(path).put_file(str(file), str(path))


def download(path: PurePath | str, file: Path) -> None:
    """Downloads an object to a file on a disk."""
    with translate_errors(path):
        get_filesystem(path).get_file(str(path), str(file))


def rename(path: PurePath | str, other: PurePath | str) -> None:
    """Copies, then removes: after a kill in between both exist, and a second call completes it."""
    with translate_errors(path):
        get_filesystem(path).cp_file(str(path), str(other))
        get_filesystem(path).rm_file(str(path))


def remove(path: PurePath | str) -> None:
    """Removes an object, or all objects below a name; does nothing if there is none."""
    with translate_errors(path), contextlib.suppress(FileNotFoundError):
        get_filesystem(path).rm(str(path), recursive=True)


def list_names(folder: PurePath | str) -> list[str]:
    """The names directly below a folder."""
    with translate_errors(folder), contextlib.suppress(FileNotFoundError):
        return sorted(PurePath(name).name for name in get_filesystem(folder).ls(str(folder), detail=False))
    return []


def modification_time(path: PurePath | str) -> datetime:
    """When an object was last written, by the bucket's clock."""
    with translate_errors(path):
        return get_filesystem(path).modified(str(path))
