"""The jobs of a sweep that were submitted to clusters, recorded in its folder, and their current states."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import files
from mlm.base.storage import DISK
from mlm.launch.cluster import CLUSTERS


class SubmittedJob(NamedTuple):
    """A job that was recorded in order to be submitted; whether it was, its cluster knows."""

    file: str  # the job's file, which identifies it
    cluster: str  # key of CLUSTERS
    points: tuple[tuple[str, ...], ...]  # of each command: names of the points' folders; none for the table's job
    submitted_at: str
    cluster_job: str = ""  # the cluster's name for it
    cancelled: bool = False  # by cancel_jobs, whatever became of it


class QueuePlace(NamedTuple):
    """Where a point stands on a cluster."""

    file: Path  # of the job
    index: int  # of the command
    state: str  # "queued", "running", or "" if it is no longer in a queue


def registry_path(root: Path) -> Path:
    """The file of a sweep's submitted jobs."""
    return files.local_folder(root) / "submitted.json"


def lock_registry(root: Path):
    """A context in which no other process submits or cancels; waits for a process that does."""
    return DISK.lock(files.local_folder(root))


def read_jobs(root: Path) -> list[SubmittedJob]:
    """The jobs in the order of submission. Raises DamagedFile if the record is damaged."""
    try:
        saved = files.read_json_with_digest(registry_path(root)) or {"jobs": []}
    except files.DamagedFile as damaged:
        raise files.DamagedFile(
            f"{damaged}; it lists the submitted jobs: look at the cluster's queue, cancel the jobs "
            "there, and remove the file"
        ) from None
    return [SubmittedJob(**job | {"points": tuple(map(tuple, job["points"]))}) for job in saved["jobs"]]


def write_jobs(root: Path, jobs: Sequence[SubmittedJob]) -> None:
    """Writes the sweep's submitted jobs."""
    files.write_json_with_digest(registry_path(root), {"jobs": [job._asdict() for job in jobs]})


def query_states(jobs: Sequence[SubmittedJob]) -> dict[str, dict[int, str]]:
    """The clusters' current states of each job, by its file: its commands that are "queued" or "running"."""
    states: dict[str, dict[int, str]] = {}
    for cluster in dict.fromkeys(job.cluster for job in jobs):
        found = CLUSTERS[cluster].query_states([Path(job.file) for job in jobs if job.cluster == cluster])
        states |= {str(path): command_states for path, command_states in found.items()}
    return states


def find_places(jobs: Sequence[SubmittedJob], states: dict[str, dict[int, str]]) -> dict[str, QueuePlace]:
    """By the name of a point's folder, the job to which it was submitted last; jobs in a queue take precedence."""
    places: dict[str, QueuePlace] = {}
    for job in jobs:
        for index, names in enumerate(job.points):
            state = states.get(job.file, {}).get(index, "")
            if job.cancelled and not state:
                continue
            for name in names:
                if state or name not in places or not places[name].state:
                    places[name] = QueuePlace(Path(job.file), index, state)
    return places
