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

from launch.cluster import job as jobs
from launch.cluster.job import Cluster, Job
from mlm.base import errors

WARNING = 120     # seconds before its time is up at which a command is told to save
MOST = 10_000     # commands of an array, at most: fewer than SLURM's MaxArraySize may be on a large cluster
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


def check(job: Job) -> None:
    from launch.cluster.kinds import KINDS

    jobs.check(job)
    gpus = [name for name in KINDS if re.fullmatch(r"[A-Z]+\d+\w*", name)]
    if job.kind:
        errors.one_of("--kind", job.kind, gpus)
    errors.expect(len(job.commands) <= MOST, "jobs", len(job.commands), f"at most {MOST:,} of one array")
    for option in job.options:
        errors.expect(re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?", option) is not None and option.isprintable(), "--option",
                      option, "an option of sbatch's, such as --partition=gpu")


def text(job: Job) -> str:
    """The script that sbatch reads."""
    minutes = math.ceil(job.hours * 60)
    head = HEAD.format(
        summary=f"Commands: {len(job.commands)}, at most {job.running} at a time. To queue it: sbatch THIS_FILE",
        name=job.name, last=len(job.commands) - 1, running=job.running, hosts=job.hosts, warning=WARNING,
        time=f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00",
        log=quoted(str(job.folder).replace("%", "%%") + "/%a.log"))
    if job.kind:
        head += f"#SBATCH --gpus-per-node={job.kind.lower()}:{job.devices}\n"
    head += "".join(f"#SBATCH {quoted(option)}\n" for option in job.options)
    several = job.hosts > 1
    return head + BODY.format(
        environment="\n".join(f"export {name}={shlex.quote(value)}" for name, value in
                              jobs.environment(job).items()),
        place=shlex.quote(str(job.place)), warning=WARNING,
        cases="\n".join(f"    {number}) set -- {shlex.join(words)} ;;" for number, words in enumerate(job.commands)),
        tell='scancel --signal=TERM "$SLURM_JOB_ID"' if several else 'kill -TERM "$child"',
        run="srun --label --kill-on-bad-exit=1 " if several else "")


def quoted(word: str) -> str:
    """A word as the lines of #SBATCH take it."""
    return word if re.fullmatch(r"[\w@%+=:,./-]+", word) else '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def ready(command: str = "sbatch") -> None:
    if shutil.which(command) is None:
        raise errors.ConfigError(f"{command} is not on PATH: jobs are submitted on a machine of the cluster; --dry_run "
                                 "shows their files here")


def call(*words: str) -> str:
    """What a command of SLURM's prints. Raises ConfigError where it is not there, or fails."""
    ready(words[0])
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = errors.line(Exception(done.stderr or done.stdout))
        raise errors.ConfigError(f"{shlex.join(words[:2])} failed: {said}")
    return done.stdout


def submit(job: Job, path: Path) -> str:
    after = numbers(job.after)
    word = call("sbatch", "--parsable", *([f"--dependency=afterany:{':'.join(after)}"] if after else []), str(path))
    return f"SLURM job {word.strip().partition(';')[0]}"


def numbers(names: Sequence[str]) -> list[str]:
    """SLURM's numbers of the jobs of these names that are queued or running."""
    return sorted({words[1] for words in queue(names)})


def queue(names: Sequence[str]) -> list[list[str]]:
    """Of each command that is in the queue: the job's name and number, its own number there, its state."""
    if not names:
        return []
    lines = call("squeue", "--noheader", "--array", f"--name={','.join(names)}", "--states=all",
                 "--format=%j|%F|%K|%T").splitlines()
    return [words for line in lines if (words := line.strip().split("|"))[0] in names]


def states(names: Sequence[str]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {name: {} for name in names}
    for name, _, number, said in queue(names):
        if said in QUEUED or said in RUNNING:
            found[name][int(number)] = "queued" if said in QUEUED else "running"
    return found


def cancel(names: Sequence[str]) -> None:
    """Those at work are told through their scripts, and so have as long as they need to save."""
    if there := numbers(names):
        call("scancel", "--state=PENDING", *there)
        call("scancel", "--batch", "--signal=TERM", *there)


CLUSTER = Cluster("job.sh", ready, check, text, submit, states, cancel)
