"""The jobs of a sweep that were submitted to clusters, recorded in its folder; and where each of its points stands."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import config, files, groups
from mlm.base.storage import DISK
from mlm.launch.cluster import CLUSTERS
from mlm.launch.cluster import job as cluster_job
from mlm.launch.sweep import sweep_points, sweep_state

FINAL_STATES = ("done", "damaged", "failed")


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


def submit_job(root: Path, job: cluster_job.Job, cluster_name: str) -> str:
    """Records a job, then submits it: after a kill in between, its name tells whether the cluster has it.

    Returns the cluster's name for it.
    """
    cluster = CLUSTERS[cluster_name]
    path, submitted = job.folder / cluster.FILE, read_jobs(root)
    job.folder.mkdir(parents=True, exist_ok=True)
    files.write_text(path, cluster.render_script(job))
    record = SubmittedJob(str(path), cluster_name, job.points, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    write_jobs(root, [*submitted, record])
    name = cluster.submit_job(job, path)
    write_jobs(root, [*submitted, record._replace(cluster_job=name)])
    return name


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


class PointStatus(NamedTuple):
    """A line of the table."""

    point: str
    state: str  # queued | running | lost (it was submitted, is in no queue and not done), else as PointState.name
    step: str
    time_left: str  # while it runs
    job: str  # name of the job, and index of its command
    note: str  # score, or last error


def read_status(root: Path, configs: Sequence[config.Config]) -> list[PointStatus]:
    """Queries the clusters for the jobs of points that are not done. Raises ConfigError if a query fails."""
    jobs = read_jobs(root)
    states = {Path(cfg.workdir).name: sweep_state.read_state(cfg) for cfg in configs}
    unfinished = {name for name, state in states.items() if state.name != "done"}
    open_jobs = [each for each in jobs if unfinished & {name for names in each.points for name in names}]
    places = find_places(jobs, query_states(open_jobs))
    active = find_active_points(states, places)
    return [
        describe_point(cfg, states[name := Path(cfg.workdir).name], places.get(name), name in active) for cfg in configs
    ]


def find_active_points(states: dict, places: dict) -> set[str]:
    """The point that each running command trains: one that is locked, where that shows, else the first not ended."""
    running = {name: place for name, place in places.items() if place.state == "running" and name in states}
    by_command = groups.group_values(((place.file, place.index), name) for name, place in running.items())
    active: set[str] = set()
    for names in by_command.values():
        locked = [name for name in names if states[name].name == "in use"]
        active |= set(locked or [name for name in names if states[name].name not in FINAL_STATES][:1])
    return active


def describe_point(
    cfg: config.Config, point: sweep_state.PointState, place: QueuePlace | None, is_active: bool
) -> PointStatus:
    """The line of a point: its state, and its score, progress or error."""
    job_label = f"{place.file.parent.name} {place.index}" if place else ""
    ended, state, note = point.name in (*FINAL_STATES, "in use"), point.name, point.error
    if state == "done":
        note = sweep_state.format_score(cfg)
    elif is_active:
        state = "running"
    elif place and (place.state == "queued" or (place.state == "running" and not ended)):  # waits within its command
        state = "queued"
    elif place and not place.state and not ended:
        state, note = "lost", read_last_line(cluster_job.log_path(place.file, place.index))
    step = f"{point.step:,}/{point.num_steps:,}" if point.num_steps else ""
    return PointStatus(sweep_points.point_name(cfg), state, step, point.time_left if is_active else "", job_label, note)


def read_last_line(path: Path) -> str:
    """The last line that is not empty, at most 200 characters of it."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "it printed nothing"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")[:200]


def show_status(root: Path, configs: Sequence[config.Config]) -> None:
    """Prints a line for each point, and the sweep's jobs."""
    from tabulate import tabulate

    rows = read_status(root, configs)
    print(tabulate(rows, headers=PointStatus._fields, tablefmt="plain", disable_numparse=True))
    states = [row.state for row in rows]
    print("\n" + ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    if jobs := read_jobs(root):
        print(f"output of the commands: {Path(jobs[-1].file).parents[1]}/JOB/INDEX.log")


def cancel_jobs(root: Path) -> None:
    """Cancels all submitted jobs of a sweep. Returns at once; running commands save and end."""
    states: list[str] = []
    if read_jobs(root):
        with lock_registry(root):
            jobs = read_jobs(root)
            by_file = query_states(jobs)
            live = [each for each in jobs if by_file.get(each.file)]
            states = [state for each in live for state in by_file[each.file].values()]
            for name in dict.fromkeys(each.cluster for each in live):
                CLUSTERS[name].cancel_jobs([Path(each.file) for each in live if each.cluster == name])
            write_jobs(root, [each._replace(cancelled=each.cancelled or each in live) for each in jobs])
    if not states:
        print("nothing of this sweep is queued or running")
        return
    print(
        f"cancelled: {states.count('queued')} queued commands, and {states.count('running')} running ones, which "
        "save and end; submit continues from there"
    )
