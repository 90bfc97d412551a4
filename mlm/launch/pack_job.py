"""Submits the packing of a corpus to a cluster: a job of commands, each of which packs its share of the shards.

Each command is `mlm pack --task=NUMBER` with a copy of the code, made in the cache. One that is killed or queued again
goes on from the shards that are there; whichever packs the last shard joins all of them.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import config, files
from mlm.data.rows import pack
from mlm.launch import code_snapshot
from mlm.launch.cluster import CLUSTERS
from mlm.launch.cluster.job import Job, find_data_paths, make_job_name, parse_options, print_submission, require_tools
from mlm.launch.sweep import jobs


class PackOptions(NamedTuple):
    """The flags of `mlm pack` about its job."""

    cluster: str  # a key of CLUSTERS
    tasks: int  # commands, which may all run at the same time
    hours: float  # after which the cluster may end a command; it is queued again
    option: Sequence[str] = ()  # of the kind of cluster, each NAME=VALUE; a wrong name shows the valid ones
    dry_run: bool = False  # show the file that would be submitted, and write nothing


def submit_packing(cfg: config.Config, flags: Sequence[str], config_path: str, options: PackOptions) -> None:
    """Submits a job that packs a corpus, unless one is queued or running. Raises ConfigError before it writes anything.

    Args:
        cfg: a resolved config.
        flags: of `mlm pack`, that make it of the file below.
        config_path: the file of --config, with ":ARGUMENT" if it takes one; "": none was given.
        options: the flags about the job.
    """
    cluster, root = CLUSTERS[options.cluster], files.make_path(cfg.data.cache_dir)
    identity = str(files.make_absolute(root)), str(Path.cwd()), config_path, tuple(flags), options.tasks
    name = make_job_name("pack", identity)
    pack.list_divided(cfg)
    pack.warn_of_few_shards(cfg, "--tasks", options.tasks)
    snapshot = code_snapshot.make_snapshot(root, (config_path,) if config_path else ())
    flags = [*([f"--config={snapshot.find_copy(config_path)}"] if config_path else []), *flags]
    job = make_job(cfg, root, name, flags, snapshot, options)
    cluster.check_job(job)
    if options.dry_run:
        print_submission(cluster, [job])
        return
    require_tools(cluster.TOOLS)
    with jobs.lock_registry(root):
        earlier = [one for one in jobs.read_jobs(root) if Path(one.file).parent.name.startswith(name)]
        if num_live := sum(map(len, jobs.query_states(earlier).values())):
            print(f"{name}: {num_live} of {options.tasks} tasks are queued or running; submitted nothing")
            return
        code_snapshot.write_snapshot(snapshot)
        own = f"{name}-{len(earlier) + 1}"  # no name serves twice
        job = job._replace(name=own, folder=job.folder.with_name(own))
        cluster_job = jobs.submit_job(root, job, options.cluster, ((),) * options.tasks)
    print(f"{cluster_job}: {options.tasks} tasks; output: {job.folder}")


def make_job(
    cfg: config.Config,
    root: Path,
    name: str,
    flags: Sequence[str],
    snapshot: code_snapshot.CodeSnapshot,
    options: PackOptions,
) -> Job:
    """The job, of a command for each task."""
    words = (sys.executable, "-m", "mlm", "pack", *flags, f"--tasks={options.tasks}")
    return Job(
        name,
        tuple((*words, f"--task={number}") for number in range(1, options.tasks + 1)),
        Path(files.local_folder(root).absolute(), "jobs", name),
        snapshot.folder,
        Path.cwd(),
        accelerator="",
        hours=options.hours,
        max_running=options.tasks,
        output_folder=str(root),
        output_field="config.data.cache_dir",
        options=parse_options(CLUSTERS[options.cluster].OPTIONS, options.option),
        data_paths=find_data_paths([cfg]),
    )
