"""Files that are written atomically, and checked where they are opened: text, JSON, JSON lines.

A JSON object is written with its own SHA-256, and holds those of the larger files that belong to it: a run's result has
those of its held-out columns and its log, its config that of the tokenizer, a checkpoint's origin that of its arrays,
the manifest of a cache's folder those of the folder's files. A file whose digest differs raises DamagedFile. On a
bucket (storage.py) that cannot be reached files do not count as damaged: it raises buckets.BucketError.
"""

import contextlib
import hashlib
import json
import operator
import os
import tempfile
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any, cast

from mlm.base import buckets, errors, machine, warnings_
from mlm.base.storage import DISK, get_storage

MAX_REGULAR_BYTES = 2**28  # of a JSON file that somebody else made; tokenizers of many languages have some 2**24
DIGEST_KEY = "sha256_of_the_rest"  # in a JSON object: the digest of all other keys


class DamagedFile(errors.ConfigError):
    """A file is not what was written: it was truncated or changed since."""


class MissingDigest(DamagedFile):
    """A JSON object has no digest: perhaps an older version of mlm or another program wrote it, so it must stay."""


def make_path(*parts: PurePath | str) -> Path:
    """A path with pathlib's methods, on a disk or on a bucket."""
    return buckets.make_path(*parts) if get_storage(parts[0]).is_remote else Path(*parts)


def local_folder(path: Path) -> Path:
    """The folder on this machine's disk for local files of `path`: itself, or of a bucket one in the user's cache."""
    if not get_storage(path).is_remote:
        return path
    return Path(machine.cache_folder("") or Path(tempfile.gettempdir(), "mlm"), *path.parts[1:])


def make_absolute(path: Path) -> Path:
    """The path from the root, as a bucket's always is."""
    return path if get_storage(path).is_remote else path.absolute()


def expand_home(field: str, path: str) -> str:
    """The path with a home folder in place of `~` or `~USER` at its start. Raises ConfigError if there is none."""
    expanded = os.path.expanduser(path)
    first = expanded.partition("/")[0]
    exists = not first.startswith("~") or os.path.lexists(first)
    errors.require(exists, field, path, f"a path; there is no home folder {first}")
    return expanded


def check_folder(field: str, path: str, *, writable: bool = True, schemes: Sequence[str] = ()) -> None:
    """Raises ConfigError, naming the field, unless the path is a folder, or one could be made there; makes nothing.

    writable: False if a folder that can only be read is enough; schemes: those of the buckets that it may be on.
    """
    errors.require(path.strip() != "", field, path, "the path of a folder")
    if get_storage(path).is_remote or path.startswith(tuple(f"{scheme}:" for scheme in buckets.LIBRARIES)):
        buckets.check_access(field, path, schemes, writable=writable)
        return
    parent = Path(os.path.abspath(path))
    is_short = len(os.fsencode(parent)) < 4000 and all(len(os.fsencode(part)) <= 255 for part in parent.parts)
    errors.require(is_short, field, path, "a path of less than 4000 bytes whose parts have at most 255 bytes each")
    while not os.path.lexists(parent):
        parent = parent.parent
    errors.require(parent.is_dir(), field, path, f"the path of a folder; {parent} is not a folder")
    can_write = not writable or os.access(parent, os.W_OK | os.X_OK)
    errors.require(can_write, field, path, f"a folder to write in; {parent} is not writable")


def check_empty_folder(field: str, path: str) -> None:
    """Raises ConfigError unless this path is an empty folder, or one can be made there."""
    check_folder(field, path)
    errors.require(not os.path.isdir(path) or not os.listdir(path), field, path, "an empty or new folder")


def atomic_write(path: Path) -> contextlib.AbstractContextManager[Path]:
    """Yields a temporary path to write to, on a disk; moves that file to `path` if the block succeeds."""
    return get_storage(path).write_atomic(path)


@contextlib.contextmanager
def atomic_folder(path: Path | str) -> Generator[Path]:
    """Yields a new folder on a disk; moves it to `path`, empty or missing, if the block succeeds, else removes it."""
    path = Path(os.path.abspath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as parent:
        temporary = Path(parent, path.name)
        temporary.mkdir()
        yield temporary
        temporary.rename(path)


def rename_with_suffix(path: Path, suffix: str) -> None:
    """Renames a file if it exists: with the suffix "1000", result.json becomes result-1000.json."""
    with contextlib.suppress(FileNotFoundError):
        get_storage(path).rename(path, path.with_stem(f"{path.stem}-{suffix}"))


def read_bytes(path: Path | str) -> bytes:
    """Raises OSError; on a bucket also BucketError."""
    return get_storage(path).read(path)


def read_regular_file(path: Path) -> bytes:
    """The content of a file that somebody else made. Raises OSError for a pipe, a device or too large a file."""
    return DISK.read(path, MAX_REGULAR_BYTES)


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object in a file that somebody else made. Raises ConfigError for a missing file and for anything else."""
    with errors.explain(str(path), "a file", OSError), errors.explain(str(path), "JSON", ValueError, RecursionError):
        content = json.loads(read_regular_file(path))
    errors.require(isinstance(content, dict), str(path), content, "a JSON object")
    return content


def write_text(path: Path, text: str) -> None:
    """Writes a text file in one piece: readers see the old one or the new one."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file as `write_text` does."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def compute_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. Raises OSError; on a bucket also BucketError."""
    if get_storage(path).is_remote:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, sha256: str) -> None:
    """Raises DamagedFile unless the file has this digest."""
    try:
        is_intact = compute_sha256(path) == sha256
    except OSError as error:
        raise DamagedFile(f"{path} is damaged: {errors.describe_error(error)}") from None
    if not is_intact:
        raise DamagedFile(f"{path} is damaged: it is not what was written")


def json_sha256(value: Any) -> str:
    """The digest of a JSON value, the same for every layout and order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def add_digest(value: dict[str, Any]) -> dict[str, Any]:
    """The JSON object with its own digest added."""
    return {**value, DIGEST_KEY: json_sha256(json.loads(json.dumps(value)))}


def verify_digest(value: Any, name: Path | str) -> dict[str, Any]:
    """The object that `add_digest` was given. Raises DamagedFile, which names the file, if it has changed since."""
    if not isinstance(value, dict) or not value:
        raise DamagedFile(f"{name} is damaged: it is no JSON object")
    entries = cast(dict[str, Any], value)
    if DIGEST_KEY not in entries:
        raise MissingDigest(f"{name} lacks its digest: it is damaged, or of an older version; move it away")
    content = {key: item for key, item in entries.items() if key != DIGEST_KEY}
    if entries[DIGEST_KEY] != json_sha256(content):
        raise DamagedFile(f"{name} is damaged: its digest does not match")
    return content


def write_json_with_digest(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object with its own digest, which `read_json_with_digest` checks."""
    write_json(path, add_digest(value))


def read_json_with_digest(path: Path) -> dict[str, Any] | None:
    """The object that `write_json_with_digest` wrote; None if there is no file. Raises DamagedFile if it changed."""
    try:
        value = json.loads(read_bytes(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: {errors.describe_error(error)}") from None
    return verify_digest(value, path)


@contextlib.contextmanager
def recover_damaged() -> Generator[None]:
    """Warns of a damaged file, which then counts as missing. A JSON file without a digest stays and is an error."""
    try:
        yield
    except MissingDigest:
        raise
    except DamagedFile as damaged:
        warnings_.warn_once(f"{damaged}; it is made again")


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Writes a file of records, a line each."""
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def read_complete_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of a log, each with an integer "step", and a message for each damaged line.

    A missing file has no lines. A last line without its newline, left by a kill, is skipped silently.
    """
    try:
        lines = read_bytes(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{path} is damaged: {errors.describe_error(error)}"]
    records: list[dict[str, Any]] = []
    messages: list[str] = []
    for number, text in enumerate(lines, 1):
        try:
            record = json.loads(text)
            record.pop("crc32", None)  # of an earlier version
            operator.index(record["step"])
            records.append(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            messages.append(f"{path} is damaged: line {number}: {errors.describe_error(error)}")
    return records, messages


def read_records(path: Path) -> list[dict[str, Any]]:
    """Like `read_complete_lines`, but raises DamagedFile for a damaged line."""
    records, messages = read_complete_lines(path)
    if messages:
        raise DamagedFile(messages[0])
    return records
