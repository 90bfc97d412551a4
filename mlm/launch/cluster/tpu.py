"""TPUs as queued resources of Google Cloud, by gcloud.

A queued resource runs one command, and somebody has to watch it: the job's file is a script that asks for one for each
command, follows them, asks again after a preemption and deletes them. It works on this machine, in the background.
Manual: cloud.google.com/tpu/docs/queued-resources, cloud.google.com/sdk/gcloud/reference/compute/tpus.
"""
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from mlm.base import errors
from mlm.launch.cluster import job as jobs
from mlm.launch.cluster.accelerators import KINDS
from mlm.launch.cluster.job import Cluster, Job, Option

FILE = "tpu.sh"
BODY = Path(__file__).with_name(FILE)
CAPACITY = {"on-demand": [], "spot": ["--spot"], "reserved": ["--reserved"]}
INSTALL = ("[ -x .venv/bin/python ] || { PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv && "
           "export PATH=$PATH:~/.local/bin && uv venv --quiet --python=3.12 .venv && "
           'uv pip install --quiet --editable ".[tpu,gs,tfds]"; }')
OPTIONS = {
    "zone": Option("the TPUs' zone, such as us-east5-a"),
    "project": Option("the project, where it is not gcloud's own", ""),
    "capacity": Option("on-demand, reserved or spot, which may be preempted and is then asked for again", "on-demand"),
    "runtime": Option("gcloud's --runtime-version, where it is not the kind's for JAX", ""),
    "create": Option("more flags of gcloud compute tpus queued-resources create, such as --network=NAME", ""),
    "ssh": Option("more flags of gcloud's ssh and scp, such as --tunnel-through-iap where hosts have no address", ""),
    "files": Option("what lies here and commands read by relative paths, such as tasks,text: copied to the hosts", ""),
    "install": Option("what makes .venv in the copy of the project on a host", INSTALL),
    "restarts": Option("how often a command that fails is started again; preemptions are not counted", "3"),
}


def ready() -> None:
    for tool in ("gcloud", "flock"):
        if shutil.which(tool) is None:
            raise errors.ConfigError(f"{tool} is not on PATH: TPUs are asked for by gcloud, on Linux; --dry_run shows "
                                     "the job's file here")


def check(job: Job) -> None:
    """Raises ConfigError for a job that no TPU could run."""
    jobs.check(job)
    said = job.options
    errors.require_one_of("--option=capacity", said["capacity"], list(CAPACITY))
    errors.require(said["restarts"].isdecimal(), "--option=restarts", said["restarts"], "a whole number")
    for name in OPTIONS:
        errors.require(said[name].isprintable(), f"--option={name}", said[name], "text in one line")
    for name in ("create", "ssh"):
        words(name, said[name])
    for name in files(said["files"]):
        errors.require(not Path(name).is_absolute() and ".." not in Path(name).parts and (job.place / name).exists(),
                      "--option=files", name, f"files and folders in {job.place}, by relative paths")
    errors.require(job.runs.startswith("gs://"), "--config.workdir", job.runs, "gs://BUCKET/FOLDER: a TPU's hosts do "
                  "not see this machine's disks, and theirs go with them")
    if job.kind:
        errors.require_one_of("--kind", job.kind, [name for name, kind in KINDS.items() if kind.tpu])
        hosts = KINDS[job.kind].hosts
        errors.require(job.hosts % hosts == 0, "--hosts", job.hosts,
                      f"{hosts}, which a {job.kind} has, or a multiple of that for several slices")


def words(name: str, flags: str) -> list[str]:
    """The flags of an option. Raises ConfigError where they are none."""
    try:
        found = shlex.split(flags)
    except ValueError as error:
        found = [str(error)]
    errors.require(all(word.startswith("--") for word in found), f"--option={name}", flags, "flags as --name=value")
    return found


def files(names: str) -> list[str]:
    return [name for name in names.split(",") if name]


def text(job: Job) -> str:
    """The script that runs the job's commands: what is special to them, then tpu.sh. Without an accelerator they run on
    this machine."""
    said, slices, create, where, commands = job.options, 0, [], "this machine", job.commands
    if job.kind:
        tpu, slices = KINDS[job.kind].tpu, job.hosts // KINDS[job.kind].hosts
        create = [f"--accelerator-type={tpu.accelerator}", f"--runtime-version={said['runtime'] or tpu.runtime}",
                  *CAPACITY[said["capacity"]], *words("create", said["create"])]
        where = f"a {job.kind}" if slices == 1 else f"{slices} slices of {job.kind}"
        commands = jobs.elsewhere(job, "python", ".")
    return "\n".join([
        "#!/usr/bin/env bash",
        f"# Commands: {len(commands)}, at most {job.running} at a time, each on {where}.",
        "# To run them, or go on with what is there of them: bash THIS_FILE",
        "# To see which are queued or running: bash THIS_FILE states",
        "# To end them and delete their TPUs: bash THIS_FILE cancel",
        f"NAME={job.name}",
        f"ZONE={shlex.quote(said['zone'])}",
        f"PROJECT={shlex.quote(said['project'])}  # gcloud's own, if empty",
        f"CREATE=({shlex.join(create)})",
        f"SSH=({shlex.join(words('ssh', said['ssh']))})",
        f"SLICES={slices}  # of each command; 0: this machine",
        f"HOSTS={job.hosts}  # of all its slices",
        f"RUNNING={job.running}",
        f"RESTARTS={said['restarts']}",
        f"LIMIT={round(3600 * job.hours)}  # seconds of a command, each time it is started",
        f"CODE={shlex.quote(str(job.code))}",
        f"PLACE={shlex.quote(str(job.place))}  # where this was submitted",
        f"FILES=({shlex.join(files(said['files']))})  # of that folder, copied to the hosts besides the code",
        f"INSTALL={shlex.quote(said['install'])}",
        f"AFTER=({shlex.join(map(str, job.after))})",
        "COMMANDS=(",
        *(f"    {shlex.quote(jobs.readable(command, ' ' * 8))}" for command in commands),
        ")",
        "",
        BODY.read_text()])


def submit(job: Job, path: Path) -> str:
    """Starts the script in the background. Raises ConfigError where gcloud does not answer."""
    states([path])
    state = path.with_suffix("")
    with (state / "log").open("ab") as log:
        started = subprocess.Popen(["bash", str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)
    while not (state / "pid").exists():
        if started.poll() is not None:
            raise errors.ConfigError(f"{path} ended at once, see {state / 'log'}")
        time.sleep(0.05)
    return f"{job.name}, followed by process {started.pid} of this machine"


def states(paths: Sequence[Path]) -> dict[Path, dict[int, str]]:
    return {path: {int(number): state for number, state in map(str.split, call(path, "states").splitlines())}
            for path in paths}


def cancel(paths: Sequence[Path]) -> None:
    for path in paths:
        call(path, "cancel")


def call(path: Path, verb: str) -> str:
    """What a job's script says when it is called so; nothing where there is none. Raises ConfigError where it fails."""
    if not path.exists():
        return ""
    ready()
    done = subprocess.run(["bash", str(path), verb], capture_output=True, text=True, check=False)
    if done.returncode:
        raise errors.ConfigError(f"bash {path} {verb} failed: {errors.first_line(Exception(done.stderr))}")
    return done.stdout


CLUSTER = Cluster(FILE, ready, check, text, submit, states, cancel, OPTIONS)
