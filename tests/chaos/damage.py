"""Truncated files and flipped bits, in files of a run, a sweep and their cache, and in compiled programs."""

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from mlm.base import files
from tests.chaos import workloads
from tests.chaos.phases import PhaseObserver
from tests.chaos.workspace import BAD, EQUAL, NAMED, SHARED_CACHE, TrialResult, Workspace, find_error_line
from tests.fuzz.bit_flips import flip_bit


def group_files(folder: Path) -> dict[str, list[Path]]:
    """The files that commands write and read, by name, in all folders."""
    groups: dict[str, list[Path]] = {}
    for top in (workloads.RUNS, workloads.CACHE):
        for path in sorted((folder / top).rglob("*")):
            if path.is_file() and path.stat().st_size and not {"tensorboard", "logs", "figures"} & {*path.parts}:
                kind = "checkpoints" if "checkpoints" in path.parts else path.name
                groups.setdefault(kind, []).append(path)
    return groups


def truncate_file(path: Path, rng: random.Random) -> str:
    """Returns a description."""
    size = rng.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(size)
    return f"truncated at byte {size}"


def flip_random_bit(path: Path, rng: random.Random) -> str:
    """Returns a description."""
    position = rng.randrange(path.stat().st_size)
    flip_bit(path, position, rng.randrange(8))
    return f"a bit of byte {position} flipped"


def damage_random_file(
    workspace: Workspace,
    workload: workloads.Workload,
    expected: Mapping[str, str],
    rng: random.Random,
    damage: Callable[[Path, random.Random], str],
) -> TrialResult:
    """Damages a random file, of a random kind, of a workload that is done or was killed half-way."""
    workspace.reset()
    done, last = rng.random() < 0.5, workload.commands[-1]
    for arguments in workload.commands[: None if done else -1]:
        workspace.run_command(arguments)
    if not done:
        observer, session = PhaseObserver(workspace.folder, last), workspace.start(last)
        target = rng.choice(("training", "saving", "results", "fine-tuning"))
        while session.process.poll() is None and observer.find_phase() != target:
            pass
        session.kill()
    groups = group_files(workspace.folder)
    path = rng.choice(groups[rng.choice(sorted(groups))])
    original = path.read_bytes()
    description = f"{path.relative_to(workspace.folder)} {damage(path, rng)}"
    line = ""
    for arguments in workload.commands:
        exit_code, output = workspace.run_command(arguments)
        if "damaged" in output or "making it again" in output or "made again" in output:
            line = line or next(line for line in output.splitlines() if "damaged" in line or "again" in line)
        if exit_code != 0:
            try:
                line = find_error_line(exit_code, output)
            except ValueError as error:
                return TrialResult(BAD, f"{description}: {error}")
            path.write_bytes(original)
            result = workspace.finish_workload(workload, expected)
            return (
                TrialResult(NAMED, f"{description}: {line}")
                if result.verdict == EQUAL
                else TrialResult(BAD, f"{description}: {result.message}")
            )
    try:
        result = workspace.compare(expected, without_history=path.name == "metrics.jsonl" and bool(line))
    except files.DamagedFile as damaged:  # no command needed it; a reader gets this error
        return TrialResult(NAMED, f"{description}: {damaged}")
    verdict = NAMED if line and result.verdict == EQUAL else result.verdict
    return TrialResult(verdict, f"{description}: {line or result.message}")


def truncate_random_file(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    return damage_random_file(workspace, workload, expected, rng, truncate_file)


def flip_bit_in_random_file(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    return damage_random_file(workspace, workload, expected, rng, flip_random_bit)


def truncate_compiled_programs(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    workspace.reset()
    shutil.copytree(workspace.out / SHARED_CACHE, workspace.folder / workloads.COLD_CACHE)
    for path in (workspace.folder / workloads.COLD_CACHE).rglob("*"):
        if path.is_file() and path.stat().st_size:
            truncate_file(path, rng)
    return workspace.finish_workload(workload, expected, cold=True)
