"""Errors of bad input: one line that names the field, its value, the expected values and the closest valid name."""

import contextlib
import difflib
import functools
import math
import operator
import reprlib
import signal
import types
from collections.abc import Collection, Generator, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from mlm.base.config import Bounds

_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlevel, _SHORT.maxtuple, _SHORT.maxlist = 200, 100, 3, 16, 16


class ConfigError(ValueError):
    """A bad value of a config field, flag or file; the message is one line."""


class RunStopped(Exception):
    """The run was stopped by `signal`; it saved its state first, and the same command continues it."""

    def __init__(self, message: str, number: int | None):
        super().__init__(message)
        self.signal = number or signal.SIGTERM


def require(condition: bool, field: str, value: Any, expected: str) -> None:
    """Raises ConfigError that names the field, its value and what was expected, unless the condition holds."""
    if not condition:
        raise ConfigError(f"{field} = {format_value(value)}: expected {expected}")


def require_field(cfg: Any, name: str, condition: bool, expected: str, since: str = "") -> None:
    """`require` of a field of a config by its dotted name, such as "mask.rate"; since: the field that is the reason."""
    reason = f", since config.{since} is {operator.attrgetter(since)(cfg)}" if since else ""
    require(condition, f"config.{name}", operator.attrgetter(name)(cfg), expected + reason)


@contextlib.contextmanager
def name_place(place: str, names: Mapping[str, str] = types.MappingProxyType({})) -> Generator[None]:
    """An error of bad input within it begins with the place: a file, a point, a phase.

    names: what the place calls what the error calls otherwise.
    """
    try:
        yield
    except ConfigError as error:
        message = functools.reduce(lambda text, name: text.replace(name, names[name]), names, str(error))
        raise ConfigError(f"{place}: {message}") from None


@contextlib.contextmanager
def explain(place: str, expected: str, *kinds: type[Exception]) -> Generator[None]:
    """An error within it, of these kinds or of any, becomes a ConfigError: "PLACE: expected EXPECTED (its message)"."""
    kinds = kinds or (Exception,)
    try:
        yield
    except kinds as error:
        raise ConfigError(f"{place}: expected {expected} ({describe_error(error)})") from None


def format_value(value: Any) -> str:
    """The repr of the value, shortened if it is long or deeply nested."""
    return _SHORT.repr(value)


def first_line(error: BaseException) -> str:
    """The error's message as one line of at most 300 characters."""
    message = " ".join(str(error).split())
    return message if len(message) <= 300 else f"{message[:297]}..."


def describe_error(error: Exception) -> str:
    """The error's message as one line, without the path that an OSError names."""
    if isinstance(error, KeyError):
        return f"no key {error}"
    return getattr(error, "strerror", None) or first_line(error) or type(error).__name__


def require_one_of(field: str, value: str, names: Collection[str]) -> None:
    """Raises ConfigError unless value is one of names; suggests the closest name."""
    if value not in names:
        listed = ", ".join(name or "'' (none)" for name in names)
        raise ConfigError(f"{field} = {format_value(value)}: expected one of {listed}{format_hint(str(value), names)}")


def format_hint(value: str, names: Iterable[str]) -> str:
    """The end of a message that suggests the closest of the names; "" if none is near, or it is the value itself."""
    matches = difflib.get_close_matches(value[:100], [str(name)[:100] for name in names], n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches and matches[0] != value[:100] else ""


def require_number(field: str, value: float, low: float, high: float = math.inf, **open_bounds: bool) -> None:
    """Raises ConfigError unless value lies between low and high; open_bounds: as those of config.Bounds."""
    bounds = Bounds(low, high, **open_bounds)
    require(isinstance(value, Real) and bounds.contains(value), field, value, str(bounds))


def require_integer(field: str, value: int, low: float, high: float = math.inf) -> None:
    """`require_number` of a whole number."""
    require(isinstance(value, Integral), field, value, "a whole number")
    require_number(field, value, low, high)
