"""Config fields that only some configs read, as data: their declarations say when, or a package's own tables."""

# The values of a condition are of no declared type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from mlm.base import fields, groups


class FieldCondition(NamedTuple):
    """A run reads `fields` only if the field `depends_on` has one of `values`, or has none of `excluded_values`."""

    fields: tuple[str, ...]
    depends_on: str
    values: tuple[Any, ...] = ()
    excluded_values: tuple[Any, ...] = ()


def list_below(field: str) -> tuple[str, ...]:
    """The fields below a prefix, such as "mask"; of a field, itself."""
    return tuple(name for name in fields.DECLARATIONS if name == field or name.startswith(f"{field}."))


def list_conditions(declarations: Mapping[str, fields.Declaration]) -> tuple[FieldCondition, ...]:
    """The conditions of `when` and `unless` in declarations, one for all fields that have it."""
    grouped = groups.group_values(
        ((kind, depends_on, values if isinstance(values, tuple) else (values,)), name)
        for name, declaration in declarations.items()
        for kind in ("when", "unless")
        for depends_on, values in declaration.facts[kind].items()
    )
    return tuple(
        FieldCondition(tuple(names), depends_on, **{"values" if kind == "when" else "excluded_values": values})
        for (kind, depends_on, values), names in grouped.items()
    )


def list_registry_conditions(
    depends_on: str, fields_by_value: Mapping[str, Collection[str]], prefix: str = ""
) -> list[FieldCondition]:
    """The conditions of the fields, or sections, that some entries of a registry read, each below a prefix."""
    return [
        FieldCondition(
            list_below(prefix + field), depends_on, tuple(v for v, read in fields_by_value.items() if field in read)
        )
        for field in sorted({field for read in fields_by_value.values() for field in read})
    ]


DECLARED = list_conditions(fields.DECLARATIONS)


def find_unread_fields(conditions: Iterable[FieldCondition], flat: Mapping[str, Any]) -> dict[str, str]:
    """The fields that a run does not read, each with the reason. flat: a resolved config by dotted name."""
    reasons: dict[str, str] = {}
    for condition in conditions:
        value, excluded = flat[condition.depends_on], condition.excluded_values
        if value in excluded if excluded else value not in condition.values:
            named = [str(value) for value in condition.values if value]
            expected = f", not {' or '.join(named)}" if named else ""
            reason = f"config.{condition.depends_on} is {value!r}{expected}"
            reasons |= {name: reason for name in condition.fields if name in flat and name not in reasons}
    return reasons
