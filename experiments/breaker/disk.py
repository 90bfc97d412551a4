"""A disk that is full, and one that is slow."""
import contextlib
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping

from experiments.breaker import outcome, subject
from experiments.breaker.place import BAD, NAMED, SKIPPED, Ending, Place, broken, named

ENOUGH = "1g"
DELAY = 100_000    # microseconds that each call below takes longer
SLOW = ("fsync", "fdatasync", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "ftruncate", "mkdir")


@contextlib.contextmanager
def of_size(place: Place, size: int) -> Iterator[bool]:
    """The folder of trials on a file system of so many bytes, from which what is there is taken when the block ends;
    False where none can be mounted."""
    place.folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "breaker", str(place.folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            kept = place.keep("unmounted")
            subprocess.run(["umount", str(place.folder)], check=True)
            shutil.rmtree(place.folder)
            kept.rename(place.folder)


def full(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """A disk with less room than the subject needs, by chance; more comes when it has said so."""
    place.clear()
    size = 2**18 + rng.randrange(2**19)
    with of_size(place, size) as mounted:
        if not mounted:
            return Ending(SKIPPED, "no file system may be mounted here")
        subject.write(place.folder)
        said = ""
        for words in what.commands:
            code, output = place.call(words)
            if code == 0:
                continue
            try:
                said = named(code, output)
            except ValueError as error:
                return Ending(BAD, f"{size} bytes: {error}")
            if found := broken(place.folder):
                return Ending(BAD, f"{size} bytes: half-written: {found}")
            break
        subprocess.run(["mount", "-o", f"remount,size={ENOUGH}", str(place.folder)], check=True)
        ending = place.finish(what, wanted)
        if left := outcome.leftovers(place.folder):
            return Ending(BAD, f"{size} bytes: left behind: {left}")
        return ending if ending.how == BAD or not said else Ending(NAMED, said)


def slow(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """Each call of some kinds that change what is on the disk takes longer."""
    if shutil.which("strace") is None:
        return Ending(SKIPPED, "strace is not installed")
    place.clear()
    calls = ",".join(f"?{call}" for call in rng.sample(SLOW, 6))
    return place.finish(what, wanted, prefix=(
        "strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", f"trace={calls}", "-e",
        f"inject={calls}:delay_enter={DELAY}"))
