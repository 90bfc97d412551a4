"""A clock that stands still, and one that jumps; by libfaketime."""
import random
import shutil
import subprocess
import time
from collections.abc import Mapping

from experiments.breaker import subject
from experiments.breaker.place import BAD, SKIPPED, Ending, Place
from experiments.breaker.processes import LIMIT

WALL = {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}    # a clock that tells durations goes on
JUMPS = ("-1d", "+0", "+400d", "-3600", "-10y")


def missing() -> Ending | None:
    return Ending(SKIPPED, "faketime is not installed") if shutil.which("faketime") is None else None


def stopped(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """It is and stays one moment."""
    place.clear()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(rng.randrange(10**9, 2 * 10**9)))
    return missing() or place.finish(what, wanted, prefix=("faketime", "-f", when), more=WALL)


def jumping(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """Set to another day every now and then."""
    place.clear()
    if (none := missing()) is not None:
        return none
    library = subprocess.run(["faketime", "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True,
                             check=True).stdout.strip()
    now = place.out / "faketime"
    more = WALL | {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": str(now), "FAKETIME_NO_CACHE": "1"}
    for words in what.commands:
        now.write_text("+0\n")
        started = place.start(words, more=more)
        while started.process.poll() is None and time.monotonic() - started.began < LIMIT:
            time.sleep(rng.uniform(0.1, 1))
            now.write_text(f"{rng.choice(JUMPS)}\n")
        if (code := started.wait()) != 0:
            return Ending(BAD, f"exit code {code}: {started.said().strip()[-500:]}")
        started.alone()
    return place.compared(wanted)
