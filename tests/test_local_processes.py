"""Processes of one run on this host: who dies, hangs or is refused, and what becomes of the others.

All but the last test watch a stand-in for mlm.cli.train, which makes steps without JAX.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from mlm.launch import local_processes

ROOT = Path(__file__).parents[1]
STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path
from mlm.launch import child_process
from mlm.training.run import heartbeat

child_process.attach_to_parent()
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1) or (folder / f"told-{me}").touch())
folder, plan, me = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[-1][-1]
(folder / "checkpoints").mkdir(parents=True, exist_ok=True)
began = len(list(folder.glob(f"began-{me}-*")))
(folder / f"began-{me}-{began}").write_text(f"{os.getpid()} {sorted(os.sched_getaffinity(0))}")
print(f"process {me} here", flush=True)
heartbeat.send_heartbeat(heartbeat.PAUSE, 0)
if plan.get(me) == "prepares":
    time.sleep(600)
for step in range(max([0, *(int(path.name) for path in (folder / "checkpoints").iterdir())]) + 1, 13):
    heartbeat.send_heartbeat(heartbeat.STEP, step)
    (folder / f"at-{began}-{step}-{me}").touch()
    while not ((folder / f"at-{began}-{step}-{1 - int(me)}").exists() or told):
        time.sleep(0.01)
    at, does, *more = (plan.get(me, []) + [[0, ""]] * 9)[began]
    if at == step:
        if does == "over":
            heartbeat.send_heartbeat(heartbeat.FATAL, 0)
        if does == "wait":
            while not told:
                time.sleep(0.03)
        elif does in ("over", "exit"):
            heartbeat.send_end(heartbeat.ERROR, more[0], f"error: {more[1]}")
            sys.exit(more[0])
        else:
            os.kill(os.getpid(), getattr(signal, does))
    if step % 4 == 0 or told:
        (folder / "checkpoints" / str(step)).mkdir(exist_ok=True)
    if told:
        sys.exit(143)
"""


@pytest.fixture
def watched(tmp_path, monkeypatch, capfd):
    """Watches two stand-ins that do what a plan says: by process, for each start a step and what happens there."""
    monkeypatch.setattr(local_processes, "EXIT_SECONDS", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "stand_in.py").write_text(STAND_IN)

    def watch(restarts=3, **plan):
        words = [str(tmp_path / "stand_in.py"), str(tmp_path / "run"), json.dumps({k[1:]: v for k, v in plan.items()})]
        code = local_processes.run_processes(words, str(tmp_path / "run"), 2, restarts, 4)
        return code, capfd.readouterr().err.splitlines(), starts(tmp_path)

    return watch


def starts(folder):
    return [len(list((folder / "run").glob(f"began-{number}-*"))) for number in range(2)]


def test_one_is_killed_and_all_start_again(watched, tmp_path):
    code, said, begun = watched(p0=[[6, "exit", 1, "process 1 of this run ended"]], p1=[[6, "SIGKILL"]])
    assert (code, begun) == (0, [2, 2])
    found = re.fullmatch(
        r"process 1 ended at step 6: killed by SIGKILL \(log: (\S+)\): restarting all processes from step 4 "
        r"\(restart 1 of at most 3\)",
        "\n".join(said),
    )
    assert found and Path(found[1]).read_text() == "process 1 here\n"


def test_one_hangs_and_all_start_again(watched):
    code, said, begun = watched(p0=[[10, "SIGSTOP"]])
    assert (code, begun) == (0, [2, 2])
    assert re.fullmatch(
        r"process [01] hangs at step 10: no heartbeat for 4 s or more \(--hang_after\) \(.*\): "
        r"restarting all processes from step 8 \(restart 1 of at most 3\)",
        "\n".join(said),
    )


def test_restarts_end_where_they_come_no_further_and_count_afresh_where_they_do(watched):
    missed = [9, "exit", 1, "another process of this run ended, or this one failed (it is gone)"]
    faults = [[2, "SIGKILL"], [6, "SIGKILL"], [10, "SIGKILL"], [9, "exit", 1, "a fault"]]
    code, said, begun = watched(1, p0=[*[[0, ""]] * 3, missed], p1=faults)
    assert (code, begun) == (1, [4, 4])
    assert [line[-24:] for line in said[:3]] == ["(restart 1 of at most 1)"] * 3
    assert all("process 1 ended" in line for line in said)  # which caused it each time
    assert re.fullmatch(
        r"error: process 1 ended at step 9: a fault .*; no progress after --restarts = 1 restarts; "
        r"the same command continues",
        said[3],
    )
    assert len(said) == 4


@pytest.mark.exhaustive(but=("exit-2",))
@pytest.mark.parametrize(("does", "code"), [("exit", 2), ("exit", 143), ("over", 1)])
def test_what_would_come_again_ends_all(watched, does, code):
    ended, said, begun = watched(p1=[[6, does, code, "no such field"]])
    assert (ended, said, begun) == (code, ["error: no such field"], [1, 1])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_told_to_stop_it_tells_all_and_ends_as_they_end(watched, tmp_path, number, code):
    def tell():
        while len(list((tmp_path / "run").glob("at-0-5-*"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    threading.Thread(target=tell).start()
    ended, said, begun = watched(p0=[[5, "wait"]], p1=[[5, "wait"]])
    assert (ended, said, begun) == (code, [], [1, 1])
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"4", "5"}


def test_killed_it_leaves_none_behind(tmp_path):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    plan = json.dumps({"0": [[5, "wait"]], "1": [[5, "wait"]]})
    call = (
        "from mlm.launch import local_processes as local; "
        f"local.run_processes(['stand_in.py', 'run', {plan!r}], 'run', 2, 3, 60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", call],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    while starts(tmp_path) != [1, 1] or not (tmp_path / "run" / "checkpoints" / "4").exists():
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    pids = [int((tmp_path / "run" / f"began-{number}-0").read_text().split()[0]) for number in range(2)]
    until = time.monotonic() + 60
    while any(lives(pid) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.02)


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
