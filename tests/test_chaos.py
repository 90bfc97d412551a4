"""Killed, damaged or without disk, a run or a sweep ends as one that nobody disturbed, or says in a line why not."""

import random
import time

import pytest

from tests.chaos import damage, disk, kills, workloads, workspace
from tests.fuzz import bit_flips


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A workspace, and each workload with the digests and the phases of its undisturbed run."""
    there = workspace.Workspace(tmp_path_factory.mktemp("chaos"))
    return there, {one.name: (one, *kills.run_undisturbed(there, one)) for one in workloads.make_workloads()}


@pytest.fixture
def rng():
    seed = time.time_ns()
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", ["run", "sweep", "language"])
def test_a_workload_that_is_killed_in_several_phases_ends_as_an_undisturbed_one(undisturbed, rng, name, number):
    there, known = undisturbed
    workload, expected, phases = known[name]
    trial = kills.run_trial(there, workload, rng.sample(sorted(phases), 4), expected, phases, rng)
    assert trial["problems"] == [], trial


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["run", "sweep", "language"])
@pytest.mark.parametrize(
    "inject",
    [disk.fill_disk, damage.truncate_random_file, damage.flip_bit_in_random_file, damage.truncate_compiled_programs],
    ids=lambda inject: inject.__name__,
)
def test_a_fault_is_named_or_changes_nothing(undisturbed, rng, inject, name):
    there, known = undisturbed
    workload, expected, _ = known[name]
    result = inject(there, workload, expected, rng)
    if result.verdict == workspace.SKIPPED:
        pytest.skip(result.message)
    assert result.verdict != workspace.BAD, result.message


@pytest.mark.exhaustive
def test_no_flipped_bit_gives_another_number(tmp_path, rng):
    assert bit_flips.flip_and_check(tmp_path, 150, rng) == []
