"""Warnings that are logged once, and faults of a corpus, which are counted and reported in a line for each kind."""

import functools

from absl import logging


class WarningCounter:
    """How many faults of each kind there are, and the place of the first."""

    def __init__(self):
        self.counts, self._first_places = dict[str, int](), dict[str, str]()

    def add(self, kind: str, place: str) -> None:
        """Counts a fault of a kind, such as "empty files", at a place; `report` names only the first place."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._first_places.setdefault(kind, place)

    def report(self) -> None:
        """Logs the count of each kind in one line, once in a process; logs nothing if there was no fault."""
        for kind, count in self.counts.items():
            warn_once(f"{count} {kind}, the first in {self._first_places[kind]}")


@functools.cache
def log_once(message: str) -> None:
    """Says what is good to know of a corpus, once in a process."""
    logging.info("%s", message)


@functools.cache  # a corpus, a directory and a table are read several times in a run
def warn_once(message: str) -> None:
    """Logs a warning, once per process."""
    logging.warning("%s", message)
