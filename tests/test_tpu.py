"""TPUs: each command gets one and gives it back, whatever happens between; gcloud is one that writes down its calls."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import clouds
import pytest
from small import get_refusal

from mlm.launch.cluster import accelerators, tpu
from mlm.launch.cluster import job as jobs
from mlm.launch.cluster.job import Job, parse_options

ROOT = Path(__file__).parents[1]
WORK = """trap 'echo "$1 saved" >>"$CLOUD/saved"; exit 143' TERM
[ "$1" = 7 ] || cat texts/a || exit 1
echo "$1 $(basename "$HOME")" >>"$CLOUD/at_work"
env >"$CLOUD/environment"
while [ -e "$CLOUD/preempt/lab-1-$1" ]; do sleep 0.1; done
sleep "$2"
if [ "$3" = always ] || { [ "$3" = once ] && mkdir "$CLOUD/failed-$1-$(basename "$HOME")"; }; then exit 1; fi
if [ "$3" = told ]; then for i in 1 2; do mkdir "$CLOUD/told-$i-$(basename "$HOME")" && exit 143; done; fi
echo "$1" >>"$CLOUD/done"
"""


def job(folder=Path("folder"), *, commands=((sys.executable, "-m", "mlm", "train"),), asked=(), **changes) -> Job:
    said = parse_options(tpu.OPTIONS, ["zone=us-east5-a", *asked])
    name = changes.pop("name", "lab-1")
    return Job(
        name,
        tuple(commands),
        folder / name,
        folder / "code",
        folder,
        **{"accelerator": "v4-16", "num_hosts": 2, "output_folder": "gs://lab/runs", "options": said} | changes,
    )


def work(number, seconds=0.2, fails="never") -> tuple[str, ...]:
    return sys.executable, "./work.sh", str(number), str(seconds), fails


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    code = tmp_path / "code" / "mlm" / "launch" / "cluster"
    code.mkdir(parents=True)
    shutil.copy(ROOT / "mlm" / "launch" / "cluster" / "host.sh", code)
    (tmp_path / "code" / "work.sh").write_text(WORK)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a").touch()
    cloud = clouds.install(tmp_path, monkeypatch)
    python = tmp_path / "tools" / "python"  # of the hosts
    python.write_text('#!/usr/bin/env bash\nexec bash "$@"\n')
    python.chmod(0o755)
    return cloud


def submit(folder, commands, asked=("files=texts",), **changes) -> Path:
    made = job(folder, commands=commands, asked=("install=true", *asked), **changes)
    tpu.check_job(made)
    path = made.folder / tpu.FILE
    made.folder.mkdir()
    path.write_text(tpu.render_script(made))
    tpu.submit_job(made, path)
    return path


def until(condition, seconds=30):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.05)


def has_ended(path) -> bool:
    return not tpu.query_states([path])[path]


def calls(cloud, *verbs) -> list[str]:
    lines = [line.split()[3:] for line in (cloud / "calls").read_text().splitlines() if line.startswith("compute")]
    return [" ".join(words[:2]) for words in lines if words[0] in verbs]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_each_command_gets_a_tpu_and_gives_it_back(cloud, tmp_path):
    """One is preempted, one fails once, one each time, one is told to end: all do, two at a time."""
    (cloud / "preempt" / "lab-1-1").touch()
    commands = [work(0), work(1), work(2, fails="once"), work(3, fails="always"), work(4, fails="told")]
    asked = ("files=texts", "restarts=1", "ssh=--tunnel-through-iap", "env=LIBTPU_INIT_ARGS=--a=1 --b")
    path = submit(tmp_path, commands, asked, max_running=2)
    first = tpu.query_states([path])[path]
    assert sorted(first) == [0, 1, 2, 3, 4] and set(first.values()) <= {"queued", "running"}
    there = []
    until(lambda: there.append(len(list((cloud / "resources").iterdir()))) or has_ended(path), 60)
    assert max(there) == 2
    done = Counter((cloud / "done").read_text().split())
    assert done["0"] == 2 and done["1"] == 2 and done["2"] == done["4"] == 2 and not done["3"], done  # two hosts each
    assert Counter(calls(cloud, "create")) == {
        "create lab-1-0": 1,
        "create lab-1-1": 2,
        "create lab-1-2": 1,
        "create lab-1-3": 1,
        "create lab-1-4": 1,
    }
    assert not list((cloud / "resources").iterdir())
    environment = (cloud / "environment").read_text()
    assert "MEGASCALE" not in environment and "LIBTPU_INIT_ARGS=--a=1 --b\n" in environment
    told = [line for line in (cloud / "calls").read_text().splitlines() if " ssh " in line or " scp " in line]
    assert told and all("--tunnel-through-iap" in line for line in told)
    states = {number: (path.parent / "tpu" / str(number)).read_text().strip() for number in range(5)}
    assert states == {0: "done", 1: "done", 2: "done", 3: "failed", 4: "done"}
    logs = [jobs.log_path(path, number).read_text() for number in range(5)]
    assert "queued: preempted" in logs[1] and "queued: it ended (1), failure 1" in logs[2] and "failure 2" in logs[3]
    assert "ALREADY_EXISTS" not in "".join(logs)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_cancelled_job_leaves_nothing(cloud, tmp_path):
    path = submit(tmp_path, [work(0, 60), work(1, 60)], max_running=1)
    until(lambda: (cloud / "at_work").exists())
    until(lambda: tpu.query_states([path])[path] == {0: "running", 1: "queued"})
    tpu.cancel_jobs([path])
    assert has_ended(path) and not list((cloud / "resources").iterdir())
    assert (cloud / "saved").read_text() == "0 saved\n" * 2
    time.sleep(0.3)
    assert calls(cloud, "create") == ["create lab-1-0"] and not (cloud / "done").exists()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_who_follows_may_be_killed(cloud, tmp_path):
    """What is there is seen all the same, and the same script goes on with it."""
    path = submit(tmp_path, [work(0, 3)])
    until(lambda: tpu.query_states([path])[path] == {0: "running"})
    os.killpg(int((path.parent / "tpu" / "pid").read_text()), signal.SIGKILL)
    until(lambda: subprocess.run(["flock", "-n", path.parent / "tpu" / "lock", "true"], check=False).returncode == 0)
    assert tpu.query_states([path]) == {path: {0: "running"}}
    assert subprocess.run(["bash", path], capture_output=True, check=False).returncode == 0
    assert calls(cloud, "create") == ["create lab-1-0"] and has_ended(path)
    assert (cloud / "done").read_text().split() == ["0", "0"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_slice_short_of_a_host_is_not_taken_for_started(cloud, tmp_path):
    """Those that were there are started again with the others: two slices of two hosts."""
    (cloud / "missing").touch()
    path = submit(tmp_path, [work(0)], num_hosts=4)
    until(lambda: has_ended(path))
    assert set((cloud / "at_work").read_text().splitlines()) == {f"0 host-{host}" for host in range(4)}
    assert len(calls(cloud, "scp")) == 2 and "--node-count=2 --node-prefix=lab-1-0" in (cloud / "calls").read_text()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_needs_no_accelerator_runs_here_when_the_jobs_before_it_have_ended(cloud, tmp_path):
    first = submit(tmp_path, [work(7, 1)], ())
    code = "import os, sys; open('said', 'w').write(open(sys.argv[1]).read() + os.environ['PYTHONPATH'])"
    second = submit(
        tmp_path,
        [(sys.executable, "-c", code, str(cloud / "done"))],
        name="lab-1-table",
        accelerator="",
        num_hosts=1,
        after=(first,),
    )
    assert tpu.query_states([second]) == {second: {0: "queued"}}
    until(lambda: has_ended(second))
    assert (tmp_path / "said").read_text() == f"7\n7\n{tmp_path / 'code'}"
    assert calls(cloud, "create") == ["create lab-1-0"]


@pytest.mark.parametrize(
    ("kind", "hosts", "said"),
    [
        ("v4-32", 4, "--accelerator-type=v4-32 --runtime-version=tpu-ubuntu2204-base"),
        ("v5e-16", 4, "--accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite"),
        ("v5p-64", 16, "--accelerator-type=v5p-64 --runtime-version=v2-alpha-tpuv5"),
        ("v6e-8", 1, "--accelerator-type=v6e-8 --runtime-version=v2-alpha-tpuv6e"),
    ],
)
def test_the_script_says_what_is_asked_for(kind, hosts, said, tmp_path):
    words = (sys.executable, "-m", "mlm", "folder/code/experiments/a.py", "it's", "a b", "$HOME")
    text = tpu.render_script(
        job(commands=[words], accelerator=kind, num_hosts=hosts, asked=("capacity=spot", "create=--network=lab"))
    )
    assert f"\nCREATE=({said} --spot --network=lab)\n" in text
    assert f"\nSLICES={hosts // accelerators.ACCELERATORS[kind].num_hosts} " in text and f"\nHOSTS={hosts} " in text
    path = tmp_path / "job.sh"
    path.write_text(text[: text.index("set -uo")] + 'bash -c "printf %s\\\\\\\\n ${COMMANDS[0]}"\n')
    printed = subprocess.run(["bash", path], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["python", "-m", "mlm", "./experiments/a.py", *words[4:]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accelerator": "v5p-65"}, "did you mean 'v5p-64'?"),
        ({"num_hosts": 3}, "--hosts = 3: expected 2, the hosts of a v4-16"),
        ({"output_folder": "runs/a"}, "--config.workdir = 'runs/a': expected gs://"),
        ({"asked": ("zonr=x",)}, "did you mean 'zone'?"),
    ],
)
def test_what_cannot_run_is_said_in_a_line(changes, said):
    assert said in get_refusal(lambda: tpu.check_job(job(**changes)))
