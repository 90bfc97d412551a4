"""Files as streams of documents: plain UTF-8, read a line at a time, and records; compressed or not."""

import codecs
import concurrent.futures
import contextlib
import glob
import io
import itertools
import os
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import regex

from mlm.base import errors, text_files
from mlm.base import files as base_files
from mlm.base.warnings_ import WarningCounter
from mlm.data.text import records, remote_files

MAX_DOCUMENT_LENGTH = 2**22  # characters; a longer document is cut, so that memory stays bounded whatever the file
LONG_DOCUMENTS = f"documents longer than {MAX_DOCUMENT_LENGTH} characters, cut"
LINE_PIECE_BYTES = 2**20  # bytes of a line that are read at a time
BLOCK_BYTES = 2**16  # bytes of complete lines
MAX_HEADING_LENGTH = 10_000  # characters; no longer line starts a document
REGEX_TIMEOUT_SECONDS = 1  # that a regular expression may take for a line
NOT_UTF8 = "lines with bytes that are not UTF-8, replaced by U+FFFD"
SETTLED_NS = 2 * 10**9  # age at which a later change of a file changes its time, however coarse its file system's clock


Boundary = Callable[[str], Sequence[int]]  # complete lines -> where those begin that start a document
BLANK_LINE = re.compile(r"\n(?=[^\S\n]*\n|[^\S\n]+\Z)")  # after the end of another


class Document(NamedTuple):
    """A text, and the id that its row has in a file of records."""

    text: str
    id: str = ""  # "": none


class FilePart(NamedTuple):
    """A file, or whole documents of one: its bytes from `start` to `end`; None: to its end."""

    path: str
    start: int = 0
    end: int | None = None

    @property
    def num_bytes(self) -> int:
        """Its size in the file, compressed or not."""
        return (os.path.getsize(self.path) if self.end is None else self.end) - self.start


def make_boundary(field: str, name: str) -> Boundary:
    """What `name` says of where documents end: "file", "line", "blank_line", or a regular expression of first lines.

    Raises errors.ConfigError for what is no regular expression; the function, for one that takes too long on a line.
    """
    named: dict[str, Boundary] = {
        "file": lambda text: (),
        "line": _locate_lines,
        "blank_line": lambda text: [found.start() for found in BLANK_LINE.finditer("\n" + text)],
    }
    if name in named:
        return named[name]
    place, expected = f"{field} = {errors.format_value(name)}", "file, line, blank_line or a regular expression"
    with errors.explain(place, expected, regex.error, RecursionError, OverflowError):
        heading = regex.compile(name)

    def is_heading(line):
        if len(line) > MAX_HEADING_LENGTH:
            return False
        try:
            return heading.fullmatch(line.removesuffix("\n"), timeout=REGEX_TIMEOUT_SECONDS) is not None
        except TimeoutError:
            expected = f"a regular expression that takes less than {REGEX_TIMEOUT_SECONDS} s a line"
            slow = f"it takes more for {errors.format_value(line[:60])}"
            raise errors.ConfigError(f"{place}: expected {expected}; {slow}") from None

    return lambda text: list(itertools.compress(_locate_lines(text), map(is_heading, _iterate_lines(text))))


def find_files(field: str, patterns: str, text_column: str = "") -> list[str]:
    """The text files that paths and globs, separated by commas, name: each once, sorted.

    As much of a path as is there is taken as it stands, whatever characters it has. Raises errors.ConfigError for a
    glob that matches no file, with the nearest name there is, for files that are all empty, and for one that is no
    plain text. Remote files are copied to this machine first (remote_files.py).

    text_column: of files of records (mlm/data/text/records.py), which are then taken too, and all files of a folder.
    """
    paths = dict[str, str]()  # by where they lie
    local = (remote_files.fetch_files(field, pattern) for pattern in text_files.split_paths(patterns))
    for pattern in itertools.chain.from_iterable(local):
        literal, rest = os.path.expanduser(pattern), ""
        while literal and not os.path.exists(literal):
            literal, slash, last = literal.rpartition("/")
            rest = slash + last + rest
        named = glob.glob(glob.escape(literal) + rest, recursive=True)
        found = [path for path in named if os.path.isfile(path)]
        folders = [Path(path) for path in named if os.path.isdir(path)]
        if text_column:
            found += [str(path) for folder in folders for path in records.list_folder(field, folder)]
        if not found:
            reason = "; the folder has no text" if text_column and folders else text_files.suggest_path(pattern)
            raise errors.ConfigError(f"{field} = {patterns!r}: no file matches {pattern!r}{reason}")
        paths |= {os.path.abspath(path): path for path in found}
    errors.require(bool(paths), field, patterns, "globs of text files, separated by commas")
    errors.require(any(map(os.path.getsize, paths)), field, patterns, "text; there is not a byte in it")
    for path in paths.values():
        records.check_file(field, path, text_column)
    return sorted(paths.values())


def file_digest(path: str) -> bytes:
    """The SHA-256 of a file, as bytes."""
    return bytes.fromhex(base_files.compute_sha256(Path(path)))


def hash_files(paths: Sequence[str], cache_dir: str) -> list[bytes]:
    """The SHA-256 of each file, as bytes; of files with the size and time of an earlier call, what that one found.

    cache_dir: the folder that keeps digests; where there is none, all files are hashed. Raises OSError.
    """
    paths = [os.path.abspath(path) for path in paths]
    memo, now = _make_digests_path(cache_dir, paths), time.time_ns()
    states = [[status.st_size, status.st_mtime_ns] for status in map(os.stat, paths)]
    known = {}
    with contextlib.suppress(base_files.DamagedFile):
        known = (base_files.read_json_with_digest(memo) or {}).get("files", {})
    new = [path for path, state in zip(paths, states, strict=True) if known.get(path, [])[:2] != state]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        hashed = dict(zip(new, pool.map(base_files.compute_sha256, map(Path, new)), strict=True))
    digests = [hashed.get(path) or known[path][2] for path in paths]
    if new and memo.parent.is_dir():
        entries = zip(paths, states, digests, strict=True)
        settled = {path: [*state, digest] for path, state, digest in entries if state[1] < now - SETTLED_NS}
        with contextlib.suppress(OSError):  # a cache that is only read
            base_files.write_json_with_digest(memo, {"files": settled})
    return [bytes.fromhex(digest) for digest in digests]


def forget_digests(cache_dir: str) -> None:
    """Removes all digests, so that each file is hashed again."""
    for path in _make_digests_path(cache_dir, ()).parent.glob("sources-*.json"):
        path.unlink(missing_ok=True)


def _make_digests_path(cache_dir, paths) -> Path:
    folder = base_files.local_folder(base_files.make_path(cache_dir))
    return folder / f"sources-{base_files.json_sha256(list(paths))[:16]}.json"


def divide_file(path: str, boundary: Boundary | None, num_bytes: int) -> list[FilePart]:
    """Parts of about so many bytes of a file, each from the beginning of a document or, in Parquet, of a row group on.

    A file that is not `records.is_divisible`, and a text in which no line starts a document, stay whole.

    boundary: of text; None: a file of text is one document.
    """
    size = os.path.getsize(path)
    if size <= num_bytes or not records.is_divisible(path):
        return [FilePart(path)]
    kind, starts = records.detect_kind(path), [0]
    if kind == records.PARQUET:
        for place in records.locate_row_groups(path)[1:]:
            if place >= starts[-1] + num_bytes:
                starts.append(place)
    elif kind == records.JSON:
        starts = _find_lines(path, num_bytes, lambda line: [0])
    elif boundary:
        starts = _find_lines(path, num_bytes, boundary)
    if len(starts) == 1:
        return [FilePart(path)]
    return [FilePart(path, start, end) for start, end in itertools.pairwise([*starts, size])]


def _find_lines(path, num_bytes, boundary) -> list[int]:
    """Where parts of a file of lines begin: at lines that start a document, the first at 0."""
    size, starts = os.path.getsize(path), [0]
    with open(path, "rb") as file:
        for target in range(num_bytes, size, num_bytes):
            file.seek(max(target, starts[-1] + 1) - 1)
            line = b""
            while file.tell() < min(target + num_bytes, size):
                begins, first = line.endswith(b"\n"), file.tell()
                line = file.readline(LINE_PIECE_BYTES)
                text = line.decode("utf-8", "replace").replace("\0", "").replace("\r\n", "\n")
                if begins and boundary(text):
                    starts.append(first)
                    break
    return starts


def read_documents(
    paths: Sequence[str | FilePart],
    boundary: Boundary,
    word_separator: str = "",
    text_column: str = "",
    id_column: str = "",
) -> Generator[Document, None, bool]:
    """The documents of the files, stripped, never empty; memory holds one of at most MAX_DOCUMENT_LENGTH characters.

    text_column: of files of records, of which each row is a document; "": all files are text. id_column: of the ids.

    Returns, at the end, whether a line started a document. Bytes that are not UTF-8 become U+FFFD; they, empty files
    and documents that are cut are counted in a warning. Raises ConfigError for a file that cannot be read to its end.
    """
    faults, started = WarningCounter(), [False]
    for path in paths:
        part = FilePart(path) if isinstance(path, str) else path
        found, path = False, part.path
        kind = records.detect_kind(path) if text_column else records.TEXT
        if kind == records.TEXT:
            texts = _split_documents(_read_blocks(part, faults), boundary, path, faults, started)
            documents = zip(texts, itertools.repeat(""), strict=False)
        else:
            documents, started[0] = _read_rows(part, kind, text_column, id_column, faults), True
        for text, name in documents:
            if text := (text.replace(word_separator, " ") if word_separator else text).strip():
                found = True
                yield Document(text, name)
        if not found:
            faults.add("empty files, or parts of them", f"{path} at byte {part.start}")
    faults.report()
    return started[0]


def _read_rows(part, kind, text_column, id_column, faults) -> Iterator[tuple[str, str]]:
    """The documents of a file of records; one that is too long in pieces."""
    for where, text, name in records.read_rows(part.path, kind, text_column, id_column, part.start, part.end):
        text = text_files.SURROGATE.sub("\ufffd", (text or "").replace("\r\n", "\n").replace("\0", ""))
        if not text.strip():
            faults.add("rows without text", where)
        if len(text) > MAX_DOCUMENT_LENGTH:
            faults.add(LONG_DOCUMENTS, where)
        for start in range(0, len(text), MAX_DOCUMENT_LENGTH):
            yield text[start : start + MAX_DOCUMENT_LENGTH], name


def read_lines(paths: list[str]) -> Iterator[str]:
    """All lines of the files as they stand, a long one in pieces. Warns and raises as `read_documents` does."""
    faults = WarningCounter()
    for path in paths:
        for _, text in _read_blocks(FilePart(path), faults):
            yield from _iterate_lines(text)
    faults.report()


def _split_documents(blocks, boundary, path, faults, started) -> Iterator[str]:
    parts, size, begins = [], 0, True
    for offset, text in blocks:
        first = 0 if begins else text.find("\n") + 1 or len(text)  # after what is left of a line
        starts = [first + start for start in boundary(text[first:])]
        started[0] |= bool(starts)
        begins = text.endswith("\n") if text else begins  # nothing is left of a piece of NULs
        rest, *documents = [text[start:end] for start, end in itertools.pairwise([0, *starts, len(text)])]
        for part in [rest] if size + len(rest) <= MAX_DOCUMENT_LENGTH else _iterate_lines(rest):
            if size + len(part) > MAX_DOCUMENT_LENGTH and size:
                faults.add(LONG_DOCUMENTS, f"{path} at byte {offset}")
                yield "".join(parts)
                parts, size = [], 0
            parts.append(part)
            size += len(part)
        if documents:
            yield "".join(parts)
            yield from documents[:-1]
            parts, size = documents[-1:], len(documents[-1])
    yield "".join(parts)


def _read_blocks(part, faults) -> Iterator[tuple[int, str]]:
    """Pairs (byte offset, text) of complete lines; where bytes are faulty, of one line, or LINE_PIECE_BYTES of it."""
    path, offset, rest, limit = part.path, part.start, b"", min(LINE_PIECE_BYTES, MAX_DOCUMENT_LENGTH)
    try:
        with records.open_file(path) as file:
            if part.start:
                file.seek(part.start)
            count_left = lambda: limit if part.end is None else part.end - file.tell()
            while block := file.read(min(BLOCK_BYTES, limit, count_left())):
                end = b"" if block.endswith(b"\n") else file.readline(limit)
                block += end
                short = len(block) - 1 - block.rfind(b"\n", 0, len(block) - 1) <= limit and len(end) < limit
                text = _decode_clean(block) if short and not rest else None
                if text is not None:
                    yield offset, text.removeprefix("\ufeff") if offset == 0 else text
                    offset += len(block)
                    continue
                ahead = io.BytesIO(block)
                while raw := ahead.readline(limit):
                    if not raw.endswith(b"\n"):
                        raw += file.readline(limit - len(raw))
                    raw = rest + raw
                    try:
                        line, used = codecs.utf_8_decode(raw, "strict", False)  # False: a character cut in two is left
                    except UnicodeDecodeError as error:
                        faults.add(NOT_UTF8, f"{path} at byte {offset + error.start}")
                        line, used = codecs.utf_8_decode(raw, "replace", False)
                    if "\0" in line:
                        kind = "lines, or parts of long ones, with NUL characters, which were left out"
                        faults.add(kind, f"{path} at byte {offset}")
                        line = line.replace("\0", "")
                    yield offset, (line.removeprefix("\ufeff") if offset == 0 else line).replace("\r\n", "\n")
                    offset, rest = offset + used, raw[used:]
        if rest:
            faults.add(NOT_UTF8, f"{path} at byte {offset}")
            yield offset, rest.decode("utf-8", "replace")
    except records.DAMAGE as error:
        place = f"{path} on from byte {offset} of its text ({error})"
        raise errors.ConfigError(f"config.data: cannot read {place}; expected a complete, readable file") from None


def _decode_clean(block) -> str | None:
    """Bytes as text, None where they are not UTF-8 or have a NUL among them."""
    try:
        return None if b"\0" in block else block.decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None


def _iterate_lines(text) -> Iterator[str]:
    """Its lines, which a line feed alone ends."""
    return io.StringIO(text, newline="\n")


def _locate_lines(text) -> list[int]:
    """Where each of `_iterate_lines` begins."""
    return [*itertools.accumulate(map(len, _iterate_lines(text)), initial=0)][:-1]
