"""Bad input: one line that names the field, its value, what was expected and the nearest right name."""
import difflib
from typing import Any


class ConfigError(ValueError):
    """A bad value in a config; its message is one line naming field, value, what was expected and the nearest name."""


def expect(condition: bool, field: str, value: Any, expected: str) -> None:
    """Raises ConfigError naming the field, its value and what was expected, unless the condition holds."""
    if not condition:
        raise ConfigError(f"{field} = {value!r}: expected {expected}")


def one_of(field: str, value: str, names) -> None:
    """Raises ConfigError unless value is one of names; says which name is nearest."""
    if value not in names:
        near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{field} = {value!r}: expected one of {', '.join(names)}{hint}")
