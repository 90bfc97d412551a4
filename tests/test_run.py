"""Whole runs in processes of their own: killed and continued, spread over processes, refused where not their own."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from small import environment, train_config

from mlm.base import config, errors, fields, files
from mlm.launch import local_processes
from mlm.training.compilation import cost
from mlm.training.run import hooks, log, resolution
from mlm.training.run.directory import RunDirectory
from mlm.training.validation import split_scores

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
STEPS = 60
SHORT = {"train.steps": 10, "train.log_every": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A run of a few seconds on a text of its own."""
    folder = tmp_path_factory.mktemp("text")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 6))) for _ in range(200)]
    for number in range(40):
        (folder / f"{number}.txt").write_text(
            "\n".join(" ".join(rng.choices(words, k=rng.randint(3, 12))) + "." for _ in range(20))
        )
    return {
        "data.path": str(folder / "*.txt"),
        "data.cache_dir": str(folder / "cache"),
        "tokenizer.kind": "words",
        "tokenizer.vocab_size": 150,
        "pack.seq_len": 16,
        "model.num_layers": 1,
        "model.width": 16,
        "model.mlp_dim": 16,
        "model.family": "feedforward",
        "model.cell": "bag",
        "train.steps": STEPS,
        "train.batch_size": 8,
        "train.checkpoint_every": 20,
        "train.log_every": 10,
        "train.eval_every": 25,
        "eval.batch_size": 8,
        "eval.max_examples": 32,
        "train.trackers": "",
        "mask.max_rate": 0.3,
    }


def start(base, workdir, *more, devices=1):
    command = [
        sys.executable,
        "-m",
        "mlm",
        "train",
        f"--config.workdir={workdir}",
        *more,
        *(f"--config.{name}={value}" for name, value in base.items()),
    ]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(devices)
    )


def start_pair(base, workdir):
    """Two processes of one run, with two devices each."""
    words = f"--coordinator=127.0.0.1:{local_processes.find_free_port()}", "--processes=2"
    return [start(base, workdir, *words, f"--process={number}", devices=2) for number in range(2)]


def finish(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return out


def final(workdir):
    """The final checkpoint's arrays and the records of training."""
    step = max(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())
    assert step == STEPS
    arrays = ocp.StandardCheckpointer().restore((workdir / "checkpoints" / str(step) / "state").absolute())
    records = {
        record["step"]: record["loss"] for record in files.read_records(workdir / "metrics.jsonl") if "loss" in record
    }
    return jax.tree.map(np.asarray, arrays), records


def wait_for(workdir, process, step):
    """Waits until a record of that step or a later one is written."""
    while process.poll() is None and newest(workdir) < step:
        time.sleep(0.002)


def newest(workdir) -> int:
    """The last step of which there is a record."""
    return max((record["step"] for record in files.read_records(workdir / "metrics.jsonl")), default=0)


@pytest.mark.exhaustive
def test_killed_at_a_random_moment_it_ends_bit_for_bit_the_same(base, tmp_path):
    """Killed after its tenth step, then continued in this process."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng, killed, whole = random.Random(seed), tmp_path / "killed", tmp_path / "whole"
    process = start(base, killed, devices=jax.device_count())
    wait_for(killed, process, rng.randrange(10, 40))
    time.sleep(rng.uniform(0, 0.05))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    for workdir in (killed, whole):
        train_config(resolve(base, workdir))
    (arrays, records), (expected_arrays, expected_records) = final(killed), final(whole)
    jax.tree.map(np.testing.assert_array_equal, arrays, expected_arrays)
    assert records.items() >= expected_records.items()
    ours, theirs = (json.loads((folder / "result.json").read_text()) for folder in (killed, whole))
    for name in ("steps", "tokens", "predictions", "eligible", "flops", "realised_rate", "evaluation", "data"):
        assert ours[name] == theirs[name], name
    records = [record["step"] for record in files.read_records(killed / "metrics.jsonl") if "eval_loss" in record]
    assert records == [25, 50, STEPS]


@pytest.fixture(scope="module")
def alone(base, tmp_path_factory):
    """The losses of a few steps in this process, and what they were judged."""
    workdir = tmp_path_factory.mktemp("one") / "alone"
    found = train_config(resolve(base | SHORT, workdir))["evaluation"]
    return [record["loss"] for record in files.read_records(workdir / "metrics.jsonl") if "loss" in record], found


@pytest.mark.exhaustive(but=("data_parallel",))
@pytest.mark.parametrize("mode", ["data_parallel", "pmap"])
def test_two_processes_give_the_losses_of_one(base, alone, tmp_path, mode):
    for process in start_pair(base | SHORT | {"parallel.mode": mode}, tmp_path / "pair"):
        finish(process)
    losses = [record["loss"] for record in files.read_records(tmp_path / "pair" / "metrics.jsonl") if "loss" in record]
    assert len(losses) == SHORT["train.steps"]
    np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
    together = json.loads((tmp_path / "pair" / "result.json").read_text())["evaluation"]
    for name, value in alone[1].items():
        assert together[name] == pytest.approx(value, rel=1e-4), name


def resolve(base, workdir, **changes):
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    cfg = fields.override(config.Config(), base | {"workdir": str(workdir)} | changes)
    return resolution.resolve(cfg)


def test_a_directory_of_another_config_is_refused_by_the_fields_that_differ(base, tmp_path):
    cfg = resolve(base, tmp_path / "a", train__steps=10)
    train_config(cfg)
    before = (tmp_path / "a" / "result.json").read_bytes()
    other = resolve(base, tmp_path / "a", train__steps=10, mask__rate=0.25, seed=3)
    with pytest.raises(errors.ConfigError, match=r"config.seed = 3, there 0; config.mask.rate = 0.25, there 0.15"):
        train_config(other)
    (tmp_path / "a" / "config.json").unlink()
    (tmp_path / "a" / "result.json").unlink()
    with pytest.raises(errors.ConfigError, match=r"checkpoint 10 .*config.mask.rate = 0.25, there 0.15"):
        train_config(other)
    again = train_config(resolve(base, tmp_path / "a", train__steps=10))
    assert again["evaluation"] == json.loads(before)["evaluation"]
    steps = [record["step"] for record in files.read_records(tmp_path / "a" / "metrics.jsonl") if "eval_loss" in record]
    assert steps == [10]  # a run that was killed between its last evaluation and its result has no line twice


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_last_good_checkpoint(base, tmp_path):
    cfg = resolve(base, tmp_path / "b", optim__learning_rate=1e30, optim__clip_norm=0.0, train__checkpoint_every=1)
    advice = (
        "try an optim.learning_rate below 1e[+]30, an optim.warmup_fraction above .*, or an optim.clip_norm such as 1"
    )
    message = rf"^step 1: loss .*parameter_norm inf; {advice}; there is no checkpoint yet$"
    with pytest.raises(hooks.DivergenceError, match=message):
        train_config(cfg)
    assert not (tmp_path / "b" / "result.json").exists()


def test_a_held_out_loss_that_is_not_finite_is_a_divergence_too(base, tmp_path, monkeypatch):
    """NaN would stand anywhere in a table's order."""
    summarize = split_scores.summarize
    monkeypatch.setattr(split_scores, "summarize", lambda *args: summarize(*args) | {"loss": np.nan})
    with pytest.raises(hooks.DivergenceError, match=r"^step 25: held-out loss nan; .*last good checkpoint: .*/20$"):
        train_config(resolve(base, tmp_path / "c"))
    assert not (tmp_path / "c" / "result.json").exists()


def test_changed_text_is_not_taken_for_the_text_trained_on(base, tmp_path):
    texts = shutil.copytree(Path(base["data.path"]).parent, tmp_path / "texts")
    ours = base | SHORT | {"data.path": str(texts / "*.txt")}
    train_config(resolve(ours, tmp_path / "e"))
    (texts / "7.txt").write_text((texts / "8.txt").read_text())
    with pytest.raises(errors.ConfigError, match=r"trained on other data: .*corpus"):
        train_config(resolve(ours, tmp_path / "e"))


@pytest.mark.exhaustive
def test_next_sentence_prediction_trains_and_is_judged(base, tmp_path):
    result = train_config(resolve(base, tmp_path / "f", objective="nsp", pack__mode="segment_pair", train__steps=10))
    record = [record for record in files.read_records(tmp_path / "f" / "metrics.jsonl") if "nsp_loss" in record][-1]
    assert record["loss"] == pytest.approx(record["mlm_loss"] + record["nsp_loss"], rel=0.05)
    assert 0 < result["evaluation"]["nsp_accuracy"] < 1 and result["evaluation"]["nsp_loss_se"] > 0


def test_a_run_says_where_it_came_from_and_what_it_measured(base, tmp_path, monkeypatch):
    monkeypatch.setattr(log, "cost", cost)  # estimated in other tests
    cfg = resolve(base | SHORT, tmp_path / "c", mask__rate=0.3, train__trackers="tensorboard")
    result = train_config(cfg)
    (start,) = RunDirectory(tmp_path / "c").read_provenance()
    assert start["step"] == 0 and start["devices"] == jax.device_count()
    assert start["versions"]["jax"] == jax.__version__ and start["time"] <= start["ended"]
    assert RunDirectory(tmp_path / "c").read_finished()["provenance"] == [start]
    assert result["realised_rate"] == pytest.approx(0.3, abs=0.02)
    assert result["tokens"] > 10 * 8 * 8
    assert result["flops"] == SHORT["train.steps"] * cost.count_step_flops(cfg, result["vocab_size"]) > 0
    assert any((tmp_path / "c" / "tensorboard").iterdir())
    assert fields.override(config.Config(), result["config"]).mask.rate == 0.3
