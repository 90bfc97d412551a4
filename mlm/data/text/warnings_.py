"""What is wrong with a corpus but no reason to stop: counted, and said in one line with the first place."""
import functools

from absl import logging


class Trouble:
    """A count of one kind of fault and the place of the first."""

    def __init__(self, what: str):
        self.what, self.count, self.first = what, 0, ""

    def add(self, place: str) -> None:
        self.count += 1
        self.first = self.first or place

    def report(self) -> None:
        if self.count:
            warn(f"{self.count} {self.what}, the first in {self.first}")


@functools.cache
def tell(message: str) -> None:
    """Says what is good to know of a corpus, once in a process."""
    logging.info("%s", message)


@functools.cache  # a corpus is read several times in a run: each thing is said once
def warn(message: str) -> None:
    logging.warning("%s", message)
