"""Text files that a user made: their lines, the JSON in them, and what is no plain text."""

import difflib
import io
import json
import os
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mlm.base import errors

MAX_LINE_BYTES = 2**20  # bytes of a line, at most
START_BYTES = 2**16  # bytes that show what a file is
MAX_STRANGE_SHARE = 0.3  # of characters that are no text: about half in UTF-16 or an image, few in Latin-1
BOM, SURROGATE = b"\xef\xbb\xbf", re.compile("[\ud800-\udfff]")
# What is no plain text, by the ending of its name before .gz, and by its first bytes.
OTHER_ENDING = re.compile(
    r"\.(jsonl|ndjson|json|csv|tsv|parquet|arrow|feather|zstd?|bz2|xz|lz4|tar|tgz|zip|7z|html?|xml|pdf)(\.gz)?\Z", re.I
)
START_BY_FORMAT = {
    "Parquet": rb"PAR1[^\t\n\r\x20-\x7e]",
    "Arrow": rb"ARROW1\0|\xff{4}..\0\0",
    "compressed by zstd, bzip2 or xz": rb"\x28\xb5\x2f\xfd|BZh[1-9]1AY&SY|\xfd7zXZ\0",
    "gzip, inside or without the ending .gz": rb"\x1f\x8b",
    "an archive": rb"PK\x03\x04|.{257}ustar",
    "PDF": rb"%PDF-\d",
    "XML or HTML": rb"(?i:(?:\xef\xbb\xbf)?\s*<(?:\?xml\s|!doctype\s|html[\s>]))",
}


def read_numbered_lines(flag: str, path: str) -> dict[int, str]:
    """The lines of a file of texts, or of standard input where it is "", that hold something, by number from 1.

    Raises ConfigError as `iterate_lines` does, for none, and for what is no plain text; a table with tabs is some.
    """
    name = path or "standard input"
    with errors.explain(f"{flag} = {path!r}", "a file", OSError):
        raw = Path(path).read_bytes() if path else sys.stdin.buffer.read()
    check_plain_text(flag, name, raw[:START_BYTES], accepted=("tsv",))
    lines = iterate_lines(io.BytesIO(raw), name, MAX_LINE_BYTES)
    texts = {number: line for number, line in lines if line.strip()}
    errors.require(bool(texts), f"{flag} = {path!r}" if path else name, len(texts), "a text, one a line")
    return texts


def iterate_lines(
    file: BinaryIO, name: Path | str, max_line_bytes: int, start: int = 0, end: int = sys.maxsize
) -> Iterator[tuple[int, str]]:
    """The lines of an open file, without their ends (a line feed, after a carriage return or not), numbered from 1.

    name: of the file, for errors. start, end: bytes at which lines begin, between which it is read. Raises ConfigError
    for a line that is too long or not UTF-8, and for NUL.
    """
    number, num_left = 0, end - start
    if start:
        file.seek(start)
    while raw := file.readline(min(max_line_bytes + 1, num_left)):
        number += 1
        num_left -= len(raw)
        where = f"{name}, line {number}"
        errors.require(len(raw) <= max_line_bytes, where, raw[:40], f"a line of at most {max_line_bytes} bytes")
        line = decode_utf8(raw.removeprefix(BOM) if number == 1 and not start else raw, where)
        yield number, line.removesuffix("\n").removesuffix("\r")


def decode_utf8(raw: bytes, where: str) -> str:
    """Raises ConfigError for bytes that are not UTF-8, and for NUL."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        byte = raw[error.start : error.start + 1]
        raise errors.ConfigError(f"{where}: byte {error.start + 1} = {byte!r}: expected UTF-8") from None
    errors.require("\0" not in text, where, text[:40], "text without NUL")
    return text


def require_encodable(text: str, where: str) -> None:
    """Raises ConfigError for a text that UTF-8 cannot hold, which JSON can escape."""
    errors.require(not SURROGATE.search(text), where, text, "text without halves of surrogate pairs")


def parse_json(text: str, path: Path, line: int = 1) -> Any:
    """What the JSON says that begins at a line of a file. Raises ConfigError, by line and column, where it is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {line + error.lineno - 1}, column {error.colno}"
        raise errors.ConfigError(f"{where}: {error.msg}; expected JSON") from None
    except (ValueError, RecursionError) as error:
        expected = "JSON that is not so deep or long"
        raise errors.ConfigError(f"{path}, line {line}: {errors.first_line(error)}; expected {expected}") from None


def split_names(text: str) -> tuple[str, ...]:
    """Names separated by commas, without white space around them; () for an empty text."""
    return tuple(name.strip() for name in text.split(",")) if text.strip() else ()


def split_paths(text: str) -> list[str]:
    """Paths separated by commas; a comma of a name that a file or folder has is left in it."""
    parts = text.split(",")
    paths: list[str] = []
    while parts:
        names = (",".join(parts[:count]).strip() for count in range(len(parts), 1, -1))
        paths.append(next(filter(_exists_with_comma, names), parts[0].strip()))
        parts = parts[paths[-1].count(",") + 1 :]
    return [path for path in paths if path]


def _exists_with_comma(path: str) -> bool:
    """Whether a path is there, as far as the folder with its last comma; a glob may follow."""
    return os.path.exists(os.path.expanduser(re.sub(r"(,[^,/]*)/[^,]*\Z", r"\1", path)))


def check_plain_text(field: str, path: str, start: bytes, accepted: Collection[str] = ()) -> None:
    """Raises ConfigError, which says what it is, for a file that is no plain text; start: its first bytes, unpacked.

    accepted: endings of its name that say something else.
    """
    kinds = [found[1].upper() for found in OTHER_ENDING.finditer(path) if found[1].lower() not in accepted]
    kinds += [kind for kind, pattern in START_BY_FORMAT.items() if re.match(pattern, start, re.DOTALL)]
    text = start.decode("utf-8", "replace").removeprefix("\ufeff")
    strange = text.count("\ufffd") + text.count("\0")
    kinds += ["JSON"] * is_json(text)
    if strange > MAX_STRANGE_SHARE * len(text):
        kinds.append(f"binary, or has another encoding: {strange:,} of its first {len(text):,} characters are none")
    if kinds:
        raise errors.ConfigError(f"{field} = {path!r}: expected plain text in UTF-8; this is {kinds[0]}")


def is_json(text: str) -> bool:
    """Whether a text is JSON or lines of it, as far as it goes; another text may begin with a brace."""
    is_long = len(text) > 2000  # then it may end within a value
    try:
        value = json.loads(text)
        return bool(value) and isinstance(value, dict | list)
    except json.JSONDecodeError as error:
        if is_long and (error.pos > len(text) - 10 or error.msg.startswith("Unterminated")):
            return text.lstrip().startswith(("{", "["))
        lines = [line for line in text.split("\n") if line.strip()]
        whole = lines[:-1] if is_long else lines
        return len(lines) > 1 and all(line.lstrip().startswith("{") and is_json(line) for line in whole)
    except (ValueError, RecursionError):
        return False


def suggest_path(pattern: str) -> str:
    """The end of a message that suggests the nearest path to one that is not there; "" if none is near."""
    path = Path(os.path.expanduser(pattern))
    if path.is_dir():
        return f"; did you mean {str(path / '*.txt')!r}?"
    while not path.parent.is_dir():
        path = path.parent
    near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1, cutoff=0.6)
    return f"; did you mean {str(path.parent / near[0])!r}?" if near and near[0] != path.name else ""
