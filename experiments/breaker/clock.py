"""A wall clock that stands still, and one that jumps: clock.c, loaded into every process."""
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from experiments.breaker import subject
from experiments.breaker.place import BAD, EQUAL, NAMED, SKIPPED, Ending, Place, named
from experiments.breaker.processes import LIMIT

JUMPS = (-86_400, 0, 400 * 86_400, -3600, 10, -10)   # seconds beside the right time


class Clock:
    """What processes are told of the time."""

    def __init__(self, place: Place):
        self.path, library = place.out / "clock", place.out / "clock.so"
        self.set()
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_suffix(".c"))],
                       check=True)
        self.environment = {"LD_PRELOAD": str(library), "BREAKER_CLOCK": str(self.path)}

    def set(self, *, stands: int = 0, beside: int = 0) -> None:
        """stands: the time, in ns, that it is and stays; beside: seconds from the right time."""
        if not self.path.exists():
            self.path.write_bytes(bytes(16))
        with self.path.open("r+b") as file:
            file.write(struct.pack("qq", stands, beside * 10**9))


def told(place: Place, what: subject.Subject, wanted: Mapping[str, str], tell) -> Ending:
    """tell(clock, seconds since a command's start): sets the clock anew, and waits a while."""
    if shutil.which("cc") is None:
        return Ending(SKIPPED, "there is no C compiler")
    place.clear()
    clock, line = Clock(place), ""
    for words in what.commands:
        clock.set()
        started = place.start(words, more=clock.environment)
        while started.process.poll() is None and (since := time.monotonic() - started.began) < LIMIT:
            tell(clock, since)
        if (code := started.wait()) != 0:
            try:
                line = named(code, started.said())
            except ValueError as error:
                return Ending(BAD, str(error))
            break
    clock.set()
    ending = place.finish(what, wanted, more=clock.environment)
    return Ending(NAMED, line) if line and ending.how == EQUAL else ending


def stopped(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """From a moment of chance on it stays what it was, for a while."""
    first, long = rng.uniform(0, 10), rng.uniform(5, 20)

    def tell(clock, since):
        if first < since < first + long:
            clock.set(stands=time.time_ns())
            time.sleep(long)
        else:
            clock.set()
            time.sleep(0.02)

    return told(place, what, wanted, tell)


def jumping(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """Set to another day, or hour, every now and then."""
    def tell(clock, since):
        clock.set(beside=rng.choice(JUMPS))
        time.sleep(rng.uniform(0.1, 1))

    return told(place, what, wanted, tell)
