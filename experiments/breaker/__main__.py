"""Kills runs and sweeps at random moments and lets disks, clocks, files and hosts fail, and sees what comes of it.

    python -m experiments.breaker [--kills=100] [--seed=0] [--out=runs/breaker]

Each trial is a small run or sweep as real processes in a fresh folder, by the same command again until it ends, and all
that it made (but times) is compared with what nobody disturbed. A fault must be survived so, or be named in a line,
with the same end once it is gone. What is in --out already is not done again. Exit code 1 where anything was bad.
Programs compile quickly with XLA_FLAGS=$(python tests/quickly.py).
"""
import json
import sys
from collections import Counter
from pathlib import Path

from absl import app, flags, logging
from tabulate import tabulate

from experiments.breaker import faults, kills, subject
from experiments.breaker.phases import PHASES
from experiments.breaker.place import BAD, EQUAL, NAMED, SKIPPED, Place
from mlm.base import errors
from mlm.launch import consistency

_KILLS = flags.DEFINE_integer("kills", 100, "How many.", lower_bound=0)
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.")
_OUT = flags.DEFINE_string("out", "runs/breaker", "Where trials are made, and what became of them is kept.")
_FAULTS = flags.DEFINE_list("faults", [*faults.FAULTS], "Which, beside the kills.")


def known(place: Place) -> dict[str, tuple[dict, dict]]:
    """What each subject makes when nobody disturbs it, with its phases; of this very code, or not that of `out`."""
    path, code = place.out / "undisturbed.json", consistency.program()
    if path.exists():
        kept = json.loads(path.read_text())
        errors.require(kept["code"] == code, "--out", str(place.out),
                       "a folder that holds trials of this code, or none")
    else:
        print("first, nobody disturbs them", flush=True)
        kept = {"code": code, "found": {what.name: kills.undisturbed(place, what) for what in subject.subjects()}}
        path.write_text(json.dumps(kept))
    return {name: (wanted, {phase: kills.Seen(*seen) for phase, seen in phases.items()})
            for name, (wanted, phases) in kept["found"].items()}


def table(trials: list[dict], endings: list[dict]) -> str:
    """Phases and faults, with how often each ended how."""
    ends: dict[str, Counter] = {f"killed: {phase}": Counter() for phase in PHASES}
    for one in trials:
        for kill in one["kills"]:
            ends[f"killed: {kill['phase']}"][BAD if one["wrong"] else EQUAL] += 1
    for one in endings:
        ends.setdefault(one["fault"], Counter())[one["how"]] += 1
    hows = EQUAL, NAMED, BAD, SKIPPED
    rows = [[name, found.total(), *(found[how] for how in hows)] for name, found in ends.items()]
    return tabulate(rows, ["what befell it", "times", "bit-equal", "named, then bit-equal", "bad", "skipped"], "github")


def main(argv):
    logging.use_absl_handler()
    logging.set_verbosity(logging.ERROR)
    place = Place(Path(_OUT.value).absolute())
    for name in _FAULTS.value:
        errors.require_one_of("--faults", name, [*faults.FAULTS])
    found = known(place)
    trials = kills.run(place, _KILLS.value, _SEED.value, found)
    endings = faults.run(place, _FAULTS.value, _SEED.value, {name: wanted for name, (wanted, _) in found.items()})
    text = table(trials, endings)
    (place.out / "table.md").write_text(text + "\n")
    bad = [one for one in trials if one["wrong"]] + [one for one in endings if one["how"] == BAD]
    print(text, *(f"bad: {json.dumps(one)}" for one in bad), sep="\n")
    print(f"written in {place.out}: table.md, {kills.KEPT}, {faults.KEPT}")
    if left := [path for one in trials for path in one["left"]]:
        print(f"left behind: {', '.join(left)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    app.run(main)
