"""mlm sweep search: the same number of trials for each row of an experiment, and a file of what they chose."""

import shlex
import sys
import time
from pathlib import Path

from mlm.base import errors, files
from mlm.base.flag import Flag
from mlm.cli import command

OUT = "search/chosen.json in the sweep's folder; as experiments/searches/NAME-SCALE.json the scale uses it"
RUNGS = (0.25, 1.0)
FLAGS = (
    Flag("trials", 16, "trials of each row, best a power of two (16)", low=1, high=4096),
    Flag(
        "rungs",
        RUNGS,
        "shares of the training length after which the best go on, each rung a run of its own; the last is 1 "
        f"({','.join(f'{rung:g}' for rung in RUNGS)})",
        "SHARE,...",
        float,
    ),
    Flag("search_seed", 0, "seed of the values that are tried (0)"),
    Flag("out", "", f"where to write what was chosen, with all trials ({OUT})", "FILE"),
)


def search_points(sweep) -> None:
    """Searches, writes the file of chosen values, and prints them. Exits with 1 if a trial failed."""
    from mlm.experiment import search_space, searches
    from mlm.launch.sweep import search
    from mlm.report import expected_best, table
    from mlm.training.run import provenance

    experiment, args, folder = sweep.experiment, sweep.args, sweep.root / "search"
    where = f"experiment {experiment.__file__}: search_space"
    expected = "a function of a point's fields that returns ranges by field (docs/guides/sweep.md)"
    errors.require(hasattr(experiment, "search_space"), where, None, expected)
    plan = search.SearchPlan(args.trials, args.rungs, args.search_seed)
    is_ascending = list(plan.rungs) == sorted(set(plan.rungs)) and all(rung > 0 for rung in plan.rungs)
    shown = ",".join(f"{rung:g}" for rung in plan.rungs)
    expected = "ascending shares of the training length, of which the last is 1, such as 0.25,1"
    errors.require(is_ascending and plan.rungs[-1:] == (1.0,), "--rungs", shown, expected)
    out = files.make_path(args.out or folder / "chosen.json")
    files.check_folder("--out", str(out.parent))
    base, overrides = sweep.config_flags.load_base(), sweep.config_flags.overrides
    rows = search.build_rows(experiment.search_space, experiment.sweep(args.scale), sweep.configs, overrides)
    values, make_point = search.build_trials(rows, plan, folder, base, overrides)
    train = lambda points: train_trials(folder, points, args)
    scores, name, better = search.run_search([*rows], plan, make_point, train)
    chosen = search.choose(rows, values, scores, better)
    origin = {
        "num_trials": plan.num_trials,
        "seed": plan.seed,
        "command": f"mlm {shlex.join(sweep.words)}",
        "commit": provenance.describe_source()["commit"],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "held_out": search.find_search_split(sweep.configs[0]),
    }
    found = searches.Search(args.scale, chosen, [*plan.rungs], name, better, origin)
    searches.write_search(out, found)
    print()
    table.print_table(*expected_best.build_table(found))
    print(f"\nwritten: {out}")
    for row, own in chosen.items():
        if edges := search_space.find_edges(rows[row].space, own.chosen):
            command.print_notes(f"at the edge of its range: {row}: {', '.join(edges)}; widen it and search again")


def train_trials(root: Path, points: list, args) -> None:
    """Trains the points that are not done. Exits with 1 if one failed but did not diverge."""
    from mlm.launch.sweep import runner, search, sweep_state

    if not points:
        return
    sweep_runner = runner.SweepRunner(root, points, num_workers=args.workers, vmap_runs=args.vmap_runs)
    sweep_runner.run()
    failures = sweep_runner.failures.items()
    if failed := {workdir: error for workdir, error in failures if not error.startswith(search.DIVERGED)}:
        command.print_notes(*sweep_state.describe_failures(failed))
        sys.exit(1)
