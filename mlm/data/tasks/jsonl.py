"""JSON lines: an object with texts and a label in each."""

import json
from collections.abc import Iterator
from pathlib import Path

from mlm.base import config, errors
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, Label


def read(path: Path, asks: config.Labelled, label: Label) -> Iterator[Example]:
    """The examples of a file. Blank lines are left out. Raises ConfigError for a line that is not as `asks` says."""
    count = 0
    for line, text in examples.lines(path):
        if not text.strip():
            continue
        where = f"{path}, line {line}"
        found = loads(text, path, line)
        errors.require(isinstance(found, dict), where, found, "a JSON object")
        for key in examples.columns(asks):
            examples.column(key, list(found), where, "key")
        found |= {asks.label_column: _written(found[asks.label_column], f"{where}: {asks.label_column}")}
        found |= {asks.id_column: str(found[asks.id_column])} if asks.id_column else {}
        yield examples.of_row(asks, found, label, where, count)
        count += 1


def loads(text: str, path: Path, line: int = 1):
    """What the JSON says that begins at a line of a file. Raises ConfigError, by line and column, where it is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise errors.ConfigError(
            f"{path}, line {line + error.lineno - 1}, column {error.colno}: {error.msg}; expected JSON"
        ) from None
    except (ValueError, RecursionError) as error:
        raise errors.ConfigError(
            f"{path}, line {line}: {errors.first_line(error)}; expected JSON that is not so deep or long"
        ) from None


def _written(value, where):
    """A label as it would stand in a table."""
    errors.require(isinstance(value, str | int | float), where, value, "a label: a text or a number")
    return value if isinstance(value, str) else json.dumps(value)
