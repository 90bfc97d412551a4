"""Which fields a run reads, as data: each room says of its own when nothing reads them."""
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class FieldCondition(NamedTuple):
    """`fields`, or all below one, are read only where the field `where` has one of `values`, or none of `unless`."""

    fields: tuple[str, ...]
    where: str
    values: tuple = ()
    unless: tuple = ()

    def holds(self, flat: Mapping[str, Any]) -> bool:
        return flat[self.where] in self.values if self.values else flat[self.where] not in self.unless

    def names(self, flat: Iterable[str]) -> list[str]:
        """The fields it speaks of, by their full names, of those in `flat`."""
        return [name for name in flat if any(name == field or name.startswith(f"{field}.") for field in self.fields)]


def find_unread_fields(rules: Iterable[FieldCondition], flat: Mapping[str, Any]) -> dict[str, str]:
    """The fields that nothing reads in a resolved config, `flat` by dotted name, each with why."""
    found = {}
    for rule in rules:
        if not rule.holds(flat):
            wanted = f", not {' or '.join(map(str, filter(None, rule.values)))}" if any(rule.values) else ""
            why = f"config.{rule.where} is {flat[rule.where]!r}{wanted}"
            found |= {name: why for name in rule.names(flat) if name not in found}
    return found
