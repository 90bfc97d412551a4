"""Two who write the same, and one who is halted or asked to stop."""
import random
import signal
import time
from collections.abc import Mapping

from experiments.breaker import subject
from experiments.breaker.place import BAD, EQUAL, NAMED, Ending, Place


def two(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """Each command twice, at once or nearly; what one says who must leave it to the other."""
    place.clear()
    line = ""
    for words in what.commands:
        first = place.start(words)
        time.sleep(rng.choice((0, rng.uniform(0, 5))))
        second = place.start(words)
        codes = first.wait(), second.wait()
        if codes == (0, 0):
            continue
        refused = [code for code in codes if code]
        said = [text for text in first.said().splitlines() if text.startswith("error: ")]
        if refused != [2] or len(said) != 1:
            return Ending(BAD, f"exit codes {codes}: {first.said().strip()[-500:]}")
        line = said[0]
    ending = place.finish(what, wanted)
    return Ending(NAMED, line) if line and ending.how == EQUAL else ending


def halted(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """Its processes are stopped for a while and let go on, again and again, as on a machine that has no time or disk
    for them."""
    place.clear()
    for words in what.commands:
        started = place.start(words)
        while started.process.poll() is None:
            time.sleep(rng.uniform(0.05, 0.8))
            members = started.members()
            started.signal(signal.SIGSTOP, members)
            time.sleep(rng.uniform(0.05, 0.8))
            started.signal(signal.SIGCONT, members)
        started.alone()
        if (code := started.wait()) != 0:
            return Ending(BAD, f"exit code {code}: {started.said().strip()[-500:]}")
    return place.compared(wanted)


def asked(place: Place, what: subject.Subject, wanted: Mapping[str, str], rng: random.Random) -> Ending:
    """SIGTERM or SIGINT at moments of chance. What was logged is then as before but for a record of the step at which
    a run was stopped."""
    place.clear()
    line = ""
    for words in what.commands:
        code, left = 1, 2
        while code != 0:
            started, number = place.start(words), rng.choice((signal.SIGTERM, signal.SIGINT))
            if left:
                time.sleep(rng.uniform(1, 12))
                started.signal(number, started.members()[:1])
                left -= 1
            code, said = started.wait(), started.said()
            if code == 0:
                continue
            if code not in (128 + number, -number) or "Traceback" in said:
                return Ending(BAD, f"{signal.Signals(number).name}: exit code {code}: {said.strip()[-500:]}")
            line = said.strip().splitlines()[-1] if code > 0 and said.strip() else line
    ending = place.compared(wanted, ": history")
    return Ending(NAMED, line) if line and ending.how == EQUAL else ending
