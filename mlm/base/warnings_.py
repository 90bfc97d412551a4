"""Warnings that are logged once, and faults of a corpus, which are counted and reported in one line."""

import functools

from absl import logging


class WarningCounter:
    """A count of one kind of fault and the place of the first."""

    def __init__(self, what: str):
        self.description, self.count, self.first_place = what, 0, ""

    def add(self, place: str) -> None:
        """Counts a fault at a place; `report` names only the first place."""
        self.count += 1
        self.first_place = self.first_place or place

    def report(self) -> None:
        """Logs the count in one line, once in a process; logs nothing if there was no fault."""
        if self.count:
            warn_once(f"{self.count} {self.description}, the first in {self.first_place}")


@functools.cache
def log_once(message: str) -> None:
    """Says what is good to know of a corpus, once in a process."""
    logging.info("%s", message)


@functools.cache  # a corpus, a directory and a table are read several times in a run
def warn_once(message: str) -> None:
    """Logs a warning, once per process."""
    logging.warning("%s", message)
