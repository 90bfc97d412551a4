"""The script that SLURM starts, started here: what it tells the command in it, and when it asks to be queued again."""

import os
import signal
import subprocess
import sys
import time

import own_slurm
import pytest

from mlm.launch.cluster import CLUSTERS, slurm
from mlm.launch.cluster import job as jobs
from mlm.training.run import hooks


@pytest.fixture
def script(tmp_path, tools):
    """Starts the second of a job's commands as SLURM does: it says where it is, and waits to be told to end."""
    code = """import os, signal, sys, time

def told(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("told", flush=True)
    time.sleep(0.3)
    sys.exit(143)

signal.signal(signal.SIGTERM, told)
print(sys.argv[1], os.getcwd(), os.environ["PYTHONPATH"], flush=True)
time.sleep(float(sys.argv[2]))
"""
    place = tmp_path / "some place"
    place.mkdir()

    def begin(seconds=60.0):
        words = (sys.executable, "-c", code)
        made = jobs.Job(
            "a-job",
            ((*words, "first", "0"), (*words, 'it\'s "$HOME"', str(seconds))),
            tmp_path / "job",
            tmp_path / "code",
            place,
            "",
            options=jobs.parse_options(slurm.OPTIONS, []),
        )
        (tmp_path / "job.sh").write_text(CLUSTERS["slurm"].render_script(made))
        env = os.environ | {
            "SLURM_ARRAY_TASK_ID": "1",
            "SLURM_ARRAY_JOB_ID": "4711",
            "SLURM_JOB_NAME": "a-job",
            "PYTHONPATH": "own",
        }
        started = subprocess.Popen(["bash", str(tmp_path / "job.sh")], env=env, stdout=subprocess.PIPE, text=True)
        started.stdout.readline()
        assert started.stdout.readline() == f'it\'s "$HOME" {place} {tmp_path / "code"}:own\n'
        return started

    return begin


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_command_that_is_warned_saves_and_is_queued_again_and_one_that_is_cancelled_is_not(script, tools, number):
    (tools / "scontrol.code").write_text("1")  # it does not end the script, as the true one does
    started = script()
    time.sleep(0.2)
    for _ in range(2):
        started.send_signal(number)
        time.sleep(0.05)
    out, _ = started.communicate(timeout=30)
    assert (started.returncode, out) == (143, "told\n")
    assert own_slurm.list_calls(tools, "scontrol") == ["scontrol requeue 4711_1"] * (number == signal.SIGUSR1)


def test_a_command_that_ends_well_as_it_is_warned_is_not_queued_again(script, tools):
    started = script(0.0)
    assert started.wait(timeout=30) == 0 and not own_slurm.list_calls(tools, "")


def test_a_signal_that_comes_twice_at_once_is_one_and_later_is_the_last(monkeypatch):
    last = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: last.append(number))
    try:
        with hooks.Preemption() as asked:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert asked.signal == signal.SIGTERM and not last
            now = time.monotonic()
            monkeypatch.setattr(hooks.time, "monotonic", lambda: now + 2)
            signal.raise_signal(signal.SIGTERM)
            assert last == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
