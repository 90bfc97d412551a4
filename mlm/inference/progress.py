"""Progress of a long list of texts, on standard error."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import tqdm

LONG_LIST = 32  # texts; a shorter list has no progress bar
QUIET_SECONDS = 5.0  # before the first line, and between two, where standard error is a file or a pipe


@contextlib.contextmanager
def show_progress(total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A progress bar of a long list; yields a function that advances it. A file or a pipe gets a line now and then."""
    if total < LONG_LIST:
        yield lambda count: None
        return
    quiet = 0.0 if sys.stderr.isatty() else QUIET_SECONDS
    with tqdm.tqdm(total=total, unit=unit, leave=quiet > 0, delay=quiet, mininterval=max(quiet, 0.1)) as bar:

        def advance(count: int) -> None:
            bar.update(min(count, total - bar.n))

        yield advance
