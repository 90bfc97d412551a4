"""Items by group."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def group_values(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of pairs (key, value) by key, keys and values in their order."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
