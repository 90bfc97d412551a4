"""A flag of a command as plain data, from which a parser is made (mlm/cli/command.py)."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Flag(NamedTuple):
    """A flag. Its default says its type; what has a tuple's is given with commas in between."""

    name: str
    default: bool | int | float | str | tuple[Any, ...]
    help: str
    metavar: str | None = None
    kind: Callable[[str], Any] = str  # of a tuple's parts
    low: float = 0  # the least number
    high: float | None = None  # the largest number; None: what float32 or int32 holds
    choices: tuple[str, ...] | None = None
    needs: str = ""  # a flag that must stand beside it, as one writes it
