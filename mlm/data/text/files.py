"""Text files as streams of documents: .gz and plain UTF-8, read a line at a time."""
import codecs
import difflib
import glob
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from mlm.base import errors
from mlm.data.text.trouble import Trouble

MAX_DOCUMENT = 2 ** 24  # characters; a longer document is cut, so that memory stays bounded whatever the file

Boundary = Callable[[str], bool]  # line -> whether it starts a document


def boundary(field: str, name: str) -> Boundary:
    """What `name` says of where documents end: "file", "blank_line", or a regular expression of their first lines."""
    if name == "file":
        return lambda line: False
    if name == "blank_line":
        return lambda line: not line.strip()
    try:
        heading = re.compile(name)
    except re.error as error:
        raise errors.ConfigError(f"{field} = {name!r}: expected file, blank_line or a regular expression "
                                 f"({error})") from None
    return lambda line: heading.fullmatch(line.removesuffix("\n")) is not None


def find(field: str, patterns: str) -> list[str]:
    """The files that globs, separated by commas, name: each once, sorted.

    Raises errors.ConfigError for a glob that matches no file, with the nearest name there is.
    """
    paths = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        found = [path for path in glob.glob(os.path.expanduser(pattern), recursive=True) if os.path.isfile(path)]
        if not found:
            raise errors.ConfigError(f"{field} = {patterns!r}: no file matches {pattern!r}{_nearest(pattern)}")
        paths.update(found)
    errors.expect(bool(paths), field, patterns, "globs of text files, separated by commas")
    return sorted(paths)


def _nearest(pattern):
    path = Path(os.path.expanduser(pattern))
    if path.is_dir():
        return f"; did you mean {str(path / '*.txt')!r}?"
    while not path.parent.is_dir():
        path = path.parent
    near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1, cutoff=0.6)
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


def sha256(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def read(paths: list[str], starts: Boundary) -> Iterator[str]:
    """The documents of the files, stripped, never empty; memory holds one document of at most MAX_DOCUMENT characters.

    Bytes that are not UTF-8 become U+FFFD; they, empty files and documents cut for their length are counted in a
    warning. Raises errors.ConfigError for a file that cannot be read to its end.
    """
    undecodable = Trouble("lines with bytes that are not UTF-8, replaced by U+FFFD")
    empty = Trouble("empty files")
    long = Trouble(f"documents longer than {MAX_DOCUMENT} characters, cut")
    for path in paths:
        found = False
        for document in _documents(path, starts, undecodable, long):
            if document := document.strip():
                found = True
                yield document
        if not found:
            empty.add(f"{path} at byte 0")
    for kind in (undecodable, empty, long):
        kind.report()


def _documents(path, starts, undecodable, long):
    parts, size = [], 0
    for offset, line in _lines(path, undecodable):
        start = starts(line)
        if size and size + len(line) > MAX_DOCUMENT and not start:
            long.add(f"{path} at byte {offset}")
            start = True
        if start:
            yield "".join(parts)
            parts, size = [], 0
        parts.append(line)
        size += len(line)
    yield "".join(parts)


def _lines(path, undecodable) -> Iterator[tuple[int, str]]:
    """Pairs (byte offset, line), in pieces where a line is longer than a document may be."""
    offset, rest = 0, b""
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            while raw := file.readline(MAX_DOCUMENT):
                raw = rest + raw
                try:
                    line, used = codecs.utf_8_decode(raw, "strict", False)  # False: a character cut in two is left over
                except UnicodeDecodeError as error:
                    undecodable.add(f"{path} at byte {offset + error.start}")
                    line, used = codecs.utf_8_decode(raw, "replace", False)
                yield offset, (line.removeprefix("\ufeff") if offset == 0 else line).replace("\r\n", "\n")
                offset, rest = offset + used, raw[used:]
        if rest:
            undecodable.add(f"{path} at byte {offset}")
            yield offset, rest.decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as error:
        raise errors.ConfigError(f"config.data: cannot read {path} on from byte {offset} of its text ({error}); "
                                 "expected a whole, readable file") from None
