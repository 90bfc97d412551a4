"""A sweep goes on past a point that fails, skips what is done, and makes its table from what there is."""

import csv
import os
import signal
from pathlib import Path

import pytest
from small import environment

from mlm.base import errors
from mlm.cli import entry
from mlm.launch.sweep import runner

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
EXPERIMENT = '''
from experiments.architectures import table  # noqa: F401

SCALES = {"quick": {}}


def sweep(scale):
    """One whose updates overflow, and a point that trains."""
    return {"bad": {"seed": 1, "optim.learning_rate": 1e30, "optim.clip_norm": 0.0}, "good": {"seed": 0}}
'''


@pytest.fixture
def sweep(tmp_path, monkeypatch, capsys):
    """The folder of the runs, and the command in this process, whose workers are processes of their own."""
    folder = tmp_path
    (folder / "texts.txt").write_text("\n\n".join(f"the {n} cats sat on the {n} mats ." for n in range(400)))
    (folder / "experiment.py").write_text(EXPERIMENT)
    fields = {
        "data.path": folder / "texts.txt",
        "data.document_boundary": "blank_line",
        "data.cache_dir": folder / "cache",
        "tokenizer.kind": "words",
        "tokenizer.vocab_size": 100,
        "pack.seq_len": 16,
        "model.num_layers": 1,
        "model.width": 8,
        "model.mlp_dim": 8,
        "model.family": "feedforward",
        "model.cell": "bag",
        "train.steps": 6,
        "train.batch_size": 8,
        "eval.batch_size": 8,
        "train.trackers": "",
        "workdir": folder / "runs",
    }

    def call(verb, *more):
        monkeypatch.chdir(ROOT)
        monkeypatch.setenv("XLA_FLAGS", environment()["XLA_FLAGS"])  # of workers
        words = [verb, str(folder / "experiment.py"), *(f"--config.{name}={value}" for name, value in fields.items())]
        code, refused = 0, ""
        try:
            entry.run_command(["sweep", *words, *more])
        except SystemExit as end:
            code = end.code
        except errors.ConfigError as error:
            code, refused = 2, str(error)
        out, err = capsys.readouterr()
        return code, out, err + refused

    return folder / "runs", call


@pytest.mark.exhaustive
def test_a_plan_says_what_points_cost_and_trains_nothing(sweep):
    runs, call = sweep
    code, out, _ = call("plan", "--accelerator=v4-8", "--count=2")
    assert code == 0 and "On 2 x v4-8 (devices: 8, each 275 TFLOP/s" in out and "| 2 points" in out
    assert not runs.exists()
    code, _, err = call("plan", "--accelerator=v4-9")
    assert code == 2 and "did you mean 'v4-8'?" in err.splitlines()[-1]


def kill_first_worker(self):
    """Assigns points, then kills the worker of the first."""
    assign_points(self)
    for member in self.workers:
        if member.assigned and self.num_started == 1:
            os.kill(member.process.pid, signal.SIGKILL)


assign_points = runner.SweepRunner.assign_points


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_failed_point_stops_no_other_and_is_tried_again(sweep, monkeypatch, is_killed):
    """Its updates overflow; is_killed: before that its worker dies, which takes no other point with it."""
    runs, call = sweep
    code, out, _ = call("list")
    assert code == 0 and out.count("not started") == 2
    if is_killed:
        with monkeypatch.context() as patch:
            patch.setattr(runner.SweepRunner, "assign_points", kill_first_worker)
            code, out, err = call("run")
        assert code == 1 and "1 of 2 points are done" in out
        assert "the worker was ended by SIGKILL" in err.splitlines()[-1] and "bad-" in err.splitlines()[-1]
        (good,) = runs.glob("good-*")
        before = (good / "result.json").stat().st_mtime_ns
    code, out, err = call("run")
    assert code == 1 and "bad-" in out
    assert "DivergenceError: step 1" in err.splitlines()[-1] and "bad-" in err.splitlines()[-1]
    assert "failed at step 0 of 6: DivergenceError: step 1" in call("list")[1]
    if is_killed:
        assert "good-" not in out.split("points are done")[0] and (good / "result.json").stat().st_mtime_ns == before
    code, out, _ = call("table")
    assert code == 0 and "1 of 2 points are done" in out
    assert " seeds |" in out and "training FLOPs" not in out and "training FLOPs" in call("table", "--columns=all")[1]
    out = call("table", "--columns=loss,model")[1]
    assert out.index(" loss (nats) |") < out.index(" model ") and " seeds |" not in out
    code, _, err = call("table", "--columns=sedes")
    assert code == 2 and "--columns = 'sedes'" in err and "did you mean 'seeds'?" in err
    with (runs / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["seeds"]) for row in rows] == [("bag", "1"), ("unigram", "")]
    code, out, _ = call("report")
    assert code == 0 and "1 of 2 points are done" in out and (runs / "report.html").stat().st_size > 10_000
    code, out, _ = call("list", "--config.train.steps=7")
    assert out.count("not started") == 2  # another config is another point
