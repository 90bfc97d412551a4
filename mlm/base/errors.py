"""Bad input: one line that names the field, its value, what was expected and the nearest right name."""
import difflib
import reprlib
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlevel, _SHORT.maxtuple, _SHORT.maxlist = 200, 100, 3, 16, 16


class ConfigError(ValueError):
    """A bad value in a config; its message is one line naming field, value, what was expected and the nearest name."""


def require(condition: bool, field: str, value: Any, expected: str) -> None:
    """Raises ConfigError naming the field, its value and what was expected, unless the condition holds."""
    if not condition:
        raise ConfigError(f"{field} = {format_value(value)}: expected {expected}")


def format_value(value: Any) -> str:
    """The value as in code, cut where it is long or deep."""
    return _SHORT.repr(value)


def first_line(error: BaseException) -> str:
    """What an error says, in one line of at most 300 characters."""
    said = " ".join(str(error).split())
    return said if len(said) <= 300 else f"{said[:297]}..."


def require_one_of(field: str, value: str, names) -> None:
    """Raises ConfigError unless value is one of names; says which name is nearest."""
    if value not in names:
        near = difflib.get_close_matches(str(value)[:100], names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{field} = {format_value(value)}: expected one of {', '.join(names)}{hint}")


def require_number(field: str, value: float, low: float, high: float, *, low_open: bool = False, high_open: bool = False
           ) -> None:
    """Raises ConfigError unless value lies between low and high, which are allowed themselves where not `open`."""
    ok = (low < value if low_open else low <= value) and (value < high if high_open else value <= high)
    require(ok, field, value, f"{low} {'<' if low_open else '<='} value {'<' if high_open else '<='} {high}")


def require_at_least(low: float, field: str, value: float) -> None:
    """Raises ConfigError unless value is low or more."""
    require(value >= low, field, value, f"at least {low}")
