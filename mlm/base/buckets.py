"""Places on a bucket, gs://BUCKET/NAME or s3://BUCKET/NAME, by fsspec's file systems: what is asked of them and how
they fail. To try again is theirs."""
import contextlib
import difflib
import functools
import importlib.util
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path, PurePath

from mlm.base import errors

LIBRARIES = {"gs": "gcsfs", "s3": "s3fs"}  # by scheme, which is also the name of the extra that installs it


ERRORS = {*LIBRARIES.values(), "aiobotocore", "aiohttp", "botocore", "google", "requests"}  # whose are a bucket's
CONTINUES = "the same command continues once it can be reached"


class Unreachable(Exception):
    """A bucket did not do what it was asked to."""


class OutOfReach(errors.ConfigError):
    """A place may be right, but its bucket cannot be asked from here."""


def is_one(place: PurePath | str) -> bool:
    """Whether a place is on a bucket, not on a disk."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(place)) is not None


def path(*parts: PurePath | str):
    """An etils.epath.Path, which has pathlib's methods. Its lists are read anew each time: others write there too."""
    import fsspec
    from etils import epath

    for name in ("gs", "gcs", "s3"):
        fsspec.config.conf.setdefault(name, {}).setdefault("use_listings_cache", False)
    for library in LIBRARIES.values():
        logging.getLogger(library).setLevel(logging.CRITICAL)  # what they log of an error they raise too
    return epath.Path(*parts)


def check(field: str, place: str, schemes: Sequence[str], *, writing: bool) -> None:
    """Raises ConfigError for a scheme that is none of these, and OutOfReach for a library that is missing and a bucket
    that cannot be read, or written to. A written object is taken away at once."""
    scheme, _, rest = place.partition(":")
    rest = rest.lstrip("/")
    near = difflib.get_close_matches(scheme.lower(), schemes, n=1)
    right = f"{near[0]}://{rest}" if near and rest else ""
    errors.require(place == right, field, place, " or ".join(["a folder on a disk", *(f"{one}://BUCKET/FOLDER"
                  for one in schemes)]) + (f"; did you mean {right!r}?" if right else ""))
    bucket = rest.partition("/")[0]
    if importlib.util.find_spec(LIBRARIES[scheme]) is None:
        raise OutOfReach(f"{field} = {place!r}: expected the library {LIBRARIES[scheme]} to reach it by "
                         f"(pip install -e .[{scheme}])")
    try:
        _tried(f"{scheme}://{bucket}", "" if writing else place)
    except (Unreachable, FileNotFoundError) as error:
        why = "there is none" if isinstance(error, FileNotFoundError) else errors.first_line(error.__cause__ or error)
        raise OutOfReach(f"{field} = {place!r}: expected a bucket to {'write to' if writing else 'read'} "
                                 f"({why})") from None


@functools.lru_cache
def _tried(bucket, reading):
    with asked(bucket):
        if reading:
            with contextlib.suppress(FileNotFoundError):
                system(bucket).ls(reading)
                return
            system(bucket).ls(bucket)
        else:
            probe = f"{bucket}/.probe-{uuid.uuid4().hex}"
            system(bucket).pipe_file(probe, b"")
            system(bucket).rm_file(probe)


def system(place: PurePath | str):
    """The file system of fsspec that a place is on."""
    return _system(str(place).partition("://")[0])


@functools.lru_cache
def _system(scheme):
    import fsspec

    path(f"{scheme}://")
    return fsspec.filesystem("gcs" if scheme == "gs" else scheme)


@contextlib.contextmanager
def asked(place: PurePath | str) -> Iterator[None]:
    """Whatever a library raises in this block is Unreachable, but for what is not there, or is there already."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, Unreachable, errors.ConfigError):
        raise
    except Exception as error:  # of the network, of who one is, of what one may
        raise Unreachable(f"{place}: {errors.first_line(error) or type(error).__name__}; {CONTINUES}") from error


def unreachable(error: BaseException | None) -> str:
    """What is to be said of an error that has to do with a bucket: orbax raises its libraries' as they are, and those
    of tensorstore as ValueError. "" of any other."""
    while error is not None:
        if isinstance(error, Unreachable):
            return errors.first_line(error)
        text = errors.first_line(error)
        if type(error).__module__.partition(".")[0] in ERRORS or (type(error) is ValueError and "gs://" in text):
            return f"the bucket: {text or type(error).__name__}; {CONTINUES}"
        error = error.__cause__ or error.__context__
    return ""


def read(place: PurePath | str) -> bytes:
    """Raises FileNotFoundError, and Unreachable, as all below do."""
    with asked(place):
        return system(place).cat_file(str(place))


def write(place: PurePath | str, content: bytes, *, new: bool = False) -> None:
    """Writes an object, which is whole or as it was before. new: raises FileExistsError where it is there, if the
    store heeds that condition (ifGenerationMatch=0, If-None-Match: *)."""
    with asked(place):
        system(place).pipe_file(str(place), content, **{"mode": "create"} if new else {})


def put(file: Path, place: PurePath | str) -> None:
    """Writes what is in a file on a disk."""
    with asked(place):
        system(place).put_file(str(file), str(place))


def get(place: PurePath | str, file: Path) -> None:
    """Writes an object to a file on a disk."""
    with asked(place):
        system(place).get_file(str(place), str(file))


def rename(place: PurePath | str, other: PurePath | str) -> None:
    """Copies, then removes: one that is killed between has both, and does it again."""
    with asked(place):
        system(place).cp_file(str(place), str(other))
        system(place).rm_file(str(place))


def remove(place: PurePath | str) -> None:
    """Removes an object, or all below a name; nothing where there is none."""
    with asked(place), contextlib.suppress(FileNotFoundError):
        system(place).rm(str(place), recursive=True)


def names(folder: PurePath | str) -> list[str]:
    """Of what lies right below a name."""
    with asked(folder), contextlib.suppress(FileNotFoundError):
        return sorted(PurePath(name).name for name in system(folder).ls(str(folder), detail=False))
    return []


def changed(place: PurePath | str) -> datetime:
    """When an object was written last, by the bucket's clock."""
    with asked(place):
        return system(place).modified(str(place))
