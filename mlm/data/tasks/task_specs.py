"""The tasks that have a name: rows of task_specs.toml, which says what their files are and where they come from."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class TaskSpec(NamedTuple):
    """A row of TASKS."""

    title: str  # what tables call it
    objective: str
    labelled: Mapping[str, str]  # fields of config.data.labelled
    source: str
    note: str = ""  # what a reader of its scores must know


_ROWS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TASKS = {name: TaskSpec(**row) for name, row in _ROWS.items()}
