"""Trials: a subject is killed at random moments, aimed at phases in turn, started again each time until it ends, and
compared with what it makes when nobody disturbs it."""
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.breaker import outcome, subject
from experiments.breaker.phases import Look
from experiments.breaker.place import Place
from experiments.breaker.processes import Hangs, Started

OFTEN = 0.003   # seconds between two looks at the phase
WHOM = {"sweep": ("all", "all", "runner", "worker")}   # is killed, drawn for each kill
MOST = 10       # kills of a trial
TURNS = ("run", "sweep", "language", "run", "submitted", "run", "sweep", "language")   # of the subjects
KEPT = "kills.jsonl"


class Seen(NamedTuple):
    """How a phase went when nobody disturbed it."""

    times: int
    seconds: float   # each time, on average


class Kill(NamedTuple):
    phase: str       # in which it died, by what it left
    aim: str
    whom: str
    seconds: float   # after its start


def undisturbed(place: Place, what: subject.Subject) -> tuple[dict[str, str], dict[str, Seen]]:
    """What a subject makes, and its phases. Raises RuntimeError where it does not end well."""
    place.clear()
    times, seconds = Counter(), Counter()
    for words in what.commands:
        look, before, last = Look(place.folder, words), "", time.monotonic()
        started = place.start(words)
        while started.process.poll() is None:
            phase, now = look.phase(), time.monotonic()
            times[phase] += phase != before
            seconds[before or phase] += now - last
            before, last = phase, now
            time.sleep(OFTEN)
        if started.wait() != 0:
            raise RuntimeError(f"{what.name} does not run at all:\n{started.said()}")
    return outcome.outcome(place.folder), {
        phase: Seen(times[phase], seconds[phase] / times[phase]) for phase in times}


def killed(started: Started, look: Look, aims: Sequence[str], phases: Mapping[str, Seen], rng: random.Random,
           whom: str) -> Kill | None:
    """Kills a command in the first of the phases that are aimed at to come, somewhere in it; None where it ended
    before."""
    left = {aim: rng.choice((1, rng.randint(1, phases[aim].times))) for aim in aims}   # times until it is killed there
    before = aim = ""
    while started.process.poll() is None:
        aim = look.phase()
        if aim != before and aim in left:
            left[aim] -= 1
            if left[aim] == 0:
                time.sleep(rng.random() * phases[aim].seconds)
                break
        before = aim
        time.sleep(OFTEN)
    members = started.members()
    if started.process.poll() is not None or not members:
        return None
    after = time.monotonic() - started.began
    victims = {"all": members, "runner": members[:1], "worker": workers(members)[:1]}[whom]
    if whom == "all" or not victims:
        started.kill()
        whom = "all"
    else:
        started.signal(signal.SIGKILL, victims)
    if whom == "runner":
        started.process.wait()
    return Kill(look.phase(), aim, whom, round(after, 3))


def workers(members: Sequence[int]) -> list[int]:
    return [pid for pid in members if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def trial(place: Place, what: subject.Subject, aims: Sequence[str], wanted: Mapping[str, str],
          phases: Mapping[str, Seen], rng: random.Random) -> dict:
    """One fresh folder: killed at each aim, then let be; how it ended, as kills.jsonl keeps it."""
    place.clear()
    aims, cold, kills, wrong = list(aims), rng.random() < 0.5, [], []
    began = time.monotonic()
    try:
        for words in what.commands:
            wrong += ended(place, what, words, aims, kills, phases, rng, cold)
            if wrong:
                break
        else:
            wrong = outcome.differences(outcome.outcome(place.folder), wanted)
    except (Hangs, Exception) as error:
        wrong = [f"{type(error).__name__}: {error}"]
    return {"subject": what.name, "kills": [kill._asdict() for kill in kills], "wrong": wrong,
            "left": outcome.leftovers(place.folder), "seconds": round(time.monotonic() - began, 1)}


def ended(place, what, words, aims, kills, phases, rng, cold) -> list[str]:
    """Starts a command until it ends, killing it at each aim that comes; what of its end was wrong."""
    while True:
        look = Look(place.folder, words)
        started, kill = place.start(words, cold=cold and "compiling" in aims), None
        if aims:
            whom = rng.choice(WHOM.get(what.name, ("all",)))
            kill = killed(started, look, aims, phases, rng, whom)
        if kill is not None:
            kills.append(kill)
            aims.remove(kill.aim)
        code = started.wait()
        if kill is None or kill.whom == "worker":
            started.alone()
        if kill is None and code != 0:
            return [f"exit code {code}: {started.said()[-2000:]}"]
        if code == 0:
            return []


def aimed(counts: Mapping[str, int], phases: Mapping[str, Seen], rng: random.Random) -> list[str]:
    """The phases to aim at in a trial: those in which fewest died so far; submitting, which is short, again and again.
    """
    if "submitting" in phases:
        return ["submitting"] * rng.randint(1, MOST)
    order = sorted(phases, key=lambda phase: (counts.get(phase, 0), rng.random()))
    return order[:rng.randint(3, MOST)]


def run(place: Place, count: int, seed: int, known: Mapping[str, tuple[dict, dict]]) -> list[dict]:
    """Trials until so many kills were made; those that `out` holds already are not made again."""
    path = place.out / KEPT
    trials = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    subjects = {what.name: what for what in subject.subjects()}
    began, first = time.monotonic(), sum(len(one["kills"]) for one in trials)
    while (made := sum(len(one["kills"]) for one in trials)) < count:
        rng = random.Random(f"{seed}-{len(trials)}")
        what = subjects[TURNS[len(trials) % len(TURNS)]]
        wanted, phases = known[what.name]
        counts = Counter(kill["phase"] for one in trials for kill in one["kills"])
        one = {"trial": len(trials), "seed": seed} | trial(place, what, aimed(counts, phases, rng)[:count - made],
                                                         wanted, phases, rng)
        if one["wrong"]:
            one["folder"] = str(place.keep(f"trial{len(trials)}"))
        trials.append(one)
        with path.open("a") as file:
            file.write(json.dumps(one) + "\n")
        made = sum(len(one["kills"]) for one in trials)
        left = (time.monotonic() - began) / max(made - first, 1) * max(count - made, 0)
        print(f"{what.name}: killed in {', '.join(kill['phase'] for kill in one['kills']) or 'no phase'}: "
              f"{'; '.join(one['wrong']) or 'bit-equal'} ({one['seconds']} s); {made} of {count} kills, "
              f"{int(left // 60)}:{int(left % 60):02d} left", flush=True)
    return trials
