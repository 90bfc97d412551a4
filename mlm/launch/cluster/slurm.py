"""SLURM: a job is an array, `sbatch`ed; each command is one task of it, on one host or several.

Manual: slurm.schedmd.com/sbatch.html, job_array.html, preempt.html.
"""
import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mlm.base import errors
from mlm.launch.cluster import job as jobs
from mlm.launch.cluster.accelerators import GPUS, KINDS
from mlm.launch.cluster.job import Cluster, Job, Option

WARNING = 120     # seconds before its time is up at which a command is told to save
MOST = 1000       # commands of an array: as SLURM has it where MaxArraySize is not set
QUEUED = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT",
           "COMPLETING")  # the last: it was told to end, and may still save

HEAD = """\
#!/bin/bash
# {summary}
#SBATCH --job-name={name}
#SBATCH --array=0-{last}%{running}
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node=1
#SBATCH --time={time}
#SBATCH --output={log}
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@{warning}
"""

BODY = """\

{environment}
cd {place} || exit 1
case "$SLURM_ARRAY_TASK_ID" in
{cases}
esac

# USR1 comes {warning} s before the time is up, or with preemption: the runs save, and the job queues again. TERM is
# scancel's: they save, and the job ends.
warned=
tell() {{ {tell}; }}
echo "$(date) $(hostname) $SLURM_JOB_NAME $SLURM_ARRAY_TASK_ID, start ${{SLURM_RESTART_COUNT:-0}}"
{run}"$@" &
child=$!
trap 'warned=1; tell' USR1
trap tell TERM
while kill -0 "$child" 2>/dev/null; do wait "$child"; done
wait "$child"
code=$?
if [ "$warned" ] && [ "$code" -gt 128 ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID" && sleep 60
fi
exit "$code"
"""


OPTIONS = {
    "partition": Option("the partition, where it is not SLURM's default", ""),
    "account": Option("who pays, where it is not SLURM's default", ""),
    "cpus": Option("cores of each host for a command, where it is not SLURM's default", ""),
    "sbatch": Option("more options of sbatch's, such as '--qos=long --mem=64G'", ""),
}

MORE = '"${PYTHONPATH:+:$PYTHONPATH}"'  # what one's own modules need
# A process that has saved and ends first is no reason to kill the others, which JAX tells; cores are not inherited.
SRUN = "srun --label --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK} "


def check(job: Job) -> None:
    jobs.check(job)
    if job.kind:
        errors.require_one_of("--kind", job.kind, [name for name in KINDS if name.partition("-")[0] in GPUS])
    errors.require(len(job.commands) <= MOST, "jobs", len(job.commands), f"at most {MOST:,} of one array")
    cpus = job.options["cpus"]
    errors.require(not cpus or (cpus.isdecimal() and int(cpus) > 0), "--option=cpus", cpus, "a number of cores")
    for name, value in job.options.items():
        errors.require(value.isprintable(), f"--option={name}", value, "text in one line")
    try:
        words = shlex.split(job.options["sbatch"])
    except ValueError as error:
        words = [str(error)]
    errors.require(all(word.startswith("-") for word in words), "--option=sbatch", job.options["sbatch"],
                  "options of sbatch's, each as --name=value")


def text(job: Job) -> str:
    """The script that sbatch reads."""
    minutes = math.ceil(job.hours * 60)
    head = HEAD.format(
        summary=f"Commands: {len(job.commands)}, at most {job.running} at a time. To queue it: sbatch THIS_FILE",
        name=job.name, last=len(job.commands) - 1, running=job.running, hosts=job.hosts, warning=WARNING,
        time=f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00",
        log=quoted(str(job.folder).replace("%", "%%") + "/%a.log"))
    if job.kind:
        head += f"#SBATCH --gpus-per-node={job.kind.partition('-')[0].lower()}:{KINDS[job.kind].chips}\n"
    own = job.options
    more = [*(f"--{name}={own[name]}" for name in ("partition", "account") if own[name]),
            *([f"--cpus-per-task={own['cpus']}"] if own["cpus"] else []), *shlex.split(own["sbatch"])]
    head += "".join(f"#SBATCH {quoted(word)}\n" for word in more)
    several, environment = job.hosts > 1, jobs.environment(job)
    if several and job.kind:  # else JAX, told by SLURM who it is, takes one device a process
        environment["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(KINDS[job.kind].chips)))
    return head + BODY.format(
        environment="\n".join(f"export {name}={shlex.quote(value)}" + (MORE if name == "PYTHONPATH" else "")
                              for name, value in environment.items()),
        place=shlex.quote(str(job.place)), warning=WARNING,
        cases="\n".join(f"    {number}) set -- {shlex.join(words)} ;;" for number, words in enumerate(job.commands)),
        tell='scancel --signal=TERM "$SLURM_JOB_ID"' if several else 'kill -TERM "$child"',
        run=SRUN if several else "")


def quoted(word: str) -> str:
    """A word as the lines of #SBATCH take it."""
    return word if re.fullmatch(r"[\w@%+=:,./-]+", word) else '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def ready(command: str = "sbatch") -> None:
    if shutil.which(command) is None:
        raise errors.ConfigError(f"{command} is not on PATH: SLURM is asked on a machine of its cluster"
                                 + ("; --dry_run shows the files here" if command == "sbatch" else ""))


def call(*words: str) -> str:
    """What a command of SLURM's prints. Raises ConfigError where it is not there, or fails."""
    ready(words[0])
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = errors.first_line(Exception(done.stderr or done.stdout))
        raise errors.ConfigError(f"{shlex.join(words[:2])} failed: {said}")
    return done.stdout


def submit(job: Job, path: Path) -> str:
    after = numbers(job.after)
    word = call("sbatch", "--parsable", *([f"--dependency=afterany:{':'.join(after)}"] if after else []), str(path))
    return f"SLURM job {word.strip().partition(';')[0]}"


def numbers(paths: Sequence[Path]) -> list[str]:
    """SLURM's numbers of those of the jobs that are queued or running."""
    return sorted({words[1] for words in queue(paths)})


def queue(paths: Sequence[Path]) -> list[list[str]]:
    """Of each command that is in the queue: the job's name and number, its own number there, its state."""
    names = [path.parent.name for path in paths]
    lines = call("squeue", "--noheader", "--array", f"--name={','.join(names)}", "--states=all",
                 "--format=%j|%F|%K|%T").splitlines() if names else []
    found = [line.strip().split("|") for line in lines]
    return [words for words in found if words[0] in names and words[3] in (*QUEUED, *RUNNING)]


def states(paths: Sequence[Path]) -> dict[Path, dict[int, str]]:
    names: dict[str, dict[int, str]] = {path.parent.name: {} for path in paths}
    for name, _, number, said in queue(paths):
        names[name][int(number)] = "queued" if said in QUEUED else "running"
    return {path: names[path.parent.name] for path in paths}


def cancel(paths: Sequence[Path]) -> None:
    """Those at work are told through their scripts, and so have as long as they need to save."""
    for which, how in ((QUEUED, ("--state=PENDING",)), (RUNNING, ("--batch", "--signal=TERM"))):
        if there := sorted({words[1] for words in queue(paths) if words[3] in which}):
            call("scancel", "--quiet", *how, *there)


CLUSTER = Cluster("job.sh", ready, check, text, submit, states, cancel, OPTIONS)
