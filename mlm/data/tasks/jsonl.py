"""JSON lines: an object with texts and a label in each."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from mlm.base import config, errors, text_files
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, LabelParser


def read_examples(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The examples of a file. Blank lines are left out. Raises ConfigError for a line that does not fit `labelled`."""
    for index, (where, values) in enumerate(text_files.read_json_objects(path)):
        for key in examples.list_columns(labelled):
            examples.require_column(key, list(values), where, "key")
        values |= {
            labelled.label_column: _format_label(values[labelled.label_column], f"{where}: {labelled.label_column}")
        }
        values |= {labelled.id_column: str(values[labelled.id_column])} if labelled.id_column else {}
        yield examples.make_example(labelled, values, parse_label, where, index)


def _format_label(value, where):
    """A label as a table would have it, a whole number without a point."""
    is_finite = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    errors.require(is_finite, where, value, "a label: a text or a finite number")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)
