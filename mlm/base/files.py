"""Files that are whole or not there, and say so when they are no longer what was written: text, JSON, JSON lines.

They lie on a disk or on a bucket (buckets.py). What a disk does by renaming, appending and locking, a bucket does thus:
a file is written aside on the disk and put whole in one request; its name is changed by a copy, then a removal; lines
are kept here and put together, all of them, every now and then; a folder is held by a lease (lease.py). What is read
or listed there is what was put last. What cannot be reached is not taken to be damaged: buckets.Unreachable is raised.
"""
import contextlib
import difflib
import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

from mlm.base import buckets, errors, lease

SEAL = "sha256_of_the_rest"  # in a JSON object: of all that stands beside it
CHECK = "crc32"              # the same in a line
EVERY, SHARE = 10.0, 0.02    # lines are put on a bucket every so many seconds at most, in that share of the time


class Damaged(errors.ConfigError):
    """A file is not what was written: torn, emptied or changed since."""


class OutdatedFormat(Damaged):
    """A file may be whole, but was written by a version that gave it no digest."""


def path(*parts: PurePath | str) -> Path:
    """A pathlib.Path of what is on a disk, an etils.epath.Path, which is used alike, of what is on a bucket."""
    return buckets.path(*parts) if buckets.is_one(parts[0]) else Path(*parts)


def absolute(path: Path) -> Path:
    return path if buckets.is_one(path) else path.absolute()


def here(path: Path) -> Path:
    """The folder on this machine for what belongs to one but must be on a disk: itself, or in the user's cache."""
    if not buckets.is_one(path):
        return path
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(tempfile.gettempdir() if cache.startswith("~") else cache, "mlm", *path.parts[1:])


def check_folder(field: str, path: str, *, writing: bool = True, schemes: Sequence[str] = ()) -> None:
    """Raises ConfigError unless a folder is at this path or could be made there, and written to; makes nothing.

    writing: False where it may be that nothing has to be written. schemes: of the buckets that it may be on.
    """
    errors.require(path.strip() != "", field, path, "the path of a folder")
    if buckets.is_one(path) or path.startswith(tuple(f"{scheme}:" for scheme in buckets.LIBRARIES)):
        buckets.check(field, path, schemes, writing=writing)
        return
    long = [part for part in Path(path).parts if len(os.fsencode(part)) > 255]
    errors.require(not long and len(os.fsencode(os.path.abspath(path))) < 4000, field, path,
                  "a path of less than 4000 bytes, each name in it of at most 255")
    above = Path(os.path.abspath(path))
    while not os.path.lexists(above):
        above = above.parent
    errors.require(above.is_dir(), field, path, f"a folder, or a place for one; {above} is none")
    errors.require(not writing or os.access(above, os.W_OK | os.X_OK), field, path,
                  f"a folder to write in; {above} cannot be written")


def check_empty(field: str, path: str) -> None:
    """Raises ConfigError unless a folder can be made at this path, or lies there and holds nothing."""
    check_folder(field, path)
    errors.require(not os.path.isdir(path) or not os.listdir(path), field, path, "an empty folder, or none yet")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to, renamed to it when the block ends well and removed when it does not.

    The place has path's ending, by which libraries know a format; it is always on a disk.
    """
    if buckets.is_one(path):
        with tempfile.TemporaryDirectory() as above:
            aside = Path(above, PurePath(path).name)
            yield aside
            lease.check(path)
            buckets.put(aside, path)
        return
    path = Path(path)
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield aside
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """A folder beside `path` to write into, which takes its place when the block ends well and is removed when it does
    not. What lies at `path` is empty, or nothing. On a disk alone."""
    path = Path(os.path.abspath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as above:
        aside = Path(above, path.name)
        aside.mkdir()
        yield aside
        aside.rename(path)


def set_aside(path: Path, mark: str) -> None:
    """Renames a file, where it is there: result.json by the mark "1000" to result-1000.json."""
    other = path.with_stem(f"{path.stem}-{mark}")
    with contextlib.suppress(FileNotFoundError):
        if buckets.is_one(path):
            lease.check(path)
            buckets.rename(path, other)
        else:
            path.rename(other)


def make_folder(path: Path) -> None:
    """Where there is none; on a bucket a folder is nothing but the beginning of names."""
    if not buckets.is_one(path):
        path.mkdir(parents=True, exist_ok=True)


def remove_folder(path: Path) -> None:
    """With all that it holds; what cannot be removed stays."""
    if buckets.is_one(path):
        lease.check(path)
        buckets.remove(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def content(path: Path | str) -> bytes:
    """Raises OSError, and Unreachable of a bucket."""
    return buckets.read(path) if buckets.is_one(path) else Path(path).read_bytes()


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, value) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def sha256(value) -> str:
    """Of a JSON value, however it is laid out."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def seal(value: dict) -> dict:
    """A JSON object with the digest of what it holds."""
    return {**value, SEAL: sha256(json.loads(json.dumps(value)))}


def unseal(value, name: Path | str) -> dict:
    """The object that was sealed. Raises Damaged, by the name of what holds it, where it is another."""
    if not isinstance(value, dict) or not value:
        raise Damaged(f"{name} is damaged: it lacks its digest")
    if SEAL not in value:
        if difflib.get_close_matches(SEAL, value, 1, 0.9):
            raise Damaged(f"{name} is damaged: it lacks its digest")
        raise OutdatedFormat(f"{name} lacks its digest: an older version wrote it; move what is there away to make it again")
    rest = {key: one for key, one in value.items() if key != SEAL}
    if value[SEAL] != sha256(rest):
        raise Damaged(f"{name} is damaged: it is not what its digest is of")
    return rest


def write_sealed(path: Path, value: dict) -> None:
    write_json(path, seal(value))


def read_sealed(path: Path) -> dict | None:
    """The object that `write_sealed` wrote, or None where there is no file. Raises Damaged where it is another."""
    try:
        value = json.loads(content(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} is damaged: {brief(error)}") from None
    return unseal(value, path)


def brief(error: Exception) -> str:
    """What an error says in one line, without the path where it names one."""
    return getattr(error, "strerror", None) or errors.first_line(error) or type(error).__name__


def line(record: dict) -> str:
    """A record as a line of JSON that carries its own checksum."""
    text = json.dumps(record)
    return json.dumps({**record, CHECK: _crc32(json.loads(text))}) + "\n"


def _crc32(record) -> str:
    return f"{zlib.crc32(json.dumps(record, sort_keys=True).encode()):08x}"


def write_lines(path: Path, records: Iterable[dict]) -> None:
    write_text(path, "".join(map(line, records)))


def complete_lines(path: Path) -> tuple[list[dict], list[str]]:
    """The records of the lines that are as they were written, and for each other line what is wrong with it.

    No file: none. A last line without its end, torn by a kill, is left out without a word.
    """
    try:
        lines = content(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{path} is damaged: {brief(error)}"]
    records, faults = [], []
    for number, text in enumerate(lines, 1):
        try:
            record = json.loads(text)
            if record.pop(CHECK) != _crc32(record):
                raise ValueError("it is not what its checksum is of")
            records.append(record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            faults.append(f"{path} is damaged: line {number}: "
                          + (brief(error) if isinstance(error, ValueError) else "it lacks its checksum"))
    return records, faults


def read_lines(path: Path) -> list[dict]:
    """As `whole_lines`; raises Damaged for a line that is not as it was written."""
    records, faults = complete_lines(path)
    if faults:
        raise Damaged(faults[0])
    return records


class Lines:
    """A file of records that grows, a line each.

    On a disk a line is there at once, on a bucket with the next that are put: when one asks for it, and by time.
    """

    def __init__(self, path: Path, records: Iterable[dict]):
        """records: those that the file is to hold at first."""
        self.path, self.remote = path, buckets.is_one(path)
        self.kept = [line(record) for record in records]
        write_text(path, "".join(self.kept))
        self.last, self.took, self.waiting = time.monotonic(), 0.0, False
        self.file = None if self.remote else path.open("a", encoding="utf-8")

    def add(self, record: dict, now: bool = False) -> bool:
        """Returns whether they were put on a bucket."""
        if self.file is not None:
            self.file.write(line(record))
            self.file.flush()
            return False
        lease.check(self.path)
        self.kept.append(line(record))
        self.waiting = True
        if not now and time.monotonic() - self.last < max(EVERY, self.took / SHARE):
            return False
        self.put()
        return True

    def put(self) -> None:
        began, self.waiting = time.monotonic(), False  # what fails is not tried again at the end
        write_text(self.path, "".join(self.kept))
        self.last = time.monotonic()
        self.took = self.last - began

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        if self.waiting:
            self.put()


class Mirror:
    """A folder that a library writes to, which must be on a disk: it is `here`, and on a bucket what `put` copies."""

    def __init__(self, path: Path):
        self.path, self.remote = path, buckets.is_one(path)
        self.here = Path(tempfile.mkdtemp()) if self.remote else path

    def put(self) -> None:
        if self.remote:
            lease.check(self.path)
            for file in sorted(self.here.iterdir()):
                buckets.put(file, self.path / file.name)

    def close(self) -> None:
        if self.remote:
            shutil.rmtree(self.here, ignore_errors=True)
