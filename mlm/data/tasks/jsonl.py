"""JSON lines: an object with texts and a label in each."""

import json
from collections.abc import Iterator
from pathlib import Path

from mlm.base import config, errors
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, LabelParser


def read_examples(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The examples of a file. Blank lines are left out. Raises ConfigError for a line that does not fit `labelled`."""
    index = 0
    for line_number, text in examples.read_lines(path):
        if not text.strip():
            continue
        where = f"{path}, line {line_number}"
        values = parse_json(text, path, line_number)
        errors.require(isinstance(values, dict), where, values, "a JSON object")
        for key in examples.list_columns(labelled):
            examples.require_column(key, list(values), where, "key")
        values |= {
            labelled.label_column: _format_label(values[labelled.label_column], f"{where}: {labelled.label_column}")
        }
        values |= {labelled.id_column: str(values[labelled.id_column])} if labelled.id_column else {}
        yield examples.make_example(labelled, values, parse_label, where, index)
        index += 1


def parse_json(text: str, path: Path, line: int = 1):
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


def _format_label(value, where):
    """A label as a table would have it."""
    errors.require(isinstance(value, str | int | float), where, value, "a label: a text or a number")
    return value if isinstance(value, str) else json.dumps(value)
