"""Sweeps run by workers end the same whatever happens to the runner, to its workers, and beside them."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import environment

from mlm.base import files
from mlm.training.run.directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

ROOT = Path(__file__).parents[1]
STEPS = 120
EXPERIMENT = '''
from mlm.experiment.grid import cross_points, make_axis, name_points
from mlm.report.table import Column

SCALES = {"quick": {}}


def sweep(scale):
    """Two programs, each of two points."""
    return name_points(cross_points(make_axis("model.width", 8, 16, name="width{}"), make_axis("seed", 0, 1, name="seed{}")))


def table(results):
    return ([{"width": one["config"]["model.width"], "seed": one["config"]["seed"], "loss": one["evaluation"]["loss"],
              "predictions": one["predictions"]} for one in results],
            [Column(name, name, "g") for name in ("width", "seed", "loss", "predictions")])
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runner")
    rng = random.Random(0)
    (folder / "text.txt").write_text("\n\n".join(" ".join(rng.choices("abcdefgh", k=30)) + "." for _ in range(300)))
    (folder / "experiment.py").write_text(EXPERIMENT)
    return folder


def start(folder, root, *more):
    fields = {
        "data.path": folder / "text.txt",
        "data.document_boundary": "blank_line",
        "data.cache_dir": folder / "cache",
        "tokenizer.kind": "words",
        "tokenizer.vocab_size": 12,
        "pack.seq_len": 16,
        "model.num_layers": 1,
        "model.mlp_dim": 8,
        "model.num_heads": 1,
        "train.steps": STEPS,
        "train.batch_size": 8,
        "train.checkpoint_every": 30,
        "train.log_every": 5,
        "eval.batch_size": 8,
        "eval.max_examples": 40,
        "workdir": folder / root,
    }
    command = [
        sys.executable,
        "-m",
        "mlm",
        "sweep",
        "run",
        str(folder / "experiment.py"),
        *(f"--config.{name}={value}" for name, value in fields.items()),
        *more,
    ]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def finish(process, code=0):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == code, out
    return out


def steps(root) -> int:
    """The steps of all points of which a record is written."""
    return sum(
        max((record["step"] for record in files.read_records(path)), default=0) for path in root.glob("*/metrics.jsonl")
    )


def wait_for(root, process, count):
    while process.poll() is None and steps(root) < count:
        time.sleep(0.005)


def workers(process) -> list[int]:
    """The process ids of the runner's workers."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


def starts(root) -> list[list[int]]:
    return [
        [start["step"] for start in RunDirectory(path.parent).read_provenance()]
        for path in root.glob("*/provenance.json")
    ]


@pytest.fixture(scope="module")
def undisturbed(folder):
    out = finish(start(folder, "undisturbed"))
    assert out.count("points share a program, trained one after the other") == 2 and "4 of 4 points are done" in out
    assert starts(folder / "undisturbed") == [[0]] * 4
    return (folder / "undisturbed" / "table.csv").read_bytes()


def test_asked_to_stop_every_worker_saves(folder, undisturbed):
    root = folder / "asked"
    process = start(folder, "asked", "--workers=2")
    wait_for(root, process, 60)
    process.send_signal(signal.SIGINT)
    assert "the same command continues" in finish(process, 128 + signal.SIGINT)
    logs = "".join(path.read_text() for path in (root / "logs").iterdir())
    saved = logs.count("stopped at step")
    assert 1 <= saved <= 2 and "Traceback" not in logs
    assert sum(1 for path in root.glob("*/checkpoints/*") if path.name.isdigit()) >= saved


def test_ctrl_c_on_a_terminal_ends_all_in_a_line_while_workers_start(folder):
    """A terminal tells every process of its group."""
    process = start(folder, "starting", "--workers=2")
    while process.poll() is None and len(started := workers(process)) < 2:
        time.sleep(0.005)
    for pid in started:  # they hear nothing, from their first moment on
        blocked = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[1]
        assert int(blocked, 16) >> signal.SIGINT - 1 & 1
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process, 128 + signal.SIGINT) == "stopped; 0 of 4 points are done; the same command continues\n"
    assert not any(
        Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in started
    )


def test_two_runners_train_no_point_twice(folder, undisturbed):
    root = folder / "two"
    pair = [start(folder, "two", "--workers=2"), start(folder, "two", "--vmap_runs=2")]
    for process in pair:
        assert "4 of 4 points are done" in finish(process)
    assert starts(root) == [[0]] * 4
    ours, theirs = (
        [[float(cell) for cell in line.split(",")] for line in text.decode().splitlines()[1:]]
        for text in ((root / "table.csv").read_bytes(), undisturbed)
    )
    assert ours == [pytest.approx(row, rel=1e-5) for row in theirs]
