"""What searches chose, in experiments/searches/NAME-SCALE.json, for scales to read in place of values by hand."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import errors, fields, files
from mlm.experiment import search_space

FOLDER = "searches"  # beside the experiment's file


class Trial(NamedTuple):
    """A trial of a row: its values, and its score at each rung that it reached; None: it diverged there."""

    values: dict[str, Any]
    scores: list[float | None]


class RowSearch(NamedTuple):
    """The search of a row: the values that it chose, and all trials."""

    chosen: dict[str, Any]
    trials: list[Trial]
    ranges: dict[str, str]  # of each field, as text


class Search(NamedTuple):
    """A search of one scale of an experiment, as its file holds it."""

    scale: str
    rows: dict[str, RowSearch]
    rungs: list[float]  # shares of the training length, at which trials are compared
    score: str  # what trials are compared by
    better: int  # +1: higher is better, -1: lower is better
    provenance: dict[str, Any]  # command, commit, date, held-out split, seed


def read_searches(experiment_file: str) -> dict[str, Search]:
    """The searches of an experiment by scale, of the files beside it. Raises ConfigError for a file that is none."""
    path = Path(experiment_file)
    names = re.compile(rf"{re.escape(path.stem)}-\w+\.json")
    found = [read_search(file) for file in sorted((path.parent / FOLDER).glob("*.json")) if names.fullmatch(file.name)]
    return {search.scale: search for search in found}


def read_search(path: Path) -> Search:
    """The search of a file. Raises ConfigError, which names the file and what is wrong with it."""
    with errors.explain(str(path), "a file of mlm sweep search; search again"):
        saved = json.loads(files.read_regular_file(path))
        rows = {
            row: RowSearch(entry["chosen"], [Trial(**trial) for trial in entry["trials"]], entry["ranges"])
            for row, entry in saved.pop("rows").items()
        }
        search = Search(rows=rows, **saved)
        for name in {name for row in rows.values() for name in row.chosen}:
            fields.check_name(name)
    return search


def find_chosen(searches: Mapping[str, Search], scale: str, row: str) -> dict[str, Any]:
    """What the search of a scale chose for a row; nothing where there was none."""
    found = scale in searches and searches[scale].rows.get(row)
    return found.chosen if found else {}


def write_search(path: Path, search: Search) -> None:
    """Writes the file of a search; a trial takes a line, so that two searches can be compared."""
    head = {name: value for name, value in search._asdict().items() if name != "rows"}
    rows = []
    for name, row in search.rows.items():
        trials = ",\n".join(f"    {json.dumps(trial._asdict())}" for trial in row.trials)
        chosen = f'"chosen": {json.dumps(row.chosen)},\n   "ranges": {json.dumps(row.ranges)},\n'
        rows.append(f'  {json.dumps(name)}: {{\n   {chosen}   "trials": [\n{trials}\n   ]}}')
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    files.write_text(path, "{\n" + ",\n".join([*lines, ' "rows": {\n' + ",\n".join(rows) + "\n }"]) + "\n}\n")


def apply_choices(
    points: Mapping[str, Mapping[str, Any]], searches: Mapping[str, Search], scale: str
) -> dict[str, dict[str, Any]]:
    """The points of a scale with the values that its search chose for their row, where there was one."""
    rows = {name: re.sub(r"-seed\d+$", "", name) for name in points}
    return {
        name: search_space.apply_values(point, find_chosen(searches, scale, rows[name]))
        for name, point in points.items()
    }
