"""Objects on cloud buckets, gs://BUCKET/NAME or s3://BUCKET/NAME, through fsspec, which itself retries what fails."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
import contextlib
import difflib
import functools
import logging
import re
import uuid
from collections.abc import Generator, Sequence
from pathlib import PurePath
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
    """Raises ConfigError unless this machine can read, or write to, the bucket of a path; leaves no object there.

    It is BucketAccessError if the library of one of `schemes` is missing or the bucket cannot be accessed.
    """
    scheme, _, rest = path.partition(":")
    rest = rest.lstrip("/")
    matches = difflib.get_close_matches(scheme.lower(), schemes, n=1)
    suggestion = f"{matches[0]}://{rest}" if matches and rest else ""
    kinds = ["a folder on a disk", *(f"{name}://BUCKET/FOLDER" for name in schemes)]
    hint = f"; did you mean {suggestion!r}?" if suggestion else ""
    errors.require(path == suggestion, field, path, " or ".join(kinds) + hint)
    bucket = rest.partition("/")[0]
    if not extras.is_installed(LIBRARIES[scheme]):
        raise BucketAccessError(f"{field} = {path!r}: expected {extras.format_hint(LIBRARIES[scheme], scheme)}")
    try:
        _probe(f"{scheme}://{bucket}", "" if writable else path)
    except (BucketError, FileNotFoundError) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "no such bucket" if missing else errors.first_line(error.__cause__ or error)
        use = "write to" if writable else "read"
        raise BucketAccessError(f"{field} = {path!r}: expected a bucket to {use} ({reason})") from None


@functools.lru_cache
def _probe(bucket: str, path_to_read: str) -> None:
    with connect(bucket) as filesystem:
        if path_to_read:
            with contextlib.suppress(FileNotFoundError):
                filesystem.ls(path_to_read)
                return
            filesystem.ls(bucket)
        else:
            probe = f"{bucket}/.probe-{uuid.uuid4().hex}"
            filesystem.pipe_file(probe, b"")
            filesystem.rm_file(probe)


@contextlib.contextmanager
def connect(path: PurePath | str) -> Generator[Any]:
    """Yields the path's fsspec file system; errors but of missing and existing files become BucketError."""
    try:
        yield get_filesystem(str(path).partition("://")[0])
    except (FileNotFoundError, FileExistsError, BucketError, errors.ConfigError):
        raise
    except Exception as error:  # network, credentials, permissions
        raise BucketError(f"{path}: {errors.first_line(error) or type(error).__name__}; {RETRY_HINT}") from error


@functools.lru_cache
def get_filesystem(scheme: str):
    """The fsspec file system of a scheme, made once."""
    import fsspec

    make_path(f"{scheme}://")
    return fsspec.filesystem("gcs" if scheme == "gs" else scheme)


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
