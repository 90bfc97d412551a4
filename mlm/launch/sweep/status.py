"""The status of each point of a sweep, from its directory and from the clusters; and the cancelling of jobs."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import batch_warmup, config, files
from mlm.launch.cluster import CLUSTERS, job
from mlm.launch.sweep import job_registry, sweep_points, sweep_state
from mlm.training.run.directory import RunDirectory

FINAL_STATES = ("done", "damaged", "failed")


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
    jobs = job_registry.read_jobs(root)
    states = {Path(cfg.workdir).name: sweep_state.read_state(cfg) for cfg in configs}
    unfinished = {name for name, state in states.items() if state.name != "done"}
    open_jobs = [each for each in jobs if unfinished & {name for names in each.points for name in names}]
    places = job_registry.find_places(jobs, job_registry.query_states(open_jobs))
    active = find_active_points(states, places)
    return [
        describe_point(cfg, states[name := Path(cfg.workdir).name], places.get(name), name in active) for cfg in configs
    ]


def find_active_points(states: dict, places: dict) -> set[str]:
    """The point that each running command trains: one that is locked, else the first that has not ended, since on some
    disks one host does not see another's locks.
    """
    by_command: dict[tuple, list[str]] = {}
    for name, place in places.items():
        if place.state == "running" and name in states:
            by_command.setdefault((place.file, place.index), []).append(name)
    active: set[str] = set()
    for names in by_command.values():
        locked = [name for name in names if states[name].name == "in use"]
        active |= set(locked or [name for name in names if states[name].name not in FINAL_STATES][:1])
    return active


def describe_point(
    cfg: config.Config, point: sweep_state.PointState, place: job_registry.QueuePlace | None, is_active: bool
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
        state, note = "lost", read_last_line(job.log_path(place.file, place.index))
    step = f"{point.step:,}/{point.num_steps:,}" if point.num_steps else ""
    return PointStatus(
        sweep_points.point_name(cfg), state, step, estimate_time_left(cfg, point) if is_active else "", job_label, note
    )


def estimate_time_left(cfg: config.Config, point: sweep_state.PointState) -> str:
    """The time of the remaining steps at the speed of the recorded ones."""
    records, _ = files.read_complete_lines(RunDirectory(cfg.workdir).metrics)
    timed = [record for record in records if record.get("timed_seconds")]
    if not timed:
        return ""
    seconds, steps = timed[-1]["timed_seconds"], range(timed[-1]["step"])
    left = range(point.step, point.num_steps)
    return sweep_state.format_duration(batch_warmup.estimate_seconds_left(cfg.train, seconds, steps, left))


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
    if jobs := job_registry.read_jobs(root):
        print(f"output of the commands: {Path(jobs[-1].file).parents[1]}/JOB/INDEX.log")


def cancel_jobs(root: Path) -> None:
    """Cancels all submitted jobs of a sweep. Returns at once; running commands save and end."""
    states: list[str] = []
    if job_registry.read_jobs(root):
        with job_registry.lock_registry(root):
            jobs = job_registry.read_jobs(root)
            by_file = job_registry.query_states(jobs)
            live = [each for each in jobs if by_file.get(each.file)]
            states = [state for each in live for state in by_file[each.file].values()]
            for name in dict.fromkeys(each.cluster for each in live):
                CLUSTERS[name].cancel_jobs([Path(each.file) for each in live if each.cluster == name])
            job_registry.write_jobs(root, [each._replace(cancelled=each.cancelled or each in live) for each in jobs])
    if not states:
        print("nothing of this sweep is queued or running")
        return
    print(
        f"cancelled: {states.count('queued')} queued commands, and {states.count('running')} running ones, which "
        "save and end; submit continues from there"
    )
