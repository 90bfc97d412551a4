"""Files that are whole or not there: text, JSON and JSON lines."""
import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to, renamed to it when the block ends well and removed when it does not.

    The place has path's ending, by which libraries know a format.
    """
    path = Path(path)
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield aside
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with whole(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, value) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path):
    """The value of a JSON file, or None where there is no file."""
    return json.loads(Path(path).read_text()) if Path(path).exists() else None


def write_lines(path: Path, records: Iterable[dict]) -> None:
    """JSON lines: one object a line."""
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def read_lines(path: Path) -> list[dict]:
    """The objects of a file of JSON lines; a last line torn by a kill is left out. No file: none.

    Raises ValueError for any other line that is not JSON.
    """
    if not path.exists():
        return []
    records = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not JSON, yet not the last line: {line[:60]!r}") from None
    return records
