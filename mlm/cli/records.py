"""The records that a command answers with: as a table, as lines of JSON, or in a file."""

import csv
import io
import json
from collections.abc import Container, Sequence
from pathlib import Path

from mlm.base import errors, files

FORMATS = {
    "probability": ".3f",
    "cosine": ".3f",
    "nats": ".2f",
    "log_prob": ".2f",
    "cloze": ".3f",
    "flesch": ".1f",
    "texts": ",d",
}
TEXT_COLUMNS, WIDEST = ("prompt", "text"), 80  # of which a table shows this many letters


def check_output(out: str, *endings: str) -> Path:
    """--out, which has one of the endings, where a file can be written."""
    path = Path(out)
    names = " or ".join(f"FILE{ending}" for ending in endings)
    errors.require(out.endswith(endings), "--out", out, f"the name of a file to write, {names}")
    errors.require(path.parent.is_dir() and not path.is_dir(), "--out", out, "a file in a folder that is there")
    files.check_folder("--out", str(path.parent))
    return path


def write_records(path: Path, records: list[dict]) -> None:
    """Writes a table with a line of names (.csv) or lines of JSON."""
    if path.suffix == ".csv":
        lines = io.StringIO()
        writer = csv.DictWriter(lines, [*records[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        files.write_text(path, lines.getvalue())
    else:
        files.write_text(path, "".join(f"{format_json(record)}\n" for record in records))


def format_json(record: dict) -> str:
    """A record as a line of JSON."""
    return json.dumps(record, ensure_ascii=False)


def print_table(records: Sequence[dict], omitted: Container[str] = ()) -> None:
    """Prints records of the same names; omitted: names that a table does not show."""
    from mlm.report.table import Column, to_markdown

    shown = [
        {
            key: value[: WIDEST - 1] + "…" if key in TEXT_COLUMNS and len(value) > WIDEST else value
            for key, value in record.items()
            if key not in omitted
        }
        for record in records
    ]
    print(to_markdown(shown, [Column(key, key, FORMATS.get(key, "")) for key in shown[0]]))
