"""JobSets: each file is one that the documentation would accept, and asks for all hosts and for each command once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import clouds
import jsonschema
import pytest
import yaml
from small import get_refusal
from test_submit import go, sweep

from mlm.launch import code_snapshot
from mlm.launch.cluster import accelerators, kubernetes
from mlm.launch.cluster import job as cluster_job
from mlm.launch.cluster.job import Job, parse_options
from mlm.launch.sweep import jobs


def record(needed: str = "", **fields) -> dict:
    return {"type": "object", "properties": fields, "required": needed.split(), "additionalProperties": False}


def several(item) -> dict:
    return {"type": "array", "items": item, "minItems": 1}


def one(*values) -> dict:
    return {"enum": list(values)}


# Of jobset.sigs.k8s.io/docs/reference and kubernetes.io/docs/reference, the fields that are used here, and no other.
TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABELS = {
    "type": "object",
    "propertyNames": {"pattern": KEY},
    "additionalProperties": {
        "type": "string",
        "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        "maxLength": 63,
    },
}
NOTES = {"type": "object", "propertyNames": {"pattern": KEY}, "additionalProperties": TEXT}
VOLUME = record(
    "name",
    name=NAME,
    persistentVolumeClaim=record("claimName", claimName=NAME),
    emptyDir=record(medium=one("", "Memory"), sizeLimit=TEXT),
)
CONTAINER = record(
    "name image",
    name=NAME,
    image=TEXT,
    workingDir=TEXT,
    command=several(TEXT),
    args=several(TEXT),
    env=several(record("name value", name=TEXT, value=TEXT)),
    ports=several(record("containerPort", containerPort={"type": "integer", "maximum": 65535})),
    resources=record(
        requests=record(cpu=TEXT, memory=TEXT), limits=record(**{"nvidia.com/gpu": COUNT, "google.com/tpu": COUNT})
    ),
    volumeMounts=several(record("name mountPath", name=NAME, mountPath=TEXT)),
)
POD = record(
    "containers",
    hostNetwork=FLAG,
    dnsPolicy=one("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    restartPolicy=one("Never", "OnFailure"),
    terminationGracePeriodSeconds=COUNT,
    nodeSelector=LABELS,
    tolerations=several(record(key=TEXT, operator=one("Exists"))),
    serviceAccountName=NAME,
    priorityClassName=NAME,
    containers=several(CONTAINER),
    volumes=several(VOLUME),
)
CONDITION = record("type", type=TEXT, status=one("True", "False", "Unknown"))
CODES = record(
    "operator values",
    containerName=NAME,
    operator=one("In", "NotIn"),
    values=several({"type": "integer", "minimum": 1}),
)
WORK = record(
    "template",
    parallelism=COUNT,
    completions=COUNT,
    completionMode=one("Indexed", "NonIndexed"),
    backoffLimit=COUNT,
    template=record(spec=POD),
    podFailurePolicy=record(
        "rules",
        rules=several(
            record(
                "action",
                action=one("FailJob", "Ignore", "Count"),
                onPodConditions=several(CONDITION),
                onExitCodes=CODES,
            )
        ),
    ),
)
RULE = record(
    "name action",
    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    action=one("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
    onJobFailureReasons=several(
        one("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy")
    ),
)
SPEC = record(
    "replicatedJobs",
    suspend=FLAG,
    ttlSecondsAfterFinished=COUNT,
    network=record(enableDNSHostnames=FLAG, publishNotReadyAddresses=FLAG, subdomain=NAME),
    coordinator=record("replicatedJob", replicatedJob=NAME, jobIndex=COUNT, podIndex=COUNT),
    successPolicy=record("operator", operator=one("All", "Any")),
    failurePolicy=record(
        maxRestarts=COUNT, rules=several(RULE), restartStrategy=one("Recreate", "BlockingRecreate", "InPlaceRestart")
    ),
    replicatedJobs=several(record("name template", name=NAME, replicas=COUNT, template=record(spec=WORK))),
)
JOBSET = record(
    "apiVersion kind metadata spec",
    apiVersion=one("jobset.x-k8s.io/v1alpha2"),
    kind=one("JobSet"),
    metadata=record("name", name=NAME, namespace=NAME, labels=LABELS, annotations=NOTES),
    spec=SPEC,
)

PAST = Path("/mnt/lab/jobs/mlm-1/jobsets.yaml")
JOBS = {
    "tpu": {"accelerator": "v5p-64", "num_hosts": 16, "asked": ("queue=lab", "account=runner", "priority=low")},
    "host": {"accelerator": "v5e-8"},
    "gpu": {
        "accelerator": "H200-8",
        "num_hosts": 4,
        "asked": (
            "claim=lab",
            "mount=/mnt/lab",
            "tolerate=nvidia.com/gpu",
            "selector=cloud.google.com/gke-accelerator=nvidia-h200-141gb",
            "cpu=96",
            "memory=1.5Ti",
            "shm=64Gi",
            "env=NCCL_DEBUG=INFO,XLA_FLAGS=--a=1 --b='2'",
        ),
    },
    "none": {"accelerator": "", "after": (PAST,)},
}


def job(folder=Path("/mnt/lab"), asked=(), count=5, **changes) -> Job:
    said = parse_options(kubernetes.OPTIONS, ["image=registry/mlm:1", *asked])
    run = (sys.executable, "-m", "mlm", "train", f"--config={folder}/code/a.py", "--distributed")
    commands = tuple((*run, str(number), "a 'b") for number in range(count))
    return Job(
        "mlm-2",
        commands,
        folder / "jobs" / "mlm-2",
        folder / "code",
        folder,
        **{"accelerator": "", "max_running": 2, "output_folder": "gs://lab/runs", "options": said} | changes,
    )


def documents(asked: Job) -> list[dict]:
    kubernetes.check_job(asked)
    return list(yaml.safe_load_all(kubernetes.render_script(asked)))


@pytest.mark.parametrize("name", JOBS)
def test_a_manifest_is_one_that_the_documentation_would_accept(name):
    for each in documents(job(**JOBS[name])):
        jsonschema.Draft202012Validator(JOBSET).validate(each)
        (part,) = each["spec"]["replicatedJobs"]
        host = f"{each['metadata']['name']}-{part['name']}-{part['replicas']}-{part['template']['spec']['completions']}"
        assert len(host) <= 63
        pod = part["template"]["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        assert {mount["name"] for mount in pod["containers"][0].get("volumeMounts", [])} == volumes


def pod_of(jobset: dict) -> dict:
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def test_a_pod_has_the_resources_and_the_environment_that_are_asked_for():
    each = documents(job(**JOBS["gpu"]))[0]
    assert container(each)["resources"] == {
        "requests": {"cpu": "96", "memory": "1.5Ti"},
        "limits": {"nvidia.com/gpu": 8},
    }
    env = {one["name"]: one["value"] for one in container(each)["env"]}
    assert env["NCCL_DEBUG"] == "INFO" and env["XLA_FLAGS"] == "--a=1 --b='2'" and env["PYTHONSAFEPATH"] == "1"
    (shared,) = (volume["emptyDir"] for volume in pod_of(each)["volumes"] if volume["name"] == "shared")
    assert shared == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert pod_of(each)["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}
    assert pod_of(each)["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    table = cluster_job.choose_table_options(kubernetes, job(**JOBS["gpu"]).options)
    assert not table["cpu"] and not table["memory"] and table["env"]


@pytest.mark.parametrize("name", JOBS)
def test_it_asks_for_all_hosts_and_their_devices(name):
    asked = job(**JOBS[name])
    kind = accelerators.ACCELERATORS.get(asked.accelerator)
    for each in documents(asked):
        (part,) = each["spec"]["replicatedJobs"]
        work = part["template"]["spec"]
        assert part["replicas"] * work["parallelism"] == asked.num_hosts and work["parallelism"] == work["completions"]
        pod = work["template"]["spec"]
        limits = pod["containers"][0].get("resources", {}).get("limits", {})
        if kind and kind.tpu:
            assert part["replicas"] == asked.num_hosts // kind.num_hosts
            assert limits == {"google.com/tpu": kind.num_chips // kind.num_hosts}
            assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == kind.tpu.topology
        else:
            assert part["replicas"] == 1 and limits == ({"nvidia.com/gpu": 8} if kind else {})
        network = (True, "ClusterFirstWithHostNet") if kind and kind.tpu else (None, None)
        assert (pod.get("hostNetwork"), pod.get("dnsPolicy")) == network
        assert ("coordinator" in each["spec"]) == (asked.num_hosts > 1)
        assert each["spec"].get("suspend", False) == bool(asked.after)


@pytest.mark.parametrize(("asked", "sets"), [((), 2), (("queue=lab",), 5)], ids=["cap", "kueue"])
def test_each_command_is_of_one_jobset(asked, sets):
    """As many as may run have all of them; with a queue, each has its own."""
    found = documents(job(asked=asked, accelerator="H200"))
    numbers = [list(map(int, each["metadata"]["annotations"]["mlm-commands"].split())) for each in found]
    assert len(found) == sets and sorted(number for those in numbers for number in those) == list(range(5))
    assert len({each["metadata"]["name"] for each in found}) == sets
    for each, those in zip(found, numbers, strict=True):
        script = container(each)["args"][0]
        assert [f" {number} " in script.replace("\\\n", " ") for number in range(5)] == [n in those for n in range(5)]


def container(jobset: dict) -> dict:
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]


def start(tmp_path, monkeypatch, asked: Job, python: str) -> subprocess.Popen:
    """A pod of the first JobSet, as far as its shell goes, with a Python of our own."""
    for name, text in (("python", python), ("getent", "true")):
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    run = container(documents(asked)[0])
    return subprocess.Popen([*run["command"], *run["args"]], cwd=tmp_path, start_new_session=True)


def test_a_pod_does_its_commands_and_ends_as_they_do(tmp_path, monkeypatch):
    gpu = job(**JOBS["gpu"])
    gpu = gpu._replace(
        folder=tmp_path / "jobs" / "mlm-2",
        submit_folder=tmp_path,
        code_folder=tmp_path / "code",
        options=gpu.options | {"mount": str(tmp_path)},
    )
    gpu.folder.mkdir(parents=True)
    pod = start(tmp_path, monkeypatch, gpu, 'echo "here I am $8"; printf "%s\\n" "$*" >>said; [ "$8" != 2 ]')
    assert pod.wait(20) == 1  # command 2, the second of three, fails
    lines = (tmp_path / "said").read_text().splitlines()
    name = "mlm-2-0-hosts-0-0.mlm-2-0"
    assert lines == [
        f"-m mlm train --config=/mnt/lab/code/a.py --coordinator={name}:{9876 + number} --processes=4 "
        f"--process=3 {number} a 'b"
        for number in (0, 2, 4)
    ]
    assert cluster_job.log_path(gpu.folder / kubernetes.FILE, 2).read_text() == "here I am 2\n"


def test_a_pod_that_is_told_to_end_tells_its_command_and_leaves_the_rest(tmp_path, monkeypatch):
    pod = start(
        tmp_path,
        monkeypatch,
        job(accelerator="H200"),
        # timeout(1) itself passes no signal on that arrives before its fork has returned
        "trap 'echo saved >>said; exit 0' TERM\nsleep 0.2; echo begun >>said; while true; do sleep 0.05; done",
    )
    ends = time.monotonic() + 20
    while not (tmp_path / "said").exists() and time.monotonic() < ends:
        time.sleep(0.02)
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(20) == 143 and (tmp_path / "said").read_text() == "begun\nsaved\n"


def test_what_is_queued_is_seen_resumed_and_cancelled(tmp_path, monkeypatch):
    cloud = clouds.install(tmp_path, monkeypatch)
    first, last = job(tmp_path, accelerator="H200", count=3), job(tmp_path, count=1)
    last = last._replace(
        name="mlm-2-table", folder=first.folder.with_name("mlm-2-table"), after=(first.folder / kubernetes.FILE,)
    )
    paths = []
    for asked in (first, last):
        asked.folder.mkdir(parents=True)
        paths.append(asked.folder / kubernetes.FILE)
        paths[-1].write_text(kubernetes.render_script(asked))
        assert kubernetes.query_states(paths[-1:]) == {paths[-1]: {}}
        kubernetes.submit_job(asked, paths[-1])
    assert kubernetes.query_states(paths) == {paths[0]: dict.fromkeys(range(3), "queued"), paths[1]: {0: "queued"}}
    jobset(cloud, "mlm-2-0", replicatedJobsStatus=[{"name": "hosts", "ready": 1}])
    jobset(cloud, "mlm-2-1", terminalState="Failed")
    assert kubernetes.query_states(paths) == {paths[0]: {0: "running", 2: "running"}, paths[1]: {0: "queued"}}
    time.sleep(0.5)
    assert jobset(cloud, "mlm-2-table-0")["spec"]["suspend"]
    jobset(cloud, "mlm-2-0", terminalState="Completed")
    ends = time.monotonic() + 20
    while jobset(cloud, "mlm-2-table-0")["spec"]["suspend"] and time.monotonic() < ends:
        time.sleep(0.05)
    assert not jobset(cloud, "mlm-2-table-0")["spec"]["suspend"] and kubernetes.query_states(paths[:1]) == {
        paths[0]: {}
    }
    kubernetes.cancel_jobs(paths)
    assert kubernetes.query_states(paths) == {path: {} for path in paths}
    assert (cloud / "jobsets.json").read_text() == "{}"


def test_a_sweep_is_submitted_once_and_what_is_lost_again(tmp_path, monkeypatch, request):
    cloud = clouds.install(tmp_path, monkeypatch)
    submit, root = request.getfixturevalue("go"), request.getfixturevalue("sweep").root
    asked = {"cluster": "kubernetes", "accelerator": "H200", "option": ("image=mlm", "claim=lab", f"mount={tmp_path}")}
    submit(max_running=4, **asked)
    assert len(json.loads((cloud / "jobsets.json").read_text())) == 5  # of four points, and the table
    calls = (cloud / "calls").read_text().count("apply")
    submit(max_running=4, **asked)
    assert (cloud / "calls").read_text().count("apply") == calls
    name = Path(jobs.read_jobs(root)[0].file).parent.name
    jobset(cloud, f"{name}-2", terminalState="Failed")
    submit(max_running=4, **asked)
    train = jobs.read_jobs(root)[2]
    assert [point.rpartition("-")[0] for names in train.points for point in names] == ["width16-seed0"]
    kubernetes.cancel_jobs([Path(sent.file) for sent in jobs.read_jobs(root)])  # which ends those who wait to resume


def jobset(cloud, name, **status) -> dict:
    """One that the server has; what it is given becomes its status."""
    kept = json.loads((cloud / "jobsets.json").read_text())
    if status:
        kept[name]["status"] = status
        (cloud / "jobsets.json").write_text(json.dumps(kept))
    return kept[name]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accelerator": "H20"}, "did you mean 'H200'?"),
        ({"accelerator": "v5p-64", "num_hosts": 12}, "--hosts = 12: expected 8, the hosts of a v5p-64"),
        ({"output_folder": "runs/a"}, "--config.workdir = 'runs/a': expected gs://..., or --option=claim=NAME"),
        ({"asked": ("claim=lab", "mount=/mnt/other")}, "expected a folder in /mnt/other"),
        ({"asked": ("cpu=0",)}, "--option=cpu = '0': expected a quantity"),
        ({"asked": ("env=A",)}, "--option=env = 'A': expected NAME=VALUE"),
        ({"max_running": 1, "count": 2000}, "--max_running = 1: expected more"),
    ],
)
def test_what_cannot_run_is_said_in_a_line(changes, said):
    assert said in get_refusal(lambda: kubernetes.check_job(job(**changes)))


def test_the_image_holds_the_code_where_the_pods_look_for_it():
    lines = (code_snapshot.ROOT / "launch" / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert copied == {*code_snapshot.PACKAGES, *code_snapshot.SETUP_FILES}
    assert f"WORKDIR {kubernetes.OPTIONS['code'].default}" in lines
