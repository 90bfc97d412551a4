"""Kubernetes: a job is a file of JobSets for `kubectl apply`; Kubernetes has no array, and no limit on one.

So the commands are distributed over as many JobSets as may run at a time, which run theirs one after the other. With a
queue of Kueue, whose quota is the limit, each command gets its own JobSet. A JobSet that restarts repeats its commands,
which skip what is done.
Manual: jobset.sigs.k8s.io/docs, cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice, kueue.sigs.k8s.io.
"""

import json
import os
import re
import shlex
import string
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlm.base import errors
from mlm.launch.cluster import job as jobs
from mlm.launch.cluster.accelerators import ACCELERATORS
from mlm.launch.cluster.job import ClusterOption, Job

FILE: str = "jobsets.yaml"
TOOLS: Sequence[str] = ("kubectl",)
APPLY = ("kubectl", "apply", "--server-side")
LABEL = "mlm-job"  # a job's name, on each of its JobSets
COMMANDS = "mlm-commands"  # annotation: the indices of a JobSet's commands
PORT, PORTS = 9876, 1000  # of process 0; each command has its own, so that it does not meet the one before it
GRACE_SECONDS = 120  # for runs to save, once a pod is told to end
MAX_SCRIPT_BYTES = 2**17  # Linux's limit of one word of a command line
JOBSET = Path(__file__).with_name("kubernetes_jobset.yaml")  # of `string.Template`
RANK = "--process=$JOB_COMPLETION_INDEX"  # a flag of mlm train, whose value the pod knows
RUN_FUNCTION = Path(__file__).with_name("kubernetes_run.sh")  # of `str.format`
RESUME_SCRIPT = Path(__file__).with_name("kubernetes_resume.sh")
TERMINAL_STATES = "{range .items[*]}<{.status.terminalState}>{end}"
OPTIONS: Mapping[str, ClusterOption] = {
    "image": ClusterOption("the pods' image: bash, and Python with the packages of pyproject.toml", None),
    "namespace": ClusterOption("the namespace", "default"),
    "claim": ClusterOption(
        "a PersistentVolumeClaim that holds the folder of what is written; none: that is in a bucket"
    ),
    "mount": ClusterOption("where the claim is mounted, in the pods as on this machine, such as /mnt/lab"),
    "code": ClusterOption("where the project is in the image, if there is no claim", "/mlm"),
    "queue": ClusterOption("a LocalQueue of Kueue, which then limits how many run"),
    "account": ClusterOption("the pods' service account, which may use the bucket"),
    "priority": ClusterOption("the pods' PriorityClass"),
    "selector": ClusterOption("labels of the nodes, such as cloud.google.com/gke-accelerator=nvidia-h200-141gb,..."),
    "tolerate": ClusterOption("taints of the nodes that the pods tolerate, such as nvidia.com/gpu,NAME"),
    "cpu": ClusterOption("cores that each pod asks for, such as 8 or 500m"),
    "memory": ClusterOption("memory that each pod asks for, such as 64Gi"),
    "shm": ClusterOption("the most that the processes of a pod with GPUs share in memory, such as 16Gi"),
    "env": jobs.VARIABLES_OPTION,
    "setup": jobs.SETUP_OPTION,
    "data": ClusterOption("folders where the pods find data besides the claim and the code, such as /data,/sets"),
    "restarts": ClusterOption("how often a failed command is restarted; a preempted one always is", "3"),
}
TABLE_OPTIONS: Mapping[str, str] = {"cpu": "", "memory": ""}
QUANTITY = re.compile(r"(?=.*[1-9])[0-9]+(\.[0-9]+)?(m|k|[MGTPE]|[KMGTPE]i)?")  # of resources


def check_job(job: Job) -> None:
    """Raises ConfigError for a job that no JobSet could run."""
    jobs.check_job(job)
    options = job.options
    for name, value in options.items():
        is_plain = name in ("env", "setup") or not set(value) & set(" \"'")
        errors.require(is_plain, f"--option={name}", value, "text without spaces and quotes")
    jobs.check_count(job, "restarts", 0)
    expected = "a quantity of Kubernetes, such as 8 or 500m for cpu, and 64Gi for memory"
    for name in ("cpu", "memory", "shm"):
        is_quantity = not options[name] or QUANTITY.fullmatch(options[name]) is not None
        errors.require(is_quantity, f"--option={name}", options[name], expected)
    jobs.parse_pairs("selector", options["selector"])
    jobs.parse_variables(job)
    check_paths(job)
    if job.accelerator:
        jobs.check_accelerator(job, list(ACCELERATORS))
        accelerator = ACCELERATORS[job.accelerator]
        is_connected = not accelerator.tpu or accelerator.num_hosts > 1 or job.num_hosts == 1
        expected = f"1: GKE connects only slices of several hosts, and a {job.accelerator} has one"
        errors.require(is_connected, "--hosts", job.num_hosts, expected)
    longest = max(len(render_pod_script(job, indices, job.name).encode()) for indices in assign_commands(job))
    expected = f"more: the script of one pod, for its part of {len(job.commands)} commands, is too long"
    errors.require(longest < MAX_SCRIPT_BYTES, "--max_running", job.max_running, expected)


def check_paths(job: Job) -> None:
    """Raises ConfigError for a path that the pods do not see."""
    options, in_bucket, field = job.options, job.output_folder.startswith("gs://"), f"--{job.output_field}"
    if options["claim"]:
        mount = Path(options["mount"])
        is_plain = mount.is_absolute() and ".." not in mount.parts
        errors.require(is_plain, "--option=mount", options["mount"], "an absolute path without .., with claim")
        for path in (job.code_folder, *([] if in_bucket else [job.submit_folder / job.output_folder])):
            errors.require(is_within(path, mount), field, job.output_folder, f"a folder in {mount}, which the pods see")
    else:
        expected = (
            "gs://..., or --option=claim=NAME: pods see no disk of this machine, and their own disks are deleted with "
            "them"
        )
        errors.require(in_bucket, field, job.output_folder, expected)
    visible = [name for name in ([options["mount"]] if options["claim"] else []) + options["data"].split(",") if name]
    start_folder = job.submit_folder if options["claim"] else working_dir(job)
    expected = f"gs://..., or a path in {' or '.join([*visible, '--option=data=FOLDER,...'])}, which the pods see"
    for field, path in job.data_paths:
        is_visible = any(is_within(start_folder / path, start_folder / folder) for folder in visible)
        errors.require(is_visible, field, path, expected)


def is_within(path: Path, folder: Path | str) -> bool:
    """Whether a path leads into a folder, even if it contains `..`."""
    return Path(os.path.normpath(path)).is_relative_to(folder)


def assign_commands(job: Job) -> list[range]:
    """The indices of each JobSet's commands."""
    num_sets = len(job.commands) if job.options["queue"] else min(job.max_running, len(job.commands))
    return [range(first, len(job.commands), num_sets) for first in range(num_sets)]


def render_script(job: Job) -> str:
    """The manifest, with a YAML document for each JobSet."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as they are."""

    def represent_text(dumper, value):
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, represent_text)
    jobsets = [make_jobset(job, lane, indices) for lane, indices in enumerate(assign_commands(job))]
    header = (
        f"# Commands: {len(job.commands)}; JobSets: {len(jobsets)}, each runs its commands one after the other.\n"
        "# To queue them, where JobSet is installed (0.7 or later): "
        "kubectl apply --server-side --filename=THIS_FILE\n"
    )
    return header + yaml.dump_all(jobsets, Dumper=Dumper, sort_keys=False, explicit_start=True, width=1000)


def make_jobset(job: Job, lane: int, indices: Sequence[int]) -> dict:
    """The JobSet that runs these of the job's commands."""
    import yaml

    accelerator, name, options = ACCELERATORS.get(job.accelerator), f"{job.name}-{lane}", job.options
    tpu = accelerator and accelerator.tpu
    hosts_per_slice = accelerator.num_hosts if accelerator and tpu else job.num_hosts  # a slice is a Job
    replicated_job = "slice" if tpu else "hosts"
    labels, annotations, nodes = {LABEL: job.name}, {COMMANDS: " ".join(map(str, indices))}, {}
    if accelerator and options["queue"]:
        labels["kueue.x-k8s.io/queue-name"] = options["queue"]
    if tpu and hosts_per_slice > 1:
        annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"] = "cloud.google.com/gke-nodepool"
    if tpu:
        nodes["cloud.google.com/gke-tpu-accelerator"] = tpu.gke_accelerator
        nodes["cloud.google.com/gke-tpu-topology"] = tpu.topology
    if accelerator:
        nodes |= jobs.parse_pairs("selector", options["selector"])
    resource = "google.com/tpu" if tpu else "nvidia.com/gpu"
    env = {name: value for name, value in jobs.job_environment(job).items() if options["claim"] or "PYTHON" not in name}
    tolerated = options["tolerate"].split(",") if options["tolerate"] and accelerator else []
    volumes, mounts = list_volumes(job)
    values = {
        **{name: options[name] for name in ("namespace", "image", "account", "priority")},
        "name": name,
        "labels": labels,
        "annotations": annotations,
        "is_suspended": bool(job.after),
        "coordinator": job.num_hosts > 1 and {"replicatedJob": replicated_job, "jobIndex": 0, "podIndex": 0},
        "restarts": int(options["restarts"]),
        "replicated_job": replicated_job,
        "num_slices": job.num_hosts // hosts_per_slice,
        "hosts_per_slice": hosts_per_slice,
        "grace": GRACE_SECONDS,
        "has_tpu": bool(tpu),
        "dns_policy": "ClusterFirstWithHostNet" if tpu else "",
        "nodes": nodes,
        "tolerations": [{"key": key, "operator": "Exists"} for key in tolerated],
        "folder": str(working_dir(job)),
        "script": render_pod_script(job, indices, f"{name}-{replicated_job}-0-0.{name}"),
        "env": [{"name": name, "value": value} for name, value in (env | jobs.parse_variables(job)).items()],
        "ports": [{"containerPort": 8471}, {"containerPort": 8080}] if tpu else [],  # libtpu's; MEGASCALE's
        "requests": {name: options[name] for name in ("cpu", "memory")},
        "limits": {resource: accelerator.num_chips // accelerator.num_hosts} if accelerator else {},
        "mounts": mounts,
        "volumes": volumes,
    }
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}  # JSON is YAML
    return drop_empty(yaml.safe_load(string.Template(JOBSET.read_text()).substitute(texts)))


def drop_empty(value: Any) -> Any:
    """A value of YAML without the entries of its mappings that say nothing."""
    if isinstance(value, list):
        return list(map(drop_empty, value))
    if not isinstance(value, dict):
        return value
    entries = ((key, drop_empty(entry)) for key, entry in value.items())
    return {key: entry for key, entry in entries if entry is not False and entry not in (None, "", [], {})}


def list_volumes(job: Job) -> tuple[list[dict], list[dict]]:
    """The volumes of a job's pods, and where they are mounted."""
    accelerator, options = ACCELERATORS.get(job.accelerator), job.options
    volumes, mounts = [], []
    if options["claim"]:
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": options["claim"]}})
        mounts.append({"name": "runs", "mountPath": options["mount"]})
    if accelerator and not accelerator.tpu:
        memory = {"medium": "Memory", "sizeLimit": options["shm"]}
        volumes.append({"name": "shared", "emptyDir": memory})  # NCCL between the GPUs of a host
        mounts.append({"name": "shared", "mountPath": "/dev/shm"})
    return volumes, mounts


def working_dir(job: Job) -> Path:
    """Where commands start: the folder where they were submitted, if the pods see it, else the code."""
    if not job.options["claim"]:
        return Path(job.options["code"])
    return job.submit_folder if job.submit_folder.is_relative_to(job.options["mount"]) else job.code_folder


def render_pod_script(job: Job, indices: Sequence[int], coordinator: str) -> str:
    """The script of a pod. It gives GPUs of several hosts the coordinator's address; TPUs get theirs from GKE."""
    code_folder = str(job.code_folder) if job.options["claim"] else job.options["code"]
    needs_coordinator = job.num_hosts > 1 and not (job.accelerator and ACCELERATORS[job.accelerator].tpu)
    commands = jobs.relocate_commands(job, code_folder)
    lines = [RUN_FUNCTION.read_text().format(grace=GRACE_SECONDS, limit=round(3600 * job.hours))]
    if setup := jobs.render_setup(job):
        lines.append(f"{setup}\n")
    if needs_coordinator:
        lines.append(f"until getent hosts {coordinator}; do sleep 2; done\n")
    for index in indices:
        address = (f"--coordinator={coordinator}:{PORT + index % PORTS}", f"--processes={job.num_hosts}", RANK)
        joins = {"--distributed": address} if needs_coordinator else {}
        words = [part for word in commands[index] for part in joins.get(word, (word,))]
        line = f"run {jobs.format_command(words, ' ' * 4)}".replace(shlex.quote(RANK), RANK)
        if job.options["claim"] and job.folder.is_relative_to(job.options["mount"]):
            line += f" \\\n    >>{shlex.quote(str(jobs.log_path(job.folder / FILE, index)))} 2>&1"
        lines.append(line + "\n")
    return "".join([*lines, 'exit "$code"\n'])


def submit_job(job: Job, path: Path) -> str:
    """Queues the JobSets. A job that comes after others is queued suspended; a process on this machine resumes it."""
    jobs.call_tool(*APPLY, f"--filename={path}", shown=3)
    if names := [path.parent.name for path in job.after]:
        arguments = [job.options["namespace"], f"{LABEL} in ({','.join(names)})", TERMINAL_STATES, str(path)]
        words = ["bash", "-c", RESUME_SCRIPT.read_text(), "resume", *arguments]
        with path.with_name("resume.log").open("ab") as log:
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return f"JobSets of {LABEL}={job.name} in {job.options['namespace']}"


def job_selector(path: Path) -> list[str]:
    """The flags of kubectl that select a job's JobSets, from its file."""
    import yaml

    with path.open() as file:
        first = next(yaml.safe_load_all(file))
    return [f"--namespace={first['metadata']['namespace']}", f"--selector={LABEL}={first['metadata']['labels'][LABEL]}"]


def query_states(paths: Sequence[Path]) -> dict[Path, dict[int, str]]:
    """The states of the commands that are queued or running, by file of the job and number of the command."""
    states: dict[Path, dict[int, str]] = {path: {} for path in paths}
    for path in paths:
        if path.exists():
            found = jobs.call_tool("kubectl", "get", "jobsets", *job_selector(path), "--output=json", shown=3)
            for jobset in json.loads(found)["items"]:
                status = jobset.get("status", {})
                if not status.get("terminalState"):  # it has not ended
                    is_ready = any(part["ready"] for part in status.get("replicatedJobsStatus", []))
                    state = "running" if is_ready and not jobset["spec"].get("suspend") else "queued"
                    indices = map(int, jobset["metadata"]["annotations"][COMMANDS].split())
                    states[path] |= dict.fromkeys(indices, state)
    return states


def cancel_jobs(paths: Sequence[Path]) -> None:
    """Returns at once. The pods have GRACE_SECONDS to save; the JobSets exist until the pods have ended."""
    for path in filter(Path.exists, paths):
        flags = "--cascade=foreground", "--wait=false"
        jobs.call_tool("kubectl", "delete", "jobsets", *job_selector(path), *flags, shown=3)


def format_submission(job: Job, path: Path) -> str:
    """The line that queues the JobSets."""
    names = ", ".join(other.parent.name for other in job.after)
    line = shlex.join([*APPLY, f"--filename={path}"])
    return line + (f"  # suspended until these have ended: {names}" if names else "")
