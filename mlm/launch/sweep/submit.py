"""Submits the points of a sweep that are not done to a cluster: an array of commands, each for points of one program.

Each command is `mlm sweep run --points=...` with a copy of the code, made next to the runs (on several hosts `mlm
train`, for one point). A command that is killed or requeued loses the steps since the last checkpoint. Points that are
done, queued or running on the cluster, or in use by a process are left out, so that a second call adds what is missing.
When all commands have ended, one more job makes the table and the report.
"""

import contextlib
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import buckets, config, errors, fields, files
from mlm.launch import code_snapshot
from mlm.launch.cluster import CLUSTERS
from mlm.launch.cluster.accelerators import ACCELERATORS
from mlm.launch.cluster.job import (
    Job,
    choose_table_options,
    find_data_paths,
    make_job_name,
    parse_options,
    print_submission,
    require_tools,
)
from mlm.launch.sweep import jobs, sweep_points, sweep_state
from mlm.training.run import resolution
from mlm.training.run.directory import CHECKPOINT_SCHEMES, RunDirectory
from mlm.training.step import program

BUCKET_SECONDS = 8  # that a dry run waits for a bucket


class SubmitOptions(NamedTuple):
    """The flags of `mlm sweep submit` about its jobs."""

    cluster: str  # a key of CLUSTERS
    accelerator: str = ""  # a name of mlm/launch/cluster/accelerators.py; "": none
    hosts: int = 0  # that train each point together; 0: as many as the accelerator has
    hours: float = 24.0  # after which the cluster may end a command; it is queued again
    max_running: int = 8  # commands that run at the same time, at most
    points_per_command: int = 0  # at most; 0: those of a program, or fewer if max_running allows more commands
    option: Sequence[str] = ()  # of the kind of cluster, each NAME=VALUE; a wrong name shows the valid ones
    dry_run: bool = False  # show the files that would be submitted, and write nothing


class Sweep(NamedTuple):
    """A sweep as a command line describes it."""

    experiment_path: str
    root: Path
    configs: list[config.Config]  # of the selected points
    flags: tuple[str, ...]  # of the command line, that say which sweep this is
    training_flags: tuple[str, ...]  # of the command line, that say how its points are trained
    base_config: config.Config  # from --config's file
    config_path: str  # that file, with ":ARGUMENT" if it takes one; "": none was given


def group_points(points: Sequence, max_running: int, points_per_command: int) -> list[list]:
    """Groups of points of one program, in their order, each of at most `points_per_command` (0: any number)."""
    by_program: dict = {}
    for cfg in points:
        by_program.setdefault(program.make_static_config(cfg), []).append(cfg)
    groups = [
        group[i : i + (points_per_command or len(group))]
        for group in by_program.values()
        for i in range(0, len(group), points_per_command or len(group))
    ]
    while len(groups) < max_running and len(largest := max(groups, key=len, default=[])) > 1:
        position, half = groups.index(largest), (len(largest) + 1) // 2
        groups[position : position + 1] = [largest[:half], largest[half:]]
    return groups


def make_sweep_command(verb: str, experiment: str, flags: Sequence[str], points: Sequence = ()) -> tuple[str, ...]:
    """A command for the same sweep as the submitted one; points: those that it selects, if not all."""
    selected = [f"--points={','.join(map(sweep_points.point_name, points))}"] if points else []
    return (sys.executable, "-m", "mlm", "sweep", verb, experiment, *flags, *selected)


def make_train_command(cfg, base_config, config_paths: Sequence[str], options: SubmitOptions) -> tuple[str, ...]:
    """`mlm train` for a point, by what differs from the base. Raises ConfigError if that is another run."""
    base_fields = fields.flatten(base_config)
    changes = {name: value for name, value in fields.flatten(cfg).items() if value != base_fields[name]}
    expected = f"1 for {cfg.workdir}, whose config the flags of mlm train cannot express"
    errors.require(resolution.resolve(base_config, changes) == cfg, "--hosts", count_hosts(options), expected)
    num_hosts, accelerator = count_hosts(options), ACCELERATORS.get(options.accelerator)
    flags = [*(f"--config={path}" for path in config_paths), "--distributed", f"--expect_processes={num_hosts}"]
    if accelerator:
        flags.append(f"--expect_devices={accelerator.num_devices * num_hosts // accelerator.num_hosts}")
    flags += [fields.format_flag(name, value) for name, value in changes.items()]
    return (sys.executable, "-m", "mlm", "train", *flags)


def count_hosts(options: SubmitOptions) -> int:
    """Hosts of each command."""
    accelerator = ACCELERATORS.get(options.accelerator)
    return options.hosts or (accelerator.num_hosts if accelerator else 1)


def submit_sweep(sweep: Sweep, options: SubmitOptions) -> None:
    """Submits the points that are neither done nor in progress. Raises ConfigError before anything is written."""
    cluster = CLUSTERS[options.cluster]
    expected = (
        "measured step times, which decide the steps of the points; to measure them, run one point (--points) on a "
        "machine with this accelerator"
    )
    errors.require(all(cfg.train.steps for cfg in sweep.configs), "--budget", "seconds", expected)
    snapshot = code_snapshot.make_snapshot(sweep.root, (sweep.experiment_path, *filter(None, [sweep.config_path])))
    if options.dry_run:
        print_submission(cluster, [job for job, _ in make_jobs(sweep, snapshot, options)])
        return
    require_tools(cluster.TOOLS)
    with jobs.lock_registry(sweep.root):
        for job, points in make_jobs(sweep, snapshot, options):
            code_snapshot.write_snapshot(snapshot)
            submit_job(sweep.root, job, points, options.cluster)


def make_jobs(sweep: Sweep, snapshot, options: SubmitOptions) -> list[tuple]:
    """The jobs to submit now, each with the names of the points' folders of each of its commands."""
    cluster, submitted = CLUSTERS[options.cluster], jobs.read_jobs(sweep.root)
    states = jobs.query_states(submitted)
    places = jobs.find_places(submitted, states)
    remaining, summary = select_unsubmitted(sweep.configs, places, not options.dry_run or is_reachable(sweep.root))
    print(f"{len(sweep.configs)} points: {summary}", flush=True)
    live_jobs = [job for job in submitted if states.get(job.file)]
    earlier = [job for job in live_jobs if job.cluster == options.cluster]
    has_table_job = any(not any(job.points) for job in live_jobs)
    if not remaining and (has_table_job or not any(any(job.points) for job in earlier)):
        return []

    experiment, *config_paths = map(snapshot.find_copy, filter(None, (sweep.experiment_path, sweep.config_path)))
    flags = [*(f"--config={path}" for path in config_paths), *sweep.flags]
    if count_hosts(options) > 1:
        groups = [[cfg] for cfg in remaining]
        commands = [make_train_command(cfg, sweep.base_config, config_paths, options) for cfg in remaining]
    else:
        groups = group_points(remaining, options.max_running, options.points_per_command)
        commands = [make_sweep_command("run", experiment, [*flags, *sweep.training_flags], group) for group in groups]
    points = tuple(tuple(Path(cfg.workdir).name for cfg in group) for group in groups)
    name = make_job_name(sweep.root.name, (str(files.make_absolute(sweep.root)), len(submitted), points))
    folder = Path(files.local_folder(sweep.root).absolute(), "jobs")
    train_job = Job(
        name,
        tuple(commands),
        folder / name,
        snapshot.folder,
        Path.cwd(),
        options.accelerator,
        count_hosts(options),
        options.hours,
        max(1, min(options.max_running, len(commands))),
        (),
        str(sweep.root),
        parse_options(cluster.OPTIONS, options.option),
        find_data_paths(remaining),
    )
    table_name = f"{name}-table"
    table_job = train_job._replace(
        name=table_name,
        commands=(make_sweep_command("report", experiment, flags),),
        accelerator="",
        num_hosts=1,
        folder=folder / table_name,
        hours=min(1.0, options.hours),
        max_running=1,
        options=choose_table_options(cluster, train_job.options) if options.accelerator else train_job.options,
        # Earlier table jobs too: two at once would write the same files.
        after=(*([train_job.folder / cluster.FILE] if remaining else []), *(Path(job.file) for job in earlier)),
    )
    planned = [(train_job, points)] if remaining else []
    planned.append((table_job, ((),)))
    for job, _ in planned:
        cluster.check_job(job)
    return planned


def is_reachable(root: Path) -> bool:
    """Whether the sweep's folder can be read; if a bucket cannot be reached from here, prints that."""
    outcome: list[Exception | None] = [buckets.BucketAccessError(f"{root}: no answer within {BUCKET_SECONDS} s")]

    def check():
        try:
            files.check_folder("config.workdir", str(root), writable=False, schemes=CHECKPOINT_SCHEMES)
            outcome[0] = None
        except errors.ConfigError as error:
            outcome[0] = error

    thread = threading.Thread(target=check, daemon=True)  # the libraries of buckets try again for minutes
    thread.start()
    thread.join(BUCKET_SECONDS)
    if isinstance(error := outcome[0], buckets.BucketAccessError):
        print(f"{error}; shown as if no point were done", file=sys.stderr)
    elif error is not None:
        raise error
    return error is None


def select_unsubmitted(configs: Sequence, places: dict, readable: bool) -> tuple[list, str]:
    """The points that are neither done nor in progress, and a summary; readable: whether their folders can be read."""
    remaining, counts = [], {"done": 0, "queued or running": 0, "in use": 0}
    for cfg in configs:
        place = places.get(Path(cfg.workdir).name)
        state = sweep_state.read_state(cfg).name if readable else ""
        if state != "done" and place and place.state:
            state = "queued or running"
        if state in counts:
            counts[state] += 1
        else:
            remaining.append(cfg)
    parts = [f"{count} {reason}" for reason, count in counts.items() if count]
    return remaining, ", ".join([*parts, f"{len(remaining)} to submit"])


def submit_job(root: Path, job, points: tuple[tuple[str, ...], ...], cluster_name: str) -> None:
    """Submits a job, and prints what it has."""
    for name in (name for names in points for name in names):
        with contextlib.suppress(OSError):  # an earlier failure; the point is tried again
            RunDirectory(root / name).error.unlink()
    cluster_job = jobs.submit_job(root, job, cluster_name, points)
    content = f"{sum(map(len, points))} points in {len(job.commands)} commands, at most {job.max_running} at a time"
    content = content if any(points) else "after them the table and the report"
    print(f"{cluster_job}: {content}; output: {job.folder}", flush=True)
