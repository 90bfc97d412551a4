"""Trackers of a run: what Weights & Biases (offline) and MLflow (a local store) hold is what metrics.jsonl holds."""

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import make_letters_config, train_config

from mlm.base import errors, fields, files
from mlm.training.run import hooks, log
from mlm.training.run.directory import RunDirectory
from mlm.training.step import program

STEPS = 12
BLOCK = 32768  # bytes of a W&B file that no chunk crosses
HEADER = 7  # bytes before the first chunk, and of a chunk's header
RUN_VARIABLES = {"WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true"}


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    for name, value in RUN_VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("letters")


def make_config(folder, name, **changes):
    own = {"train__steps": STEPS, "train__eval_every": 6, "train__trackers": "wandb,mlflow"}
    return make_letters_config(folder, name, **own | changes)


def read_wandb_file(path):
    """The records of an offline file of W&B, a log of LevelDB: chunks that say whether a record goes on."""
    from wandb.proto import wandb_internal_pb2

    content, position, parts = path.read_bytes(), HEADER, b""
    while position + HEADER <= len(content):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += HEADER
        if position + length > len(content):
            return  # W&B's process is still writing it
        parts += content[position : position + length]
        position += length
        if kind in (1, 4):  # a full record, or the last chunk of one
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def read_wandb_records(workdir, num_tries=100):
    """All records of a run, once its newest file has the last: W&B's own process writes it a moment after the run ends."""
    for _ in range(num_tries):
        paths = sorted(Path(workdir, "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
        records = [list(read_wandb_file(path)) for path in paths]
        if paths and any(record.HasField("exit") for record in records[-1]):
            break
        time.sleep(0.1)
    return [record for of_file in records for record in of_file]


def read_wandb_exits(workdir):
    """The exit code of each process that ended the run, in order."""
    return [record.exit.exit_code for record in read_wandb_records(workdir) if record.HasField("exit")]


def read_mlflow_status(workdir):
    import mlflow

    client = mlflow.MlflowClient(Path(workdir, "mlruns").absolute().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("mlm").experiment_id])
    return run.info.status


def read_wandb(workdir, num_tries=100):
    """The values that W&B holds, a list for each step and metric; the ids of the run; its config."""
    values, ids, settings = {}, set(), {}
    for record in read_wandb_records(workdir, num_tries):
        if record.HasField("run"):
            ids.add(record.run.run_id)
            settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name, value in items.items():
                if not name.startswith("_"):
                    values.setdefault((items["_step"], name), []).append(value)
    return values, ids, settings


def read_mlflow(workdir, uri=None):
    """The same of the only run in an MLflow store."""
    import mlflow

    client = mlflow.MlflowClient(uri or Path(workdir, "mlruns").absolute().as_uri())
    experiment = client.get_experiment_by_name("mlm")
    runs = client.search_runs([experiment.experiment_id])
    values = {}
    for run in runs:
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                values.setdefault((metric.step, name), []).append(metric.value)
    return values, {run.info.run_id for run in runs}, runs[0].data.params


def read_metrics(workdir):
    """The same of metrics.jsonl."""
    values = {}
    for record in files.read_records(Path(workdir, "metrics.jsonl")):
        for name, value in record.items():
            if name != "step" and value is not None:
                values.setdefault((record["step"], name), []).append(value)
    return values


@pytest.mark.exhaustive
def test_the_trackers_hold_what_metrics_jsonl_holds_and_the_config_though_the_run_was_interrupted_twice(
    folder, monkeypatch
):
    """After the checkpoint of step 5 at step 9, then at step 7, before it is as far again."""
    trackers = "tensorboard, wandb,mlflow,wandb"
    cfg, on_metrics = make_config(folder, "continued", train__trackers=trackers), log.Log.on_metrics
    for last in (9, 7):

        def interrupt(self, step, metrics, pause, last=last):
            on_metrics(self, step, metrics, pause)
            if step == last:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(log.Log, "on_metrics", interrupt)
            train_config(cfg)
        assert max(step for step, _ in read_metrics(cfg.workdir)) == last
    train_config(cfg)
    expected = read_metrics(cfg.workdir)
    assert {step for step, name in expected if name == "loss"} == set(range(1, STEPS + 1))
    assert {step for step, name in expected if name == "eval_loss"} == {6, STEPS}
    timing = ("tokens_per_second", "timed_seconds", "timed_tokens")  # those of the first time, or none
    for values, ids, _ in (read_wandb(cfg.workdir), read_mlflow(cfg.workdir)):
        assert len(ids) == 1
        assert {len(of_step) for of_step in values.values()} == {1}
        assert {key: value for key, value in values.items() if key[1] not in timing} == {
            key: value for key, value in expected.items() if key[1] not in timing
        }
    assert any(Path(cfg.workdir, "tensorboard").iterdir())
    assert read_wandb_exits(cfg.workdir)[-1] == 0 and read_mlflow_status(cfg.workdir) == "FINISHED"
    kernels = RunDirectory(cfg.workdir).read_identity()["config"]["model.kernels"]
    flat = fields.flatten(fields.override(cfg, {"model.kernels": kernels}))
    assert read_wandb(cfg.workdir)[2].items() >= json.loads(json.dumps(flat)).items()
    assert read_mlflow(cfg.workdir)[2] == {name: str(value) for name, value in flat.items()}


@pytest.mark.exhaustive
def test_a_run_that_diverged_or_was_stopped_says_so_until_it_is_finished(folder, monkeypatch):
    cfg = make_config(folder, "ended badly")

    def diverge(*_):
        raise hooks.DivergenceError("step 1: loss nan")

    with monkeypatch.context() as patch, pytest.raises(hooks.DivergenceError):
        patch.setattr(hooks.DivergenceCheck, "on_metrics", diverge)
        train_config(cfg)
    assert read_wandb_exits(cfg.workdir) == [1] and read_mlflow_status(cfg.workdir) == "FAILED"
    with monkeypatch.context() as patch, pytest.raises(errors.RunStopped):
        patch.setattr(hooks.Preemption, "is_requested", lambda self, checkpoints, step: step == 5)
        train_config(cfg)
    assert read_wandb_exits(cfg.workdir) == [1, 143] and read_mlflow_status(cfg.workdir) == "KILLED"
    train_config(cfg)
    assert read_wandb_exits(cfg.workdir) == [1, 143, 0] and read_mlflow_status(cfg.workdir) == "FINISHED"


def test_an_mlflow_store_that_fails_does_not_end_the_run(folder, monkeypatch, caplog):
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    log_batch = MlflowClient.log_batch

    def fail(self, run_id, metrics=(), **others):
        if any(metric.step == 3 for metric in metrics):
            raise MlflowException("the server\nis gone")
        log_batch(self, run_id, metrics=metrics, **others)

    monkeypatch.setattr(MlflowClient, "log_batch", fail)
    cfg = make_config(folder, "gone", train__trackers="mlflow")
    train_config(cfg)
    assert max(step for step, _ in read_mlflow(cfg.workdir)[0]) == 2
    assert max(step for step, _ in read_metrics(cfg.workdir)) == STEPS


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_one_line_before_anything_is_made(folder, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    cfg = make_config(folder, "missing", train__trackers=name)
    with pytest.raises(errors.ConfigError) as raised:
        train_config(cfg)
    assert str(raised.value) == (
        f'config.train.trackers = {name!r}: expected the package {name}: pip install "mlm[{name}]"'
    )
    assert not Path(cfg.workdir).exists()


@pytest.mark.exhaustive
def test_the_tensorboard_tracker_does_not_import_torch(tmp_path):
    code = f"""import pathlib, sys
from mlm.training.run import trackers
tracker = trackers.TensorboardTracker(None, 0, pathlib.Path({str(tmp_path)!r}), None)
tracker.log(1, {{"loss": 0.5}})
tracker.close(None)
assert "torch" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert any(tmp_path.iterdir())


def test_trackers_are_no_part_of_a_run_s_identity(folder):
    one, other = (make_config(folder, "same", train__trackers=names) for names in ("", "wandb"))
    assert fields.fingerprint(one) == fields.fingerprint(other)
    assert program.make_static_config(one) == program.make_static_config(other)
    assert fields.DEFAULT["train.trackers"] == "tensorboard"
