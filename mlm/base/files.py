"""metrics.jsonl, a run's truth about itself: one JSON object a line; and the same as TensorBoard events."""
import json
import os
from pathlib import Path


def read(path: Path) -> list[dict]:
    """The records of a metrics file; a last line torn by a kill is left out. No file: no records."""
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


def write_json(path: Path, value) -> None:
    """Writes aside, then renames: the file is whole or not there."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value, indent=1) + "\n")
    aside.rename(path)
