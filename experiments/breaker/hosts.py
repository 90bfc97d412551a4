"""A run of two hosts, here two processes, one of which is lost: the other must say so and end, and both continue. Where
mlm.cli.train itself started them on one host, it must notice, and start both again."""
import contextlib
import json
import random
import signal
import socket
import time
from collections.abc import Mapping

from experiments.breaker import outcome, subject
from experiments.breaker.phases import Look
from experiments.breaker.place import BAD, EQUAL, NAMED, Ending, Place, named
from experiments.breaker.processes import Hangs, Started

HEARS = 240   # seconds within which a host must have noticed that the other is lost
HANGS = 10    # seconds between two steps after which mlm.cli.train takes a process of its own for hung


def pair(place: Place, words) -> list[Started]:
    with contextlib.closing(socket.create_server(("localhost", 0))) as free:
        port = free.getsockname()[1]
    return [place.start([*words, f"--coordinator=localhost:{port}", "--processes=2", f"--process={number}"])
            for number in range(2)]


def ended(both: list[Started]) -> list[int]:
    return [one.wait() for one in both]


def undisturbed(place: Place, words) -> dict[str, str]:
    """What both make, which need not be what one makes alone: sums of floats come in another order."""
    kept = place.out / "hosts.json"
    if not kept.exists():
        place.clear()
        both = pair(place, words)
        if any(codes := ended(both)):
            raise ValueError(f"exit codes {codes}: {both[0].said().strip()[-500:]}")
        kept.write_text(json.dumps(outcome.outcome(place.folder)))
    return json.loads(kept.read_text())


def lost(place: Place, what: subject.Subject, rng: random.Random, number: int) -> Ending:
    """One of them is killed (SIGKILL) or halts for good (SIGSTOP) at a moment of chance."""
    words = what.commands[0]
    wanted = undisturbed(place, words)
    place.clear()
    look, both, who = Look(place.folder, words), pair(place, words), rng.randrange(2)
    aim, wait = rng.choice(("compiling", "training", "saving", "results")), rng.uniform(0, 0.3)
    while all(one.process.poll() is None for one in both) and look.phase() != aim:
        time.sleep(0.003)
    time.sleep(wait)
    died = f"process {who} {signal.Signals(number).name} in {look.phase()}"
    victim, other = both[who], both[1 - who]
    victim.signal(number, victim.members())
    try:
        code = other.wait(time.monotonic() - other.began + HEARS)
    except Hangs:
        return Ending(BAD, f"{died}: the other did not end within {HEARS} s")
    finally:
        victim.kill()
    said = "\n".join(line for line in other.said().splitlines() if not line.startswith("$ "))
    if code == 0:
        line = "it was done"
    else:
        try:
            line = named(code, said)
        except ValueError as error:
            return Ending(BAD, f"{died}: {error}")
    both = pair(place, words)
    try:
        if any(codes := ended(both)):
            return Ending(BAD, f"{died}: started again: exit codes {codes}: {both[0].said().strip()[-500:]}")
    finally:
        for one in both:
            one.kill()
    ending = place.compared(wanted)
    return Ending(NAMED, f"{died}: {line}") if ending.how == EQUAL else Ending(BAD, f"{died}: {ending.said}")


def dead(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    return lost(place, what, rng, signal.SIGKILL)


def silent(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    return lost(place, what, rng, signal.SIGSTOP)


def restarted(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """One of the processes that mlm.cli.train started is killed, or halts for good."""
    words = what.commands[0]
    wanted = undisturbed(place, words)
    place.clear()
    look = Look(place.folder, words)
    started = place.start([*words, "--local_processes=2", f"--hang_after={HANGS}"])
    aim, wait = rng.choice(("compiling", "training", "saving", "results")), rng.uniform(0, 0.3)
    number = rng.choice((signal.SIGKILL, signal.SIGSTOP))
    while started.process.poll() is None and look.phase() != aim:
        time.sleep(0.003)
    time.sleep(wait)
    if len(members := started.members()) < 3:
        return Ending(BAD, f"not two processes: {started.said().strip()[-500:]}")
    how = f"{signal.Signals(number).name} in {look.phase()}"
    started.signal(number, [rng.choice(members[1:])])
    if (code := started.wait()) != 0:
        return Ending(BAD, f"{how}: exit code {code}: {started.said().strip()[-500:]}")
    started.alone()
    line = next((line for line in started.said().splitlines() if "start again" in line), "")
    ending = place.compared(wanted)
    return Ending(ending.how, f"{how}: {ending.said or line}")
