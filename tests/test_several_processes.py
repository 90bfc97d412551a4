"""Two real processes of one run that differ, or of which one dies: both end, each with one line that says why."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import environment, make_run_config

from mlm.base import fields
from mlm.launch import local_processes

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]  # in process: tests/test_processes.py

ROOT = Path(__file__).parents[1]
PROGRESS = re.compile(r"(waiting for|learning a|packing|packed|held out:|train:|validation:) ?")
SECONDS = 30  # after which the other has ended


class Pair:
    """The two processes of a run, of which the second is told something else."""

    def __init__(self, place: Path, *other: str):
        cfg = make_run_config(place / "cache", place / "run", train__steps=1_000_000, train__trackers="")
        words = [f"--config.{name}={value}" for name, value in fields.find_changes(cfg).items()]
        words += [f"--coordinator=localhost:{local_processes.find_free_port()}", "--processes=2"]
        self.place = place
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "mlm", "train", *words, f"--process={number}", *more],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(TMPDIR=str(place)),
            )
            for number, more in enumerate(((), other))
        ]

    def trains(self):
        """Waits until steps are made."""
        while (
            not (self.place / "run" / "metrics.jsonl").exists()
            or not (self.place / "run" / "metrics.jsonl").stat().st_size
        ):
            assert all(process.poll() is None for process in self.processes), self.ends()
            time.sleep(0.1)

    def ends(self) -> list[tuple[int, list[str]]]:
        """Exit code and lines of stderr of each, but for what is told of progress."""
        told = [(process.communicate(timeout=120)[1], process.returncode) for process in self.processes]
        return [(code, [line for line in text.splitlines() if not PROGRESS.match(line)]) for text, code in told]


def test_another_learning_rate(tmp_path):
    said = (
        "error: the processes of this run differ: config.optim.learning_rate is 0.001 on process 0 and 0.1 on process 1"
    )
    assert Pair(tmp_path, "--config.optim.learning_rate=0.1").ends() == [(2, [said])] * 2


@pytest.mark.parametrize("number", [0, 1])
def test_one_is_killed_as_they_train(tmp_path, number):
    pair = Pair(tmp_path)
    pair.trains()
    pair.processes[number].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    ends = pair.ends()
    assert time.monotonic() - killed < SECONDS
    code, lines = ends[1 - number]
    assert ends[number] == (-signal.SIGKILL, []) and code == 1
    assert re.fullmatch(
        r"error: another process of this run ended(, or this one failed \(.*\))?; restart all processes to continue"
        r" \(log: \S+\)",
        "\n".join(lines),
    )


def test_one_that_waits_in_vain(tmp_path):
    port = local_processes.find_free_port()
    alone = [
        sys.executable,
        "-m",
        "mlm",
        "train",
        f"--coordinator=localhost:{port}",
        "--processes=2",
        "--join_timeout=1",
    ]
    done = subprocess.run(alone, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(
        rf"error: --coordinator = 'localhost:{port}': expected all 2 processes to join within 1 s \(--join_timeout\) "
        r"\(log: \S+\)\n",
        done.stderr,
    )
