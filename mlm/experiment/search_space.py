"""What a search tries: a range for each field, and the values of its trials.

An experiment that can be searched has a function `search_space(point) -> {field: range}`; point: the fields of a row's
first point. A range whose field a row does not read is left out for that row.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from mlm.base import errors, fields

BATCH = "train.batch_size"
RESERVED = ("seed", "workdir", "train.steps")  # fields that the search itself sets
SIGNIFICANT_DIGITS = 4  # of a number that is drawn: those that a file of chosen values shows


class LogUniform(NamedTuple):
    """Numbers whose logarithm is uniform."""

    low: float
    high: float

    def pick(self, share: float) -> float:
        """The value below which a `share` of the range lies."""
        return round_value(self.low * (self.high / self.low) ** share)

    def find_share(self, value: float) -> float:
        """The share of the range that lies below a value: the inverse of `pick`."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def __str__(self):
        return f"log-uniform, {self.low:g} to {self.high:g}"


class Uniform(NamedTuple):
    """Numbers between two bounds."""

    low: float
    high: float

    def pick(self, share: float) -> float:
        """The value below which a `share` of the range lies."""
        return round_value(self.low + (self.high - self.low) * share)

    def find_share(self, value: float) -> float:
        """The share of the range that lies below a value: the inverse of `pick`."""
        return (value - self.low) / (self.high - self.low)

    def __str__(self):
        return f"uniform, {self.low:g} to {self.high:g}"


class Choice(NamedTuple):
    """One of several values. Each value of a compiled field is a program of its own; trials of one value share it."""

    values: tuple[Any, ...]

    def pick(self, share: float) -> Any:
        """The value in whose equal part of [0, 1) the `share` lies."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def __str__(self):
        return f"one of {', '.join(map(str, self.values))}"


Range = LogUniform | Uniform | Choice
Space = Mapping[str, Range]


def round_value(value: float) -> float:
    """The number with the digits that a file of chosen values shows."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def check_space(space: Any, where: str) -> None:
    """Raises ConfigError, which begins with `where`, unless the space maps fields to ranges that their types allow."""
    errors.require(isinstance(space, Mapping), where, space, "ranges by field; {} for a row that is not searched")
    for field, values in space.items():
        fields.check_name(field)
        name = f"{where}[{field!r}]"
        errors.require(isinstance(values, Range), name, values, "LogUniform(low, high), Uniform(low, high) or Choice")
        errors.require(field not in RESERVED, name, values, "another field: a trial has its own")
        kind = type(fields.DEFAULT[field])
        if isinstance(values, Choice):
            is_typed = isinstance(values.values, tuple) and {type(value) for value in values.values} == {kind}
            errors.require(is_typed, name, values.values, f"a tuple of {kind.__name__}")
            errors.require(field != BATCH or min(values.values) > 0, name, values.values, "sizes of at least 1")
        else:
            errors.require(kind is float, name, values, f"Choice, since the field is of type {kind.__name__}")
            is_number = all(type(bound) in (int, float) and abs(bound) <= fields.FLOAT32_MAX for bound in values)
            is_ordered = is_number and values.low < values.high and (isinstance(values, Uniform) or values.low > 0)
            positive = "" if isinstance(values, Uniform) else ", above 0"
            errors.require(is_ordered, name, values, f"low < high{positive}, finite numbers")


def draw_trials(spaces: Mapping[str, Space], num_trials: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """The values of each row's trials: the points of one scrambled Sobol sequence (Owen 1998), the same for all rows.

    A field has the same coordinate in all rows, so that no row has a luckier draw of what it shares with others. More
    trials with the same seed begin with the fewer ones, if the spaces are the same: a search can be made longer.
    The price is that few trials do not separate the fields: of six, four pairs lie in the same or opposite halves in
    all of eight trials, one pair in all of 16, none in 32.
    """
    from scipy.stats import qmc  # takes half a second to import

    names = list(dict.fromkeys(field for space in spaces.values() for field in space))
    sequence = qmc.Sobol(len(names), scramble=True, rng=seed)
    share_TxF = sequence.random_base2(max(0, (num_trials - 1).bit_length()))[:num_trials]
    return {
        row: [
            {field: values.pick(float(share_F[names.index(field)])) for field, values in space.items()}
            for share_F in share_TxF
        ]
        for row, space in spaces.items()
    }


def apply_values(point: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a point with the values of a trial; with another batch it reads as many examples."""
    changed = {**point, **values}
    if BATCH in values:
        ratio = point.get(BATCH, fields.DEFAULT[BATCH]) / values[BATCH]
        for name in ("train.steps", "train.eval_every"):
            changed[name] = round(point.get(name, fields.DEFAULT[name]) * ratio)
    return changed


def find_edges(space: Space, values: Mapping[str, Any]) -> list[str]:
    """The fields whose value lies in the lowest or highest tenth of its range: the range may be too narrow."""
    return [
        field
        for field, kind in space.items()
        if not isinstance(kind, Choice) and not 0.1 <= kind.find_share(values[field]) <= 0.9
    ]
