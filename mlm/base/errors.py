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


def number(field: str, value: float, low: float, high: float, *, low_open: bool = False, high_open: bool = False
           ) -> None:
    """Raises ConfigError unless value lies between low and high, which are allowed themselves where not `open`."""
    ok = (low < value if low_open else low <= value) and (value < high if high_open else value <= high)
    expect(ok, field, value, f"{low} {'<' if low_open else '<='} value {'<' if high_open else '<='} {high}")


def at_least(low: float, field: str, value: float) -> None:
    """Raises ConfigError unless value is low or more."""
    expect(value >= low, field, value, f"at least {low}")
