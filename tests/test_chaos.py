"""A short chaos test: a killed run ends as an undisturbed one. `launch/test.sh --all` runs the long one, tests/chaos."""

import os
import random
import time

import pytest

from mlm.base import files
from mlm.training.run import checkpoint, directory
from tests.chaos import digests, experiment, kills, phases, workloads, workspace

SHORT = {
    "train.steps": 6,
    "train.checkpoint_every": 2,
    "train.eval_every": 0,
    "data.cache_dir": workloads.CACHE,
    "workdir": f"{workloads.RUNS}/run",
}


@pytest.mark.slow
def test_a_run_that_is_killed_ends_as_one_that_nobody_disturbed(tmp_path):
    there = workspace.Workspace(tmp_path)
    (tmp_path / workspace.SHARED_CACHE).symlink_to(os.environ["JAX_COMPILATION_CACHE_DIR"])
    flags = workloads.format_flags(experiment.SMALL | experiment.TEXT | SHORT)
    what = workloads.Workload("short", (("-m", "mlm", "train", *flags),))
    seed = time.time_ns()
    print(f"seed {seed}")
    expected, seen = kills.run_undisturbed(there, what)
    assert {"compiling", "saving", "evaluating"} <= seen.keys()
    for number in range(5):  # a moment that is drawn may be past the run's end, as short as it is
        one = kills.run_trial(there, what, ["evaluating"], expected, seen, random.Random(seed + number))
        assert one["problems"] == [], one
        if one["kills"]:
            break
    assert len(one["kills"]) == 1, one
    run = there.folder / SHORT["workdir"]
    assert [start["step"] > 0 for start in directory.read_provenance(run)] == [False, True]  # from a checkpoint
    (rows,) = (there.folder / workloads.CACHE).glob("rows-*/manifest.json")
    files.write_json_with_digest(rows, {"rows": 0})
    assert digests.list_differences(digests.collect_digests(there.folder), expected) == [f"rows: {rows.parent.name}"]
