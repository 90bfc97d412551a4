"""TPUs as queued resources of Google Cloud, by gcloud.

A queued resource runs one command, and a process has to watch it. So the job's file is a script that requests a
resource for each command, follows it, requests another after a preemption, and deletes it at the end. The script runs
on this machine, in the background.
Manual: cloud.google.com/tpu/docs/queued-resources, cloud.google.com/sdk/gcloud/reference/compute/tpus.
"""

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlm.base import errors
from mlm.base.text_files import split_names
from mlm.launch.cluster import job as jobs
from mlm.launch.cluster.accelerators import ACCELERATORS
from mlm.launch.cluster.job import ClusterOption, Job

FILE: str = "tpu.sh"
TOOLS: Sequence[str] = ("gcloud", "flock")
BODY = Path(__file__).with_name(FILE)
CAPACITY = {"on-demand": [], "spot": ["--spot"], "reserved": ["--reserved"]}
INSTALL = (
    "[ -x .venv/bin/python ] || { PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv && "
    "export PATH=$PATH:~/.local/bin && uv venv --quiet --python=3.12 .venv && "
    'uv pip install --quiet --editable ".[tpu,gs,tfds]"; }'
)
TABLE_OPTIONS: Mapping[str, str] = jobs.NO_OPTIONS
OPTIONS: Mapping[str, ClusterOption] = {
    "zone": ClusterOption("the TPUs' zone, such as us-east5-a", None),
    "project": ClusterOption("the project, if not gcloud's default"),
    "capacity": ClusterOption(
        "on-demand, reserved or spot (may be preempted, and is then requested again)", "on-demand"
    ),
    "runtime": ClusterOption("gcloud's --runtime-version, if not the accelerator's default for JAX"),
    "create": ClusterOption("more flags of gcloud compute tpus queued-resources create, such as --network=NAME"),
    "ssh": ClusterOption(
        "more flags of gcloud's ssh and scp, such as --tunnel-through-iap for hosts without addresses"
    ),
    "files": ClusterOption(
        "files and folders here that commands read by relative paths, such as tasks,text: they are copied to the hosts"
    ),
    "env": jobs.VARIABLES_OPTION,
    "setup": jobs.SETUP_OPTION,
    "install": ClusterOption("the shell command that makes .venv in the copy of the project on a host", INSTALL),
    "restarts": ClusterOption("how often a failed command is restarted; preemptions do not count", "3"),
}


def check_job(job: Job) -> None:
    """Raises ConfigError for a job that no TPU could run."""
    jobs.check_job(job)
    options = job.options
    errors.require_one_of("--option=capacity", options["capacity"], list(CAPACITY))
    jobs.check_count(job, "restarts", 0)
    jobs.parse_variables(job)
    for name in ("create", "ssh"):
        jobs.split_flags(job, name)
    names = list(filter(None, split_names(options["files"])))
    for name in names:
        is_here = not Path(name).is_absolute() and ".." not in Path(name).parts and (job.submit_folder / name).exists()
        errors.require(is_here, "--option=files", name, f"files and folders in {job.submit_folder}, by relative paths")
    expected = "gs://BUCKET/FOLDER: a TPU's hosts do not see this machine's disks, and theirs are deleted with them"
    errors.require(job.output_folder.startswith("gs://"), f"--{job.output_field}", job.output_folder, expected)
    expected = "gs://..., or a relative path that --option=files copies to the hosts, which do not see this disk"
    for field, path in job.data_paths:
        is_copied = any(Path(os.path.normpath(path)).is_relative_to(name) for name in names)
        errors.require(is_copied, field, path, expected)
    if job.accelerator:
        known = [name for name, one in ACCELERATORS.items() if one.tpu and one.tpu.runtime_version]
        jobs.check_accelerator(job, known)


def render_script(job: Job) -> str:
    """The job's settings, then tpu.sh, which runs the commands: on this machine if there is no accelerator."""
    options, num_slices, create, location, commands = job.options, 0, [], "this machine", job.commands
    files = filter(None, split_names(options["files"]))
    if job.accelerator:
        accelerator = ACCELERATORS[job.accelerator]
        tpu, num_slices = accelerator.tpu, job.num_hosts // accelerator.num_hosts
        assert tpu is not None, "check_job refuses others"
        create = [
            f"--accelerator-type={tpu.accelerator_type}",
            f"--runtime-version={options['runtime'] or tpu.runtime_version}",
            *CAPACITY[options["capacity"]],
            *jobs.split_flags(job, "create"),
        ]
        location = f"a {job.accelerator}" if num_slices == 1 else f"{num_slices} slices of {job.accelerator}"
        variables = [f"{name}={value}" for name, value in jobs.parse_variables(job).items()]
        commands = jobs.relocate_commands(job, ".")
        commands = [["env", *variables, *words] for words in commands] if variables else commands
    if setup := jobs.render_setup(job):
        commands = [["bash", "-c", f'{setup}; exec "$@"', "setup", *words] for words in commands]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# Commands: {len(commands)}, at most {job.max_running} at a time, each on {location}.",
            "# To run them, or continue: bash THIS_FILE",
            "# To see which are queued or running: bash THIS_FILE states",
            "# To end them and delete their TPUs: bash THIS_FILE cancel",
            f"NAME={job.name}",
            f"ZONE={shlex.quote(options['zone'])}",
            f"PROJECT={shlex.quote(options['project'])}  # empty: gcloud's default",
            f"CREATE=({shlex.join(create)})",
            f"SSH=({shlex.join(jobs.split_flags(job, 'ssh'))})",
            f"SLICES={num_slices}  # of each command; 0: this machine",
            f"HOSTS={job.num_hosts}  # of all its slices",
            f"RUNNING={job.max_running}",
            f"RESTARTS={options['restarts']}",
            f"LIMIT={round(3600 * job.hours)}  # seconds of a command, each time it is started",
            f"CODE={shlex.quote(str(job.code_folder))}",
            f"SUBMIT_FOLDER={shlex.quote(str(job.submit_folder))}",
            f"FILES=({shlex.join(files)})  # in that folder, copied to the hosts with the code",
            f"INSTALL={shlex.quote(options['install'])}",
            f"AFTER=({shlex.join(map(str, job.after))})",
            "COMMANDS=(",
            *(f"    {shlex.quote(jobs.format_command(command, ' ' * 8))}" for command in commands),
            ")",
            "",
            BODY.read_text(),
        ]
    )


def submit_job(job: Job, path: Path) -> str:
    """Starts the script in the background. Raises ConfigError if gcloud does not answer."""
    query_states([path])
    state_folder = path.with_suffix("")
    with (state_folder / "log").open("ab") as log:
        script = subprocess.Popen(
            ["bash", str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    while not (state_folder / "pid").exists():
        if script.poll() is not None:
            raise errors.ConfigError(f"{path} ended at once, see {state_folder / 'log'}")
        time.sleep(0.05)
    return f"{job.name}, followed by process {script.pid} of this machine"


def query_states(paths: Sequence[Path]) -> dict[Path, dict[int, str]]:
    """The states of the commands that are queued or running, by file of the job and number of the command."""
    lines = {path: call_script(path, "states").splitlines() for path in paths}
    return {path: {int(index): state for index, state in map(str.split, lines[path])} for path in paths}


def cancel_jobs(paths: Sequence[Path]) -> None:
    """Stops the jobs and deletes their TPUs."""
    for path in paths:
        call_script(path, "cancel")


def call_script(path: Path, command: str) -> str:
    """The output of a job's script for "states" or "cancel"; "" without a script. Raises ConfigError if it fails."""
    if not path.exists():
        return ""
    jobs.require_tools(TOOLS)
    return jobs.call_tool("bash", str(path), command, shown=3)


def format_submission(job: Job, path: Path) -> str:
    """The line that starts the script in the background."""
    return shlex.join(["bash", str(path)]) + " &"
