"""Config fields that only some configs read, as data: their declarations say when, or a package's own tables."""

# The values of a condition are of no declared type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
import functools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from mlm.base import fields


class FieldCondition(NamedTuple):
    """A run reads `fields` only if the field `depends_on` has one of `values`, or has none of `excluded_values`.

    Each of `fields` is a field or a prefix, which stands for all fields below it.
    """

    fields: tuple[str, ...]
    depends_on: str
    values: tuple[Any, ...] = ()
    excluded_values: tuple[Any, ...] = ()

    def is_met(self, flat: Mapping[str, Any]) -> bool:
        """Returns whether a run with the resolved config `flat`, by dotted name, reads the fields."""
        value = flat[self.depends_on]
        return value in self.values if self.values else value not in self.excluded_values

    def select_fields(self, names: Iterable[str]) -> list[str]:
        """Those of the full `names` that the condition is about."""
        return _match_fields(self.fields, tuple(names))


@functools.cache  # the names are those of the config: a sweep asks thousands of times
def _match_fields(fields: tuple[str, ...], names: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(name == field or name.startswith(f"{field}.") for field in fields)]


def list_conditions(declarations: Mapping[str, fields.Declaration]) -> tuple[FieldCondition, ...]:
    """The conditions of `when` and `unless` in declarations, one for all fields that have it."""
    grouped: dict[tuple[str, str, tuple[Any, ...]], list[str]] = {}
    for name, declaration in declarations.items():
        for kind in ("when", "unless"):
            for depends_on, values in declaration.facts[kind].items():
                values = values if isinstance(values, tuple) else (values,)
                grouped.setdefault((kind, depends_on, values), []).append(name)
    return tuple(
        FieldCondition(tuple(names), depends_on, **{"values" if kind == "when" else "excluded_values": values})
        for (kind, depends_on, values), names in grouped.items()
    )


def list_registry_conditions(
    depends_on: str, fields_by_value: Mapping[str, Collection[str]], prefix: str = ""
) -> list[FieldCondition]:
    """The conditions of the fields that some entries of a registry read, each named `prefix` and itself."""
    return [
        FieldCondition((prefix + field,), depends_on, tuple(v for v, read in fields_by_value.items() if field in read))
        for field in sorted({field for read in fields_by_value.values() for field in read})
    ]


DECLARED = list_conditions(fields.DECLARATIONS)


def find_unread_fields(conditions: Iterable[FieldCondition], flat: Mapping[str, Any]) -> dict[str, str]:
    """The fields that a run does not read, each with the reason. flat: a resolved config by dotted name."""
    reasons: dict[str, str] = {}
    for condition in conditions:
        if not condition.is_met(flat):
            named = [str(value) for value in condition.values if value]
            expected = f", not {' or '.join(named)}" if named else ""
            reason = f"config.{condition.depends_on} is {flat[condition.depends_on]!r}{expected}"
            reasons |= {name: reason for name in condition.select_fields(flat) if name not in reasons}
    return reasons
