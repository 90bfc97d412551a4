"""What else may befall a subject, each a number of times; it must survive, or say in a line what is the matter."""
import json
import random
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from experiments.breaker import clock, damage, disk, hosts, several, subject
from experiments.breaker.place import BAD, Ending, Place
from experiments.breaker.processes import Hangs

KEPT = "faults.jsonl"


class Fault(NamedTuple):
    make: Callable    # (place, subject, what is wanted, rng) -> Ending
    of: tuple[str, ...]   # subjects, one for each trial


RUN, SWEEP, LANGUAGE = "run", "sweep", "language"
FAULTS = {
    "disk full": Fault(disk.full, (RUN, RUN, SWEEP, LANGUAGE)),
    "disk slow": Fault(disk.slow, (RUN, LANGUAGE)),
    "file torn": Fault(damage.torn, (RUN, SWEEP, LANGUAGE, RUN, SWEEP, LANGUAGE, RUN)),
    "bit flipped": Fault(damage.flipped, (RUN, SWEEP, LANGUAGE, RUN, SWEEP, LANGUAGE, RUN)),
    "compiled programs torn": Fault(damage.compiled, (RUN,)),
    "two writers": Fault(several.two, (RUN, SWEEP, RUN, SWEEP)),
    "halted again and again": Fault(several.halted, (RUN, SWEEP)),
    "asked to stop": Fault(several.asked, (RUN, SWEEP, LANGUAGE, RUN)),
    "clock stopped": Fault(clock.stopped, (RUN, SWEEP)),
    "clock jumps": Fault(clock.jumping, (RUN, SWEEP)),
    "host killed": Fault(hosts.dead, (RUN, RUN, RUN)),
    "process of a host lost": Fault(hosts.restarted, (RUN, RUN)),
    "host silent": Fault(hosts.silent, (RUN,)),
}


def run(place: Place, names: list[str], seed: int, known: Mapping[str, Mapping[str, str]]) -> list[dict]:
    """Each named fault as often as FAULTS has it; those that `place` holds already are not made again."""
    path = place.out / KEPT
    made = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    subjects = {what.name: what for what in subject.subjects()}
    asked = [(name, number, of) for name in names for number, of in enumerate(FAULTS[name].of)]
    there = {(one["fault"], one["trial"]) for one in made}
    began, first = time.monotonic(), len(there)
    for name, number, of in asked:
        if (name, number) in there:
            continue
        start = time.monotonic()
        try:
            ending = FAULTS[name].make(place, subjects[of], known[of], random.Random(f"{seed}-{name}-{number}"))
        except (Hangs, ValueError) as error:
            ending = Ending(BAD, str(error))
        one = {"fault": name, "trial": number, "subject": of, "seed": seed, **ending._asdict(),
               "seconds": round(time.monotonic() - start, 1)}
        if ending.how == BAD:
            one["folder"] = str(place.keep(f"{name}-{number}".replace(" ", "-")))
        made.append(one)
        with path.open("a") as file:
            file.write(json.dumps(one) + "\n")
        done = len(made)
        left = (time.monotonic() - began) / (done - first) * (len(asked) - done)
        print(f"{name}, {of}: {ending.how}{ending.said and ': '}{ending.said} ({one['seconds']} s); {done} of "
              f"{len(asked)} faults, {int(left // 60)}:{int(left % 60):02d} left", flush=True)
    return made
