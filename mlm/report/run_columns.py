"""Columns that every run (report/series.py) has a value for, such as its size: an experiment names those it shows."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlm.base import errors, groups
from mlm.report.table import Column, format_quantity


def name_model(config: Mapping[str, Any]) -> str:
    """The cell of a config's model, or its family where that has no cells."""
    return config["model.cell"] or config["model.family"]


def describe_sizes(results: Sequence[dict]) -> dict[str, str]:
    """The named sizes of runs, each with the parameters of its models: their range, where these differ."""
    counts = groups.group_values((run["config"]["model.size"], run["parameters"]) for run in results)
    ends = {size: dict.fromkeys(format_quantity(end(own)) for end in (min, max)) for size, own in counts.items()}
    return {size: f"{size} ({' to '.join(texts)} parameters)" for size, texts in ends.items()}


# Each column with its cell of a group of runs that differ in their seed alone.
RUN_COLUMNS: dict[Column, Callable[[Sequence[dict]], Any]] = {
    Column("model", "model"): lambda seeds: name_model(seeds[0]["config"]),
    Column("size", "size"): lambda seeds: seeds[0]["config"]["model.size"],
    Column("learning_rate", "learning rate", "g"): lambda seeds: seeds[0]["config"]["optim.learning_rate"],
    Column("batch", "batch", ",d"): lambda seeds: seeds[0]["config"]["train.batch_size"],
    Column("non_embedding", "non-embedding", ",d"): lambda seeds: seeds[0]["non_embedding"],
    Column("steps", "steps", ",d"): lambda seeds: seeds[0]["steps"],
    Column("tokens", "tokens", ".3g"): lambda seeds: sum(run["tokens"] for run in seeds) / len(seeds),
    Column("tokens_per_second", "tokens/s", ",.0f"): lambda seeds: statistics.median(
        run["tokens_per_second"] for run in seeds
    ),  # no interval: what else a machine did is no sample of seeds
}


def select_columns(*names: str) -> tuple[Column, ...]:
    """The columns of these names, in this order, which `summary.build_table` fills. Raises ConfigError for others."""
    columns = {column.name: column for column in RUN_COLUMNS}
    for name in names:
        errors.require_one_of("column", name, list(columns))
    return tuple(columns[name] for name in names)


def fill_cells(cells: dict[str, Any], seeds: Sequence[dict], columns: Sequence[Column]) -> dict[str, Any]:
    """The cells of a group of runs, with those that are missing in columns that every run has a value for."""
    missing = [column for column in columns if column.name not in cells and column in RUN_COLUMNS]
    return cells | {column.name: RUN_COLUMNS[column](seeds) for column in missing}
