"""Submits to a cluster the points of a sweep that are not done, or the packing of a corpus: a job of many commands.

All commands have a copy of the code, made next to the runs or in the cache of packed examples. Points of one program
share a command, `mlm sweep run --points=...` (on several hosts `mlm train`, for one point). A command that is killed or
requeued loses the steps since the last checkpoint. Points that are done, queued or running on the cluster, or in use by
a process are left out, so that a second call adds what is missing. When all commands have ended, one more job makes the
table and the report.

To pack a corpus each command, `mlm pack --task=NUMBER`, has a share of the shards. One that is killed or queued again
goes on from the shards that are there; whichever packs the last shard joins all of them.
"""

import argparse
import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

from mlm.base import buckets, config, errors, fields, files, groups
from mlm.data.rows import pack
from mlm.launch import code_snapshot
from mlm.launch.cluster import CLUSTERS
from mlm.launch.cluster.accelerators import ACCELERATORS
from mlm.launch.cluster.job import (
    Job,
    choose_table_options,
    find_data_paths,
    make_job_name,
    parse_options,
    require_tools,
)
from mlm.launch.sweep import jobs, sweep_points, sweep_state
from mlm.training.run import resolution
from mlm.training.run.directory import CHECKPOINT_SCHEMES, RunDirectory
from mlm.training.step import program

BUCKET_SECONDS = 8  # that a dry run waits for a bucket


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
    divided = [
        group[i : i + (points_per_command or len(group))]
        for group in groups.group_values((program.make_static_config(cfg), cfg) for cfg in points).values()
        for i in range(0, len(group), points_per_command or len(group))
    ]
    while len(divided) < max_running and len(largest := max(divided, key=len, default=[])) > 1:
        position, half = divided.index(largest), (len(largest) + 1) // 2
        divided[position : position + 1] = [largest[:half], largest[half:]]
    return divided


def make_sweep_command(verb: str, experiment: str, flags: Sequence[str], points: Sequence = ()) -> tuple[str, ...]:
    """A command for the same sweep as the submitted one; points: those that it selects, if not all."""
    selected = [f"--points={','.join(map(sweep_points.point_name, points))}"] if points else []
    return (sys.executable, "-m", "mlm", "sweep", verb, experiment, *flags, *selected)


def make_train_command(cfg, base_config, config_paths: Sequence[str], args) -> tuple[str, ...]:
    """`mlm train` for a point, by what differs from the base. Raises ConfigError if that is another run."""
    base_fields = fields.flatten(base_config)
    changes = {name: value for name, value in fields.flatten(cfg).items() if value != base_fields[name]}
    expected = f"1 for {cfg.workdir}, whose config the flags of mlm train cannot express"
    errors.require(resolution.resolve(base_config, changes) == cfg, "--hosts", count_hosts(args), expected)
    num_hosts, accelerator = count_hosts(args), ACCELERATORS.get(args.accelerator)
    flags = [*(f"--config={path}" for path in config_paths), "--distributed", f"--expect_processes={num_hosts}"]
    if accelerator:
        flags.append(f"--expect_devices={accelerator.num_devices * num_hosts // accelerator.num_hosts}")
    flags += [fields.format_flag(name, value) for name, value in changes.items()]
    return (sys.executable, "-m", "mlm", "train", *flags)


def count_hosts(args: argparse.Namespace) -> int:
    """Hosts of each command."""
    accelerator = ACCELERATORS.get(args.accelerator)
    return args.hosts or (accelerator.num_hosts if accelerator else 1)


def submit_sweep(sweep: Sweep, args: argparse.Namespace) -> None:
    """Submits the points that are neither done nor in progress. Raises ConfigError before anything is written."""
    expected = (
        "measured step times, which decide the steps of the points; to measure them, run one point (--points) on a "
        "machine with this accelerator"
    )
    errors.require(all(cfg.train.steps for cfg in sweep.configs), "--budget", "seconds", expected)
    snapshot = code_snapshot.make_snapshot(sweep.root, (sweep.experiment_path, *filter(None, [sweep.config_path])))
    submit_jobs(sweep.root, snapshot, args, lambda: make_sweep_jobs(sweep, snapshot, args))


def submit_packing(cfg: config.Config, flags: Sequence[str], config_path: str, args: argparse.Namespace) -> None:
    """Submits a job that packs a corpus, unless one is queued or running. Raises ConfigError before it writes anything.

    Args:
        flags: of `mlm pack`, that make the config of the file below.
        config_path: the file of --config, with ":ARGUMENT" if it takes one; "": none was given.
    """
    root = files.make_path(cfg.data.cache_dir)
    identity = str(files.make_absolute(root)), str(Path.cwd()), config_path, tuple(flags), args.tasks
    name = make_job_name("pack", identity)
    pack.list_divided(cfg)
    pack.warn_of_few_shards(cfg, "--tasks", args.tasks)
    snapshot = code_snapshot.make_snapshot(root, (config_path,) if config_path else ())
    flags = [*([f"--config={snapshot.find_copy(config_path)}"] if config_path else []), *flags]
    words = (sys.executable, "-m", "mlm", "pack", *flags, f"--tasks={args.tasks}")
    commands = [(*words, f"--task={number}") for number in range(1, args.tasks + 1)]
    job = make_job(root, name, commands, snapshot, args, [cfg])
    job = job._replace(output_field="config.data.cache_dir", points=((),) * args.tasks, content=f"{args.tasks} tasks")
    CLUSTERS[args.cluster].check_job(job)

    def make_jobs():
        if args.dry_run:
            return [job]
        earlier = [one for one in jobs.read_jobs(root) if Path(one.file).parent.name.startswith(name)]
        if num_live := sum(map(len, jobs.query_states(earlier).values())):
            print(f"{name}: {num_live} of {args.tasks} tasks are queued or running; submitted nothing")
            return []
        own = f"{name}-{len(earlier) + 1}"  # no name serves twice
        return [job._replace(name=own, folder=job.folder.with_name(own))]

    submit_jobs(root, snapshot, args, make_jobs)


def submit_jobs(root: Path, snapshot: code_snapshot.CodeSnapshot, args, make_jobs: Callable[[], list[Job]]) -> None:
    """Submits what make_jobs() lists, or with --dry_run prints the lines that would submit it, and the jobs' files.

    No other process submits to `root` meanwhile.
    """
    cluster = CLUSTERS[args.cluster]
    if args.dry_run:
        planned = [(job, job.folder / cluster.FILE) for job in make_jobs()]
        for job, path in planned:
            print(cluster.format_submission(job, path))
        for job, path in planned:
            print(f"\n==> {path} <==\n{cluster.render_script(job)}", end="")
        return
    require_tools(cluster.TOOLS)
    with jobs.lock_registry(root):
        for job in make_jobs():
            code_snapshot.write_snapshot(snapshot)
            for name in itertools.chain(*job.points):
                with contextlib.suppress(OSError):  # an earlier failure; the point is tried again
                    RunDirectory(root / name).error.unlink()
            cluster_job = jobs.submit_job(root, job, args.cluster)
            print(f"{cluster_job}: {job.content}; output: {job.folder}", flush=True)


def make_job(root: Path, name: str, commands: Sequence[tuple], snapshot, args, configs: Sequence) -> Job:
    """A job without an accelerator, whose commands read what the configs name and write below `root`."""
    return Job(
        name,
        tuple(commands),
        Path(files.local_folder(root).absolute(), "jobs", name),
        snapshot.folder,
        Path.cwd(),
        accelerator="",
        hours=args.hours,
        max_running=len(commands),
        output_folder=str(root),
        options=parse_options(CLUSTERS[args.cluster].OPTIONS, args.option),
        data_paths=find_data_paths(configs),
    )


def make_sweep_jobs(sweep: Sweep, snapshot: code_snapshot.CodeSnapshot, args) -> list[Job]:
    """What `submit_jobs` has to submit now: the job of the points, and that of the table and the report after them."""
    cluster, submitted = CLUSTERS[args.cluster], jobs.read_jobs(sweep.root)
    states = jobs.query_states(submitted)
    places = jobs.find_places(submitted, states)
    remaining, summary = select_unsubmitted(sweep.configs, places, not args.dry_run or is_reachable(sweep.root))
    print(f"{len(sweep.configs)} points: {summary}", flush=True)
    live_jobs = [job for job in submitted if states.get(job.file)]
    earlier = [job for job in live_jobs if job.cluster == args.cluster]
    has_table_job = any(not any(job.points) for job in live_jobs)
    if not remaining and (has_table_job or not any(any(job.points) for job in earlier)):
        return []

    experiment, *config_paths = map(snapshot.find_copy, filter(None, (sweep.experiment_path, sweep.config_path)))
    flags, num_hosts = [*(f"--config={path}" for path in config_paths), *sweep.flags], count_hosts(args)
    if num_hosts > 1:
        by_command = [[cfg] for cfg in remaining]
        commands = [make_train_command(cfg, sweep.base_config, config_paths, args) for cfg in remaining]
    else:
        by_command = group_points(remaining, args.max_running, args.points_per_command)
        run_flags = [*flags, *sweep.training_flags]
        commands = [make_sweep_command("run", experiment, run_flags, group) for group in by_command]
    points = tuple(tuple(Path(cfg.workdir).name for cfg in group) for group in by_command)
    name = make_job_name(sweep.root.name, (str(files.make_absolute(sweep.root)), len(submitted), points))
    num_running = max(1, min(args.max_running, len(commands)))
    content = f"{len(remaining)} points in {len(commands)} commands, at most {num_running} at a time"
    train_job = make_job(sweep.root, name, commands, snapshot, args, remaining)._replace(
        accelerator=args.accelerator, num_hosts=num_hosts, max_running=num_running, points=points, content=content
    )
    table_job = train_job._replace(
        name=f"{name}-table",
        commands=(make_sweep_command("report", experiment, flags),),
        accelerator="",
        num_hosts=1,
        folder=train_job.folder.with_name(f"{name}-table"),
        hours=min(1.0, args.hours),
        max_running=1,
        options=choose_table_options(cluster, train_job.options) if args.accelerator else train_job.options,
        points=((),),
        content="after them the table and the report",
        # Earlier table jobs too: two at once would write the same files.
        after=(*([train_job.folder / cluster.FILE] if remaining else []), *(Path(job.file) for job in earlier)),
    )
    planned = [train_job, table_job] if remaining else [table_job]
    for job in planned:
        cluster.check_job(job)
    return planned


def is_reachable(root: Path) -> bool:
    """Whether the sweep's folder can be read; if a bucket cannot be reached from here, prints that."""
    answer: futures.Future[None] = futures.Future()

    def check():
        try:
            files.check_folder("config.workdir", str(root), writable=False, schemes=CHECKPOINT_SCHEMES)
            answer.set_result(None)
        except errors.ConfigError as error:
            answer.set_exception(error)

    threading.Thread(target=check, daemon=True).start()  # the libraries of buckets try again for minutes
    try:
        answer.result(BUCKET_SECONDS)
    except (TimeoutError, buckets.BucketAccessError) as error:
        line = str(error) or f"{root}: no answer within {BUCKET_SECONDS} s"
        print(f"{line}; shown as if no point were done", file=sys.stderr)
        return False
    return True


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
