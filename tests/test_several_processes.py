"""Two real processes of one run that differ, or of which one dies: both end, each with one line that says why."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlm.launch import local_processes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SMALL = {
    "data.path": "PLACE/text/*.txt",
    "data.validation_fraction": 0.3,
    "data.cache_dir": "PLACE/cache",
    "tokenizer.kind": "words",
    "tokenizer.vocab_size": 13,
    "pack.seq_len": 16,
    "model.num_layers": 1,
    "model.width": 8,
    "model.mlp_dim": 8,
    "model.family": "feedforward",
    "model.cell": "bag",
    "train.trackers": "",
    "train.batch_size": 8,
    "train.steps": 1_000_000,
    "train.log_every": 1,
    "eval.batch_size": 8,
    "workdir": "PLACE/run",
}
FASTER = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
PROGRESS = re.compile(r"(waiting for|learning a|packing|packed|held out:|train:|validation:) ?")
SECONDS = 30  # after which the other has ended


class Pair:
    """The two processes of a run, of which the second may be told otherwise."""

    def __init__(self, place: Path, other=(), environment=None, root=ROOT):
        for name in ("text", "other"):
            (place / name).mkdir(exist_ok=True)
            for number in range(20):
                (place / name / f"{number}.txt").write_text(f"{name[:1]} {'b c ' * number}d e f g a.\n" * 9)
        port = local_processes.find_free_port()
        self.place = place
        fields = [f"--config.{name}={str(value).replace('PLACE', str(place))}" for name, value in SMALL.items()]
        both = [sys.executable, "-m", "mlm", "train", *fields, f"--coordinator=localhost:{port}", "--processes=2"]
        self.processes = []
        for number, more, variables, folder in ((0, (), {}, ROOT), (1, other, environment or {}, root)):
            words = [*both, f"--process={number}", *(word.replace("PLACE", str(place)) for word in more)]
            self.processes.append(
                subprocess.Popen(
                    words,
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=os.environ | FASTER | {"TMPDIR": str(place)} | variables,
                )
            )

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


@pytest.mark.exhaustive  # in process: tests/test_processes.py
def test_another_learning_rate(tmp_path):
    said = (
        "error: the processes of this run differ: config.optim.learning_rate is 0.004 on process 0 and 0.1 on process 1"
    )
    assert Pair(tmp_path, ["--config.optim.learning_rate=0.1"]).ends() == [(2, [said])] * 2


@pytest.mark.exhaustive
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
