"""Files that are torn or of which a bit was flipped: of a run, a sweep and their cache, and compiled programs."""
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

from experiments.attack.flips import flip
from experiments.breaker import subject
from experiments.breaker.phases import Look
from experiments.breaker.place import BAD, EQUAL, NAMED, SHARED, Ending, Place, named
from mlm.base import files


def kinds(folder: Path) -> dict[str, list[Path]]:
    """The files that commands make and read, by what they are called wherever they lie."""
    found: dict[str, list[Path]] = {}
    for top in (subject.RUNS, subject.CACHE):
        for path in sorted((folder / top).rglob("*")):
            if path.is_file() and path.stat().st_size and not {"tensorboard", "logs", "figures"} & {*path.parts}:
                kind = "checkpoints" if "checkpoints" in path.parts else path.name
                found.setdefault(kind, []).append(path)
    return found


def tear(path: Path, rng: random.Random) -> str:
    """Shortens a file; what was done, in words."""
    size = rng.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(size)
    return f"torn at byte {size}"


def turn(path: Path, rng: random.Random) -> str:
    """Flips a bit of a file."""
    place = rng.randrange(path.stat().st_size)
    flip(path, place, rng.randrange(8))
    return f"a bit of byte {place} flipped"


def spoilt(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random, spoil) -> Ending:
    """A file of chance, of a kind of chance, of a subject that is done or was killed on its way, is spoilt."""
    place.clear()
    done, last = rng.random() < 0.5, what.commands[-1]
    for words in what.commands[:None if done else -1]:
        place.call(words)
    if not done:
        look, started = Look(place.folder, last), place.start(last)
        aim = rng.choice(("training", "saving", "results", "fine-tuning"))
        while started.process.poll() is None and look.phase() != aim:
            pass
        started.kill()
    of_kind = kinds(place.folder)
    path = rng.choice(of_kind[rng.choice(sorted(of_kind))])
    before = path.read_bytes()
    how = f"{path.relative_to(place.folder)} {spoil(path, rng)}"
    said = ""
    for words in what.commands:
        code, output = place.call(words)
        if "damaged" in output or "making it again" in output or "made again" in output:
            said = said or next(line for line in output.splitlines() if "damaged" in line or "again" in line)
        if code != 0:
            try:
                said = named(code, output)
            except ValueError as error:
                return Ending(BAD, f"{how}: {error}")
            path.write_bytes(before)
            ending = place.finish(what, wanted)
            return Ending(NAMED, f"{how}: {said}") if ending.how == EQUAL else Ending(BAD, f"{how}: {ending.said}")
    try:
        ending = place.compared(wanted)
    except files.Damaged as damaged:   # it was not needed, and who needs it is told
        return Ending(NAMED, f"{how}: {damaged}")
    return Ending(NAMED if said and ending.how == EQUAL else ending.how, f"{how}: {said or ending.said}")


def torn(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    return spoilt(place, what, wanted, rng, tear)


def flipped(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    return spoilt(place, what, wanted, rng, turn)


def compiled(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """Every compiled program that is kept is torn."""
    place.clear()
    shutil.copytree(place.out / SHARED, place.folder / subject.COLD)
    for path in (place.folder / subject.COLD).rglob("*"):
        if path.is_file() and path.stat().st_size:
            tear(path, rng)
    return place.finish(what, wanted, cold=True)
