"""Kubernetes: a job is a file of JobSets for `kubectl apply`; Kubernetes has no array, and no cap on one.

So the commands are dealt to as many JobSets as may run at a time, which do theirs one after the other; with a queue of
Kueue, whose quota is the cap, each gets its own. What a JobSet has done it leaves out when it is started again.
Manual: jobset.sigs.k8s.io/docs, cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice, kueue.sigs.k8s.io.
"""
import json
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlm.base import errors
from mlm.launch.cluster import job as jobs
from mlm.launch.cluster.accelerators import KINDS
from mlm.launch.cluster.job import Cluster, Job, Option

FILE = "jobsets.yaml"
LABEL = "mlm-job"              # a job's name, on each of its JobSets
COMMANDS = "mlm-commands"      # the numbers of a JobSet's commands, an annotation
PORT, PORTS = 9876, 1000       # of process 0; each command has its own, lest it meets the one before it
GRACE = 120                    # seconds to save, once a pod is told to end
UNFINISHED = [124, 143]        # exit codes of what was told to end: its time was up, or its node's
LONGEST = 2**17                # bytes of a pod's script, which Linux takes as one word
KEPT = 7 * 24 * 3600           # seconds that what has ended can be looked at
WORK = """\
# One command after the other; where the pod is told to end, so is its command, and the rest is left.
told= code=0
trap 'told=1 code=143; kill -TERM "$child"' TERM
run() {
    [ -z "$told" ] || return
    timeout --kill-after=%d %d "$@" &
    child=$!
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done
    wait "$child" || code=$?
}
"""
RESUME = """\
until said=$(kubectl get jobsets --namespace="$1" --selector="$2" --output=jsonpath="$3") && [[ $said != *"<>"* ]]; do
    sleep "${POLL:-60}"
done
kubectl patch --filename="$4" --type=merge --patch='{"spec": {"suspend": false}}'
"""
ENDED = "{range .items[*]}<{.status.terminalState}>{end}"
OPTIONS = {
    "image": Option("the pods' image: bash, and Python with what setup.py asks for"),
    "namespace": Option("the namespace", "default"),
    "claim": Option("a PersistentVolumeClaim that holds the sweep's folder; none: the runs are on a bucket", ""),
    "mount": Option("where the claim is mounted, in the pods as on this machine, such as /mnt/lab", ""),
    "code": Option("where the project lies in the image, if there is no claim", "/mlm"),
    "queue": Option("a LocalQueue of Kueue, which then says how many run", ""),
    "account": Option("the pods' service account, which may use the bucket", ""),
    "priority": Option("the pods' PriorityClass", ""),
    "selector": Option("labels of the nodes, such as cloud.google.com/gke-accelerator=nvidia-h200-141gb,...", ""),
    "tolerate": Option("taints of the nodes that are no hindrance, such as nvidia.com/gpu,NAME", ""),
    "restarts": Option("how often what fails is started again; what was preempted always is", "3"),
}


def ready() -> None:
    if shutil.which("kubectl") is None:
        raise errors.ConfigError("kubectl is not on PATH: JobSets are submitted by it; --dry_run shows the job's file "
                                 "here")


def check(job: Job) -> None:
    """Raises ConfigError for a job that no JobSet could run."""
    jobs.check(job)
    said = job.options
    for name, value in said.items():
        errors.require(value.isprintable() and not set(value) & set(" \"'"), f"--option={name}", value,
                      "text without spaces and quotes")
    errors.require(said["restarts"].isdecimal(), "--option=restarts", said["restarts"], "a whole number")
    pairs(said["selector"])
    bucket = job.runs.startswith("gs://")
    if said["claim"]:
        mount = Path(said["mount"])
        errors.require(mount.is_absolute(), "--option=mount", said["mount"], "an absolute path, beside claim")
        for path in (job.code, *([] if bucket else [job.place / job.runs])):
            errors.require(path.is_relative_to(mount), "--config.workdir", job.runs,
                          f"a folder in {mount}, which the pods see")
    else:
        errors.require(bucket, "--config.workdir", job.runs, "gs://..., or --option=claim=NAME: pods see no "
                      "disk of this machine, and theirs go with them")
    if job.kind:
        errors.require_one_of("--kind", job.kind, list(KINDS))
        kind = KINDS[job.kind]
        errors.require(job.hosts % kind.hosts == 0, "--hosts", job.hosts,
                      f"{kind.hosts}, which a {job.kind} has, or a multiple of that for several slices")
        errors.require(not kind.tpu or kind.hosts > 1 or job.hosts == 1, "--hosts", job.hosts,
                      f"1: GKE connects slices of several hosts alone, and a {job.kind} has one")
    longest = max(len(script(job, numbers, job.name).encode()) for numbers in dealt(job))
    errors.require(longest < LONGEST, "--running", job.running,
                   f"more: one pod is to do so many of {len(job.commands)} " "commands that its script is too long")


def dealt(job: Job) -> list[range]:
    """The numbers of each JobSet's commands."""
    sets = len(job.commands) if job.options["queue"] else min(job.running, len(job.commands))
    return [range(first, len(job.commands), sets) for first in range(sets)]


def pairs(labels: str) -> dict[str, str]:
    found = [word.partition("=") for word in labels.split(",") if word]
    errors.require(all(name and sign for name, sign, _ in found), "--option=selector", labels, "NAME=VALUE,NAME=VALUE")
    return {name: value for name, _, value in found}


def text(job: Job) -> str:
    """The manifest, a document a JobSet."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data):
            return True

    def words(dumper, value):
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, words)
    sets = [jobset(job, lane, numbers) for lane, numbers in enumerate(dealt(job))]
    head = (f"# Commands: {len(job.commands)}; JobSets: {len(sets)}, each does its own commands one after the other.\n"
            "# To queue them, where JobSet is (0.7 or later): kubectl apply --server-side --filename=THIS_FILE\n")
    return head + yaml.dump_all(sets, Dumper=Dumper, sort_keys=False, explicit_start=True, width=1000)


def jobset(job: Job, lane: int, numbers: Sequence[int]) -> dict:
    """The JobSet that runs these of the job's commands."""
    kind, name, said = KINDS.get(job.kind), f"{job.name}-{lane}", job.options
    tpu = kind and kind.tpu
    each = kind.hosts if tpu else job.hosts  # hosts of a slice, which is a Job
    queue = {"kueue.x-k8s.io/queue-name": said["queue"]} if said["queue"] and kind else {}
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    part = "slice" if tpu else "hosts"
    work = {
        "parallelism": each,
        "completions": each,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "run", "operator": "In", "values": UNFINISHED}}]},
        "template": {"spec": pod(job, numbers, f"{name}-{part}-0-0.{name}")},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": said["namespace"],
            "labels": {LABEL: job.name} | queue,
            "annotations": {COMMANDS: " ".join(map(str, numbers))} | (exclusive if tpu and each > 1 else {})},
        "spec": {
            **({"suspend": True} if job.after else {}),
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            **({"coordinator": {"replicatedJob": part, "jobIndex": 0, "podIndex": 0}} if job.hosts > 1 else {}),
            "successPolicy": {"operator": "All"},
            "failurePolicy": {
                "maxRestarts": int(said["restarts"]),
                "restartStrategy": "BlockingRecreate",
                "rules": [{"name": "preempted", "action": "RestartJobSetAndIgnoreMaxRestarts",
                           "onJobFailureReasons": ["PodFailurePolicy"]}]},
            "ttlSecondsAfterFinished": KEPT,
            "replicatedJobs": [{"name": part, "replicas": job.hosts // each, "template": {"spec": work}}]}}


def pod(job: Job, numbers: Sequence[int], coordinator: str) -> dict:
    kind, said = KINDS.get(job.kind), job.options
    tpu = kind and kind.tpu
    nodes = {"cloud.google.com/gke-tpu-accelerator": tpu.node,
             "cloud.google.com/gke-tpu-topology": tpu.topology} if tpu else {}
    nodes |= pairs(said["selector"]) if kind else {}
    volumes, mounts = [], []
    if said["claim"]:
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": said["claim"]}})
        mounts.append({"name": "runs", "mountPath": said["mount"]})
    if kind and not tpu:
        volumes.append({"name": "shared", "emptyDir": {"medium": "Memory"}})  # by which a host's GPUs meet
        mounts.append({"name": "shared", "mountPath": "/dev/shm"})
    resource = "google.com/tpu" if tpu else "nvidia.com/gpu"
    container = {
        "name": "run",
        "image": said["image"],
        "workingDir": str(place(job)),
        "command": ["/bin/bash", "-c"],
        "args": [script(job, numbers, coordinator)],
        **({"env": [{"name": name, "value": value} for name, value in jobs.environment(job).items()]}
           if said["claim"] else {}),
        **({"ports": [{"containerPort": 8471}, {"containerPort": 8080}]} if tpu else {}),  # libtpu's; MEGASCALE's
        **({"resources": {"limits": {resource: kind.chips // kind.hosts}}} if kind else {}),
        **({"volumeMounts": mounts} if mounts else {}),
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE,
        **({"nodeSelector": nodes} if nodes else {}),
        **({"tolerations": [{"key": key, "operator": "Exists"} for key in said["tolerate"].split(",")]}
           if said["tolerate"] and kind else {}),
        **({"serviceAccountName": said["account"]} if said["account"] else {}),
        **({"priorityClassName": said["priority"]} if said["priority"] else {}),
        "containers": [container],
        **({"volumes": volumes} if volumes else {}),
    }


def place(job: Job) -> Path:
    """Where commands start: where they were submitted, if the pods have that folder, else in the code."""
    if not job.options["claim"]:
        return Path(job.options["code"])
    return job.place if job.place.is_relative_to(job.options["mount"]) else job.code


def script(job: Job, numbers: Sequence[int], coordinator: str) -> str:
    """What a pod does. GPUs of several hosts are told who they are; TPUs are by GKE."""
    code = str(job.code) if job.options["claim"] else job.options["code"]
    told = job.hosts > 1 and not (job.kind and KINDS[job.kind].tpu)
    commands, lines = jobs.elsewhere(job, "python", code), [WORK % (GRACE, round(3600 * job.hours))]
    if told:
        lines.append(f"until getent hosts {coordinator}; do sleep 2; done\n")
    for number in numbers:
        line = f"run {jobs.readable(commands[number], ' ' * 4)}"
        if job.options["claim"] and job.folder.is_relative_to(job.options["mount"]):
            line += f" \\\n    >>{shlex.quote(str(jobs.log(job.folder / FILE, number)))} 2>&1"
        them = (f"--coordinator={coordinator}:{PORT + number % PORTS} \\\n    --processes={job.hosts} \\\n    "
                "--process=$JOB_COMPLETION_INDEX")
        lines.append((line.replace("--distributed", them) if told else line) + "\n")
    return "".join([*lines, 'exit "$code"\n'])


def submit(job: Job, path: Path) -> str:
    """Queues the JobSets. What comes after other jobs is queued as suspended; a process of this machine resumes it."""
    call("apply", "--server-side", f"--filename={path}")
    names = [path.parent.name for path in job.after]
    if names:
        with path.with_name("resume.log").open("ab") as log:
            those = f"{LABEL} in ({','.join(names)})"
            subprocess.Popen(["bash", "-c", RESUME, "resume", job.options["namespace"], those, ENDED, str(path)],
                             stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return f"JobSets of {LABEL}={job.name} in {job.options['namespace']}"


def call(*words: str) -> str:
    """What kubectl prints. Raises ConfigError where it is not there, or fails."""
    ready()
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]  # those before it are a library's
        raise errors.ConfigError(f"kubectl {shlex.join(words[:2])} failed: {errors.first_line(Exception(*said))}")
    return done.stdout


def chosen(path: Path) -> list[str]:
    """The flags that choose a job's JobSets, as its file says."""
    import yaml

    with path.open() as file:
        first = next(yaml.safe_load_all(file))
    return [f"--namespace={first['metadata']['namespace']}", f"--selector={LABEL}={first['metadata']['labels'][LABEL]}"]


def states(paths: Sequence[Path]) -> dict[Path, dict[int, str]]:
    found: dict[Path, dict[int, str]] = {path: {} for path in paths}
    for path in paths:
        if path.exists():
            for one in json.loads(call("get", "jobsets", *chosen(path), "--output=json"))["items"]:
                found[path] |= dict.fromkeys(map(int, one["metadata"]["annotations"][COMMANDS].split()), state(one))
    return {path: {number: said for number, said in those.items() if said} for path, those in found.items()}


def state(one: Mapping) -> str:
    """"queued", "running", or "" for a JobSet that has ended."""
    status = one.get("status", {})
    if status.get("terminalState"):
        return ""
    at_work = any(part["ready"] for part in status.get("replicatedJobsStatus", []))
    return "running" if at_work and not one["spec"].get("suspend") else "queued"


def cancel(paths: Sequence[Path]) -> None:
    """Returns at once; the pods have GRACE seconds to save, and the JobSets are there until those have ended."""
    for path in filter(Path.exists, paths):
        call("delete", "jobsets", *chosen(path), "--cascade=foreground", "--wait=false")


CLUSTER = Cluster(FILE, ready, check, text, submit, states, cancel, OPTIONS)
