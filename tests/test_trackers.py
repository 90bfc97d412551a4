"""Trackers of a run: what Weights & Biases (offline) and MLflow (a local store) hold is what metrics.jsonl holds."""

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from small import environment, make_letters_config, small_config

from mlm.base import errors, fields, files
from mlm.data.text import warnings_
from mlm.training.run import divergence, log, loop, periodic_evaluation, preemption, resolution, trackers, vmapped_runs
from mlm.training.run.directory import RunDirectory
from mlm.training.step import program

ROOT = Path(__file__).parents[1]
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


def assert_tracked(workdir):
    expected = read_metrics(workdir)
    assert {step for step, name in expected if name == "loss"} == set(range(1, STEPS + 1))
    assert {step for step, name in expected if name == "eval_loss"} == {6, STEPS}
    for values, ids, _ in (read_wandb(workdir), read_mlflow(workdir)):
        assert values == expected
        assert len(ids) == 1


def test_the_trackers_hold_what_metrics_jsonl_holds_and_the_config(folder):
    cfg = make_config(folder, "all of it", train__trackers="tensorboard, wandb,mlflow,wandb")
    loop.train(cfg)
    assert_tracked(cfg.workdir)
    assert any(Path(cfg.workdir, "tensorboard").iterdir())
    assert read_wandb_exits(cfg.workdir) == [0] and read_mlflow_status(cfg.workdir) == "FINISHED"
    flat = fields.flatten(RunDirectory(cfg.workdir).pin_kernels(cfg))
    assert read_wandb(cfg.workdir)[2].items() >= json.loads(json.dumps(flat)).items()
    assert read_mlflow(cfg.workdir)[2] == {name: str(value) for name, value in flat.items()}


def test_without_trackers_there_is_only_metrics_jsonl(folder):
    cfg = make_config(folder, "none", train__trackers="")
    loop.train(cfg)
    assert read_metrics(cfg.workdir)
    assert not {"tensorboard", "wandb", "mlruns", "trackers.json"} & {path.name for path in Path(cfg.workdir).iterdir()}


def test_a_run_that_continues_logs_no_step_twice(folder, monkeypatch):
    """It is interrupted twice: after the checkpoint of step 5 at step 9, then at step 7, before it is as far again."""
    cfg, on_metrics = make_config(folder, "continued"), log.Log.on_metrics
    for last in (9, 7):

        def interrupt(self, step, metrics, pause, last=last):
            on_metrics(self, step, metrics, pause)
            if step == last:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(log.Log, "on_metrics", interrupt)
            loop.train(cfg)
        assert max(step for step, _ in read_metrics(cfg.workdir)) == last
    loop.train(cfg)
    expected = read_metrics(cfg.workdir)
    for values, ids, _ in (read_wandb(cfg.workdir), read_mlflow(cfg.workdir)):
        assert len(ids) == 1
        assert {len(of_step) for of_step in values.values()} == {1}
        timing = ("tokens_per_second", "timed_seconds", "timed_tokens")  # those of the first time, or none
        assert {key: value for key, value in values.items() if key[1] not in timing} == {
            key: value for key, value in expected.items() if key[1] not in timing
        }


def test_a_run_that_diverged_or_was_stopped_says_so_until_it_is_finished(folder, monkeypatch):
    cfg = make_config(folder, "ended badly")

    def diverge(*_):
        raise divergence.DivergenceError("step 1: loss nan")

    with monkeypatch.context() as patch, pytest.raises(divergence.DivergenceError):
        patch.setattr(divergence.DivergenceCheck, "on_metrics", diverge)
        loop.train(cfg)
    assert read_wandb_exits(cfg.workdir) == [1] and read_mlflow_status(cfg.workdir) == "FAILED"
    with monkeypatch.context() as patch, pytest.raises(preemption.RunStopped):
        patch.setattr(preemption.Preemption, "is_requested", lambda self, checkpoints, step: step == 5)
        loop.train(cfg)
    assert read_wandb_exits(cfg.workdir) == [1, 143] and read_mlflow_status(cfg.workdir) == "KILLED"
    loop.train(cfg)
    assert read_wandb_exits(cfg.workdir) == [1, 143, 0] and read_mlflow_status(cfg.workdir) == "FINISHED"


def test_an_evaluation_that_was_interrupted_is_logged_when_its_step_was(folder, monkeypatch):
    cfg = make_config(folder, "evaluation")

    def interrupt(self, step, state):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(periodic_evaluation.Evaluate, "evaluate", interrupt)
        loop.train(cfg)
    assert (6, "loss") in read_wandb(cfg.workdir)[0]
    assert (6, "eval_loss") not in read_wandb(cfg.workdir)[0]
    loop.train(cfg)
    for values, _, _ in (read_wandb(cfg.workdir), read_mlflow(cfg.workdir)):
        assert {len(of_step) for of_step in values.values()} == {1}
        assert values[6, "eval_loss"] == read_metrics(cfg.workdir)[6, "eval_loss"]


def test_a_tracker_that_is_added_later_has_the_steps_since(folder, monkeypatch):
    on_metrics = log.Log.on_metrics

    def interrupt(self, step, metrics, pause):
        on_metrics(self, step, metrics, pause)
        if step == 9:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(log.Log, "on_metrics", interrupt)
        loop.train(make_config(folder, "later", train__trackers=""))
    cfg = make_config(folder, "later")
    loop.train(cfg)
    for values, _, _ in (read_wandb(cfg.workdir), read_mlflow(cfg.workdir)):
        assert values == {key: value for key, value in read_metrics(cfg.workdir).items() if key[0] > 5}


def test_vmapped_runs_have_trackers_of_their_own(folder):
    configs = [make_config(folder, f"group{seed}", seed=seed) for seed in (0, 1)]
    vmapped_runs.train(configs)
    for cfg in configs:
        assert_tracked(cfg.workdir)
    assert read_metrics(configs[0].workdir)[STEPS, "loss"] != read_metrics(configs[1].workdir)[STEPS, "loss"]
    assert not read_wandb(configs[0].workdir)[1] & read_wandb(configs[1].workdir)[1]


@pytest.mark.slow
def test_after_a_kill_no_step_is_logged_twice(folder, monkeypatch):
    """A killed process loses the last seconds of W&B's offline file, and at most one record of MLflow."""
    cfg = make_config(folder, "killed", train__steps=20_000, train__checkpoint_every=200, train__log_every=20)
    cfg = fields.override(cfg, {"train.eval_every": 0})
    changes = {name: value for name, value in fields.flatten(cfg).items() if value != fields.DEFAULT[name]}
    command = [sys.executable, "-m", "mlm", "train", *(f"--config.{name}={value}" for name, value in changes.items())]
    path = Path(cfg.workdir, "metrics.jsonl")
    for target in (500, 900):
        with contextlib.ExitStack() as stack:
            process = stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, env=environment() | RUN_VARIABLES, stdout=subprocess.DEVNULL)
            )
            deadline = time.monotonic() + 200
            while not path.exists() or max((record["step"] for record in read_lines(path)), default=0) < target:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    values, ids, _ = read_mlflow(cfg.workdir)
    assert len(ids) == 1
    assert {len(of_step) for of_step in values.values()} == {1}
    losses = {step for step, name in values if name == "loss"}
    assert len({*range(20, max(losses) + 1, 20)} - losses) <= 1
    values, ids, _ = read_wandb(cfg.workdir, num_tries=1)  # its last record never comes
    assert len(ids) <= 1
    assert Counter(len(of_step) for of_step in values.values()).keys() <= {1}


def read_lines(path):
    return files.read_complete_lines(path)[0]


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
    loop.train(cfg)
    assert max(step for step, _ in read_mlflow(cfg.workdir)[0]) == 2
    assert max(step for step, _ in read_metrics(cfg.workdir)) == STEPS


def test_mlflow_uses_the_store_of_its_environment_variable(folder, monkeypatch):
    uri = (folder / "shared store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    cfg = make_config(folder, "shared", train__trackers="mlflow")
    loop.train(cfg)
    assert read_mlflow(None, uri)[0] == read_metrics(cfg.workdir)
    assert not Path(cfg.workdir, "mlruns").exists()


def test_a_store_that_mlflow_cannot_open_is_one_line(folder, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nosuch://store")
    with pytest.raises(errors.ConfigError, match=r"^config.train.trackers = 'mlflow': .*nosuch") as raised:
        loop.train(make_config(folder, "bad store", train__trackers="mlflow"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("name", "near"), [("wandbb", "wandb"), ("mlfow", "mlflow"), ("tensor-board", "tensorboard")])
def test_an_unknown_tracker_is_one_line_with_the_nearest_name(folder, name, near):
    cfg = fields.override(make_config(folder, "unknown"), {"train.trackers": f"wandb,{name}"})
    with pytest.raises(errors.ConfigError) as raised:
        resolution.check(cfg)
    assert str(raised.value) == (
        f"config.train.trackers = {name!r}: expected one of tensorboard, wandb, mlflow; did you mean {near!r}?"
    )


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_one_line_before_anything_is_made(folder, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    cfg = make_config(folder, "missing", train__trackers=name)
    with pytest.raises(errors.ConfigError) as raised:
        loop.train(cfg)
    assert str(raised.value) == (
        f'config.train.trackers = {name!r}: expected the package {name}: pip install "mlm[{name}]"'
    )
    assert not Path(cfg.workdir).exists()


def test_mlflow_needs_a_store_where_the_run_is_on_a_bucket(folder, monkeypatch):
    cfg = make_config(folder, "bucket", workdir="gs://bucket/run")
    with pytest.raises(errors.ConfigError, match=r"MLFLOW_TRACKING_URI, since config.workdir is on a bucket"):
        trackers.check_installed(cfg)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    trackers.check_installed(cfg)


def test_trackers_are_no_part_of_a_run_s_identity(folder):
    one, other = (make_config(folder, "same", train__trackers=names) for names in ("", "wandb"))
    assert fields.fingerprint(one) == fields.fingerprint(other)
    assert program.make_static_config(one) == program.make_static_config(other)
    assert fields.DEFAULT["train.trackers"] == "tensorboard"


@pytest.mark.parametrize(("viewer", "lines"), [(False, 0), (True, 1)])
def test_without_tensorboardx_a_line_comes_once_and_only_where_tensorboard_is(
    tmp_path, monkeypatch, caplog, viewer, lines
):
    warnings_.warn_once.cache_clear()
    monkeypatch.setattr(trackers.extras, "is_installed", lambda package: package == "tensorboard" and viewer)
    for number in range(2):
        run = trackers.TrackedRun(small_config(workdir=str(tmp_path / str(number))), 0, tmp_path / "events", None)
        trackers.TensorboardTracker(run).close(trackers.RunStatus.FINISHED)
    assert len(caplog.records) == lines and all("mlm[tensorboard]" in one.getMessage() for one in caplog.records)


def test_a_tracker_that_cannot_be_opened_leaves_none_open(tmp_path, monkeypatch):
    closed = []

    class First:
        run_id = None

        def __init__(self, run):
            self.close = closed.append

    def refuse(run):
        raise errors.ConfigError("no")

    monkeypatch.setattr(trackers, "TRACKERS", {"tensorboard": First, "mlflow": refuse})
    cfg = small_config(train__trackers="tensorboard,mlflow", workdir=str(tmp_path / "run"))
    with pytest.raises(errors.ConfigError, match="no"):
        trackers.open_trackers(cfg, 0, tmp_path, [])
    assert closed == [trackers.RunStatus.FAILED]
