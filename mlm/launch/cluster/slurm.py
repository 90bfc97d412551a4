"""SLURM: a job is an array for `sbatch`; a command is a task of it (slurm.schedmd.com: sbatch, job_array, preempt)."""

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlm.base import buckets, errors, warnings_
from mlm.launch.cluster import job as jobs
from mlm.launch.cluster.accelerators import ACCELERATORS, GPUS
from mlm.launch.cluster.job import ClusterOption, Job

FILE: str = "job.sh"
TOOLS: Sequence[str] = ("sbatch",)
WARNING_SECONDS = 120  # before the time is up: when a command is told to save
MAX_ARRAY_SIZE = 1000  # SLURM's default of MaxArraySize
QUEUED = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT", "COMPLETING")

TEMPLATE = Path(__file__).with_name("slurm.sh")  # of `str.format`
OPTIONS: Mapping[str, ClusterOption] = {
    "partition": ClusterOption("the partition, if not SLURM's default"),
    "account": ClusterOption("the account that is charged, if not SLURM's default"),
    "cpus": ClusterOption("cores of each host for a command, if not SLURM's default"),
    "sbatch": ClusterOption("more options of sbatch, such as '--qos=long --mem=64G'"),
    "setup": jobs.SETUP_OPTION,
    "table_partition": ClusterOption("the partition of the table's job, which needs no GPU, if not the default"),
    "table_sbatch": ClusterOption("more options of sbatch for the table's job of runs on GPUs"),
}
TABLE_OPTIONS: Mapping[str, str] = {"partition": "table_partition", "sbatch": "table_sbatch", "cpus": ""}
PRIVATE_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # of each host

PYTHONPATH_SUFFIX = '"${PYTHONPATH:+:$PYTHONPATH}"'  # the user's own modules
# A process that has saved and ends first is no reason to kill the others, whom JAX tells; srun does not inherit cores.
SRUN = "srun --label --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK} "


def check_job(job: Job) -> None:
    """Raises ConfigError for a job that SLURM could not run."""
    jobs.check_job(job)
    if job.accelerator:
        names = [name for name in ACCELERATORS if name.partition("-")[0] in GPUS]
        jobs.check_accelerator(job, names)
    count, expected = len(job.commands), f"at most {MAX_ARRAY_SIZE:,} of one array"
    errors.require(count <= MAX_ARRAY_SIZE, "jobs", count, expected)
    if job.options["cpus"]:
        jobs.check_count(job, "cpus", 1)
    for name in ("sbatch", "table_sbatch"):
        jobs.split_flags(job, name, "-")
    own = f"each host has its own {', '.join(PRIVATE_FOLDERS)}"
    for field, path in job.data_paths:
        errors.require(not is_private(job, path), field, path, f"a path on a disk that all hosts share; {own}")
    for field, path in (
        (job.output_field, job.output_folder),
        ("the folder that this is called from", job.submit_folder),
        ("the interpreter", job.commands[0][0]),
    ):
        if is_private(job, path):  # of one host alone, such a cluster works
            warnings_.warn_once(f"{field} = {str(path)!r}: other hosts do not see it, {own}")


def is_private(job: Job, path: Path | str) -> bool:
    """Whether each host has a disk of its own there, be it through a link."""
    absolute = os.path.normpath(path if buckets.is_bucket_path(path) else job.submit_folder / path)
    return any(Path(p).is_relative_to(own) for p in (absolute, os.path.realpath(absolute)) for own in PRIVATE_FOLDERS)


def render_script(job: Job) -> str:
    """The script that sbatch reads."""
    minutes, options = math.ceil(job.hours * 60), job.options
    flags = [
        *(f"--{name}={options[name]}" for name in ("partition", "account") if options[name]),
        *([f"--cpus-per-task={options['cpus']}"] if options["cpus"] else []),
        *shlex.split(options["sbatch"]),
    ]
    if job.accelerator:
        gpu = job.accelerator.partition("-")[0].lower()
        flags.insert(0, f"--gpus-per-node={gpu}:{ACCELERATORS[job.accelerator].num_chips}")
    is_multihost, environment = job.num_hosts > 1, jobs.job_environment(job)
    if is_multihost and job.accelerator:  # else JAX, which reads SLURM's environment, takes one device per process
        environment["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(ACCELERATORS[job.accelerator].num_chips)))
    return TEMPLATE.read_text().format(
        summary=f"Commands: {len(job.commands)}, at most {job.max_running} at a time. To queue it: sbatch THIS_FILE",
        name=job.name,
        last=len(job.commands) - 1,
        running=job.max_running,
        hosts=job.num_hosts,
        warning=WARNING_SECONDS,
        time=f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00",
        log=quote_directive(str(job.folder).replace("%", "%%") + "/%a.log"),
        directives="".join(f"#SBATCH {quote_directive(word)}\n" for word in flags),
        environment="\n".join(
            f"export {name}={shlex.quote(value)}" + (PYTHONPATH_SUFFIX if name == "PYTHONPATH" else "")
            for name, value in environment.items()
        ),
        setup=jobs.render_setup(job),
        folder=shlex.quote(str(job.submit_folder)),
        cases="\n".join(f"    {index}) set -- {shlex.join(words)} ;;" for index, words in enumerate(job.commands)),
        terminate='scancel --signal=TERM "$SLURM_JOB_ID"' if is_multihost else 'kill -TERM "$child"',
        run=SRUN if is_multihost else "",
    )


def quote_directive(word: str) -> str:
    """A word quoted for a line of #SBATCH."""
    return word if re.fullmatch(r"[\w@%+=:,./-]+", word) else '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def submit_job(job: Job, path: Path) -> str:
    """Submits the job after those that it waits for; returns its name in words."""
    output = jobs.call_tool(*make_sbatch_words(find_job_ids(job.after), path))
    return f"SLURM job {output.strip().partition(';')[0]}"


def make_sbatch_words(after: Sequence[str], path: Path) -> list[str]:
    """The words of the call that queues a job's file, after the jobs with these ids."""
    return ["sbatch", "--parsable", *([f"--dependency=afterany:{':'.join(after)}"] if after else []), str(path)]


def format_submission(job: Job, path: Path) -> str:
    """The line that queues a job's file. SLURM gives the ids of jobs whose files are not written yet."""
    unwritten = [f"ID_OF_{other.parent.name}" for other in job.after if not other.exists()]
    after = find_job_ids([other for other in job.after if other.exists()])
    return shlex.join(make_sbatch_words([*after, *unwritten], path))


def find_job_ids(paths: Sequence[Path]) -> list[str]:
    """SLURM's ids of those of the jobs that are queued or running."""
    return sorted({columns[1] for columns in read_queue(paths)})


def read_queue(paths: Sequence[Path]) -> list[list[str]]:
    """For each command in the queue: the job's name, SLURM's job id, the command's index in it, its state."""
    names = [path.parent.name for path in paths]
    if not names:
        return []
    flags = ("--noheader", "--array", f"--name={','.join(names)}", "--states=all", "--format=%j|%F|%K|%T")
    rows = [line.strip().split("|") for line in jobs.call_tool("squeue", *flags).splitlines()]
    return [columns for columns in rows if columns[0] in names and columns[3] in (*QUEUED, *RUNNING)]


def query_states(paths: Sequence[Path]) -> dict[Path, dict[int, str]]:
    """The states of the commands that are queued or running, by file of the job and number of the command."""
    states: dict[str, dict[int, str]] = {path.parent.name: {} for path in paths}
    for name, _, index, state in read_queue(paths):
        states[name][int(index)] = "queued" if state in QUEUED else "running"
    return {path: states[path.parent.name] for path in paths}


def cancel_jobs(paths: Sequence[Path]) -> None:
    """Signals running commands through their scripts, so that they have the time they need to save."""
    for slurm_states, flags in ((QUEUED, ("--state=PENDING",)), (RUNNING, ("--batch", "--signal=TERM"))):
        if job_ids := sorted({columns[1] for columns in read_queue(paths) if columns[3] in slurm_states}):
            jobs.call_tool("scancel", "--quiet", *flags, *job_ids)
