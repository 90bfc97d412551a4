"""Faults other than kills, each injected several times; a workload must survive each, or name it in an error line."""

import json
import random
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.chaos import damage, disk, workloads
from tests.chaos.processes import HangError
from tests.chaos.workspace import BAD, TrialResult, Workspace

LOG_FILE = "faults.jsonl"


class Fault(NamedTuple):
    inject: Callable[[Workspace, workloads.Workload, Mapping[str, str], random.Random], TrialResult]
    workloads: tuple[str, ...]  # one for each trial


RUN, SWEEP, LANGUAGE = "run", "sweep", "language"
FAULTS = {
    "disk full": Fault(disk.fill_disk, (RUN, RUN, SWEEP, LANGUAGE)),
    "disk slow": Fault(disk.slow_disk, (RUN, LANGUAGE)),
    "file torn": Fault(damage.truncate_random_file, (RUN, SWEEP, LANGUAGE, RUN, SWEEP, LANGUAGE, RUN)),
    "bit flipped": Fault(damage.flip_bit_in_random_file, (RUN, SWEEP, LANGUAGE, RUN, SWEEP, LANGUAGE, RUN)),
    "compiled programs torn": Fault(damage.truncate_compiled_programs, (RUN,)),
}


def inject_faults(
    workspace: Workspace, names: list[str], seed: int, expected: Mapping[str, Mapping[str, str]]
) -> list[dict]:
    """Each named fault as often as FAULTS has it; the trials in the log are not repeated."""
    path = workspace.out / LOG_FILE
    trials = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    by_name = {workload.name: workload for workload in workloads.make_workloads()}
    planned = [(name, i, workload) for name in names for i, workload in enumerate(FAULTS[name].workloads)]
    previous = {(trial["fault"], trial["trial"]) for trial in trials}
    start, num_before = time.monotonic(), len(previous)
    for name, i, workload in planned:
        if (name, i) in previous:
            continue
        trial_start = time.monotonic()
        try:
            rng = random.Random(f"{seed}-{name}-{i}")
            result = FAULTS[name].inject(workspace, by_name[workload], expected[workload], rng)
        except (HangError, ValueError) as error:
            result = TrialResult(BAD, str(error))
        trial = {
            "fault": name,
            "trial": i,
            "workload": workload,
            "seed": seed,
            **result._asdict(),
            "seconds": round(time.monotonic() - trial_start, 1),
        }
        if result.verdict == BAD:
            trial["folder"] = str(workspace.save_copy(f"{name}-{i}".replace(" ", "-")))
        trials.append(trial)
        with path.open("a") as file:
            file.write(json.dumps(trial) + "\n")
        done = len(trials)
        seconds_left = (time.monotonic() - start) / (done - num_before) * (len(planned) - done)
        print(
            f"{name}, {workload}: {result.verdict}{result.message and ': '}{result.message} ({trial['seconds']} s); "
            f"{done} of {len(planned)} faults, {int(seconds_left // 60)}:{int(seconds_left % 60):02d} left",
            flush=True,
        )
    return trials
