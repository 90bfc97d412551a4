"""Chaos tests: kills runs and sweeps at random moments, fills disks, damages files, and checks the outcome.

    python -m tests.chaos [--kills=100] [--seed=0] [--out=runs/chaos]

Each trial runs a small workload as real processes in a fresh folder. It repeats the same command until it ends, and
compares everything except times with an undisturbed run. The workload must survive a fault, or name it in one line and
reach the same outcome once the fault is gone. Trials in --out are not repeated. Exit code 1 if any trial was bad.
Programs compile quickly with XLA_FLAGS=$(python tests/quickly.py).
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from absl import logging
from tabulate import tabulate

from mlm.base import errors
from mlm.launch import consistency
from tests.chaos import faults, kills, workloads
from tests.chaos.phases import PHASES
from tests.chaos.workspace import BAD, EQUAL, NAMED, SKIPPED, Workspace


def run_undisturbed(workspace: Workspace) -> dict[str, tuple[dict, dict]]:
    """The digests and phases of each undisturbed workload, from --out if they are saved there for this very code."""
    path, code = workspace.out / "undisturbed.json", consistency.code_versions()
    if path.exists():
        saved = json.loads(path.read_text())
        errors.require(
            saved["code"] == code, "--out", str(workspace.out), "a folder that holds trials of this code, or none"
        )
    else:
        print("running the workloads undisturbed", flush=True)
        saved = {
            "code": code,
            "workloads": {
                workload.name: kills.run_undisturbed(workspace, workload) for workload in workloads.make_workloads()
            },
        }
        path.write_text(json.dumps(saved))
    return {
        name: (digests, {phase: kills.PhaseStats(*stats) for phase, stats in phases.items()})
        for name, (digests, phases) in saved["workloads"].items()
    }


def make_table(kill_trials: list[dict], fault_trials: list[dict]) -> str:
    """Phases and faults, with the number of trials of each verdict."""
    verdicts: dict[str, Counter] = {f"killed: {phase}": Counter() for phase in PHASES}
    for trial in kill_trials:
        for kill in trial["kills"]:
            verdicts[f"killed: {kill['phase']}"][BAD if trial["problems"] else EQUAL] += 1
    for trial in fault_trials:
        verdicts.setdefault(trial["fault"], Counter())[trial["verdict"]] += 1
    rows = [
        [name, counts.total(), *(counts[verdict] for verdict in (EQUAL, NAMED, BAD, SKIPPED))]
        for name, counts in verdicts.items()
    ]
    return tabulate(rows, ["event", "times", "bit-equal", "named, then bit-equal", "bad", "skipped"], "github")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="number of kills")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--out", default="runs/chaos", help="folder of the trials and their records")
    parser.add_argument("--faults", default=",".join(faults.FAULTS), help="faults besides kills, comma-separated")
    options = parser.parse_args()
    logging.use_absl_handler()
    logging.set_verbosity(logging.ERROR)
    workspace = Workspace(Path(options.out).absolute())
    fault_names = [name for name in options.faults.split(",") if name]
    for name in fault_names:
        errors.require_one_of("--faults", name, [*faults.FAULTS])
    undisturbed = run_undisturbed(workspace)
    kill_trials = kills.run_trials(workspace, options.kills, options.seed, undisturbed)
    fault_trials = faults.inject_faults(
        workspace, fault_names, options.seed, {name: digests for name, (digests, _) in undisturbed.items()}
    )
    table = make_table(kill_trials, fault_trials)
    (workspace.out / "table.md").write_text(table + "\n")
    bad = [trial for trial in kill_trials if trial["problems"]]
    bad += [trial for trial in fault_trials if trial["verdict"] == BAD]
    print(table, *(f"bad: {json.dumps(trial)}" for trial in bad), sep="\n")
    print(f"written in {workspace.out}: table.md, {kills.LOG_FILE}, {faults.LOG_FILE}")
    if leftovers := [path for trial in kill_trials for path in trial["leftovers"]]:
        print(f"left behind: {', '.join(leftovers)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
