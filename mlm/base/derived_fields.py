"""Config fields whose default follows from other fields, as data: each package declares those that are its own."""

import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from mlm.base import fields
from mlm.base.config import Config


class DerivedField(NamedTuple):
    """A field that takes its value from others, which are derived before it, as long as it has its default."""

    field: str  # dotted name
    depends_on: tuple[str, ...]
    derive: Callable[[Config], Any]  # its value; raises ConfigError where a field that it depends on is wrong
    applies: Callable[[Config], bool] = lambda cfg: True  # whether it is derived at all
    # Whether its default is a value like any other, and not one that stands for the derived one, such as 0 or "". A
    # user who sets it means it.
    default_is_choice: bool = False


def fill_derived_fields(derived_fields: Iterable[DerivedField], cfg: Config, names: Collection[str] = ()) -> Config:
    """The config with values for those of the fields that have their default; names: of fields that somebody set."""
    for row in derived_fields:
        if row.applies(cfg) and not (row.default_is_choice and row.field in names):
            value = row.derive(cfg)
            if value != operator.attrgetter(row.field)(cfg) == fields.DEFAULT[row.field]:
                cfg = fields.override(cfg, {row.field: value})
    return cfg
