"""What a run is fine-tuned for is made once, goes on where it was stopped, and is refused before any training."""

import os
import random
import re
import shutil
import signal
from pathlib import Path

import pytest
from small import get_refusal, make_letters_config, train_config

from mlm.base import fields, lease
from mlm.base.errors import RunStopped
from mlm.evaluation import evaluation_tasks
from mlm.launch.sweep import sweep_state
from mlm.training.run import hooks, log, loop, resolution
from mlm.training.run.directory import RunDirectory

GRID = {"downstream.learning_rates": (1e-2, 1e-3), "downstream.epochs": (1.0,)}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A run of a few steps, the folder of its tasks, and how to have a copy of it with fields of config.downstream."""
    folder, draw = tmp_path_factory.mktemp("pretrained"), random.Random(0)
    for task in ("sst2", "rte"):
        (folder / "tasks" / task).mkdir(parents=True)
    for name, count in (("train", 120), ("dev", 24)):
        texts = [" ".join(draw.choices("abcdefgh", k=6)) for _ in range(count)]
        (folder / "tasks" / "sst2" / f"{name}.tsv").write_text(
            "sentence\tlabel\n" + "".join(f"{text}\t{int(text < 'd')}\n" for text in texts)
        )
    cfg = make_letters_config(folder, "run", train__steps=12)  # by the program of tests/test_trackers.py
    train_config(cfg)
    copies = iter(range(100))

    def copy(**own):
        workdir = folder / f"copy{next(copies)}"
        shutil.copytree(folder / "run", workdir)
        own = {f"downstream.{name}": value for name, value in own.items()}
        return fields.override(
            cfg,
            {"downstream.tasks": "sst2", "downstream.path": str(folder / "tasks")}
            | GRID
            | own
            | {"workdir": str(workdir)},
        )

    return folder, copy


def starts(cfg):
    return {
        path.parent.name: RunDirectory(path.parent).read_provenance()
        for path in (RunDirectory(cfg.workdir).tasks / "").glob("*/provenance.json")
    }


@pytest.fixture(scope="module")
def finished_run(pretrained):
    """A run all of whose fine-tunings are made, and nothing interrupted any."""
    return pretrained[1](seeds=2)


def test_each_point_of_the_grid_is_trained_once_for_each_seed_and_never_again(finished_run):
    cfg = finished_run
    assert sweep_state.read_state(cfg).name == "stopped"
    found = evaluation_tasks.finish_evaluations(cfg)
    assert sweep_state.read_state(cfg).name == "done" and evaluation_tasks.list_missing_cases(cfg) == []
    points = [f"lr{rate}-e1-b32-s{seed}" for rate in (0.001, 0.01) for seed in (0, 1)]
    assert sorted(name.partition("/")[2] for name in found["evaluations"]["finetuned_tasks"]) == points
    (one,) = found["summary"]["finetuned_tasks"].values()
    assert one["trials"] == 2 and one["seeds"] == [0, 1] and one["score"]["name"] == "accuracy"
    assert {*one["references"]} == {"majority class"} and one["title"] == "SST-2"
    begun = starts(cfg)
    assert len(begun) == 4 and all(len(records) == 1 for records in begun.values())
    for name, answer in found["evaluations"]["finetuned_tasks"].items():
        run = RunDirectory(cfg.workdir).tasks / answer["run"]
        assert len((run / "predictions-dev.jsonl").read_text().splitlines()) == 24, name
        assert RunDirectory(run).read_result()["evaluation"] == answer["evaluation"]
        assert not RunDirectory(run).checkpoints.exists()
    kept = RunDirectory(cfg.workdir).read_evaluations()
    Path(cfg.workdir, "evaluations.json").unlink()
    few = fields.override(cfg, {"downstream.learning_rates": (1e-2,)})
    (fewer,) = evaluation_tasks.finish_evaluations(few)["summary"]["finetuned_tasks"].values()
    evaluation_tasks.finish_evaluations(cfg)
    assert fewer["trials"] == 1 and RunDirectory(cfg.workdir).read_evaluations() == kept and starts(cfg) == begun


@pytest.mark.exhaustive
def test_one_that_is_stopped_goes_on_to_the_same_and_nobody_else_is_at_it_meanwhile(
    pretrained, finished_run, monkeypatch
):
    stopped = pretrained[1](learning_rates=(1e-2,), seeds=2)
    on_metrics, held = log.Log.on_metrics, []

    def stop_at_the_first(self, number, *rest, **more):
        held.append(RunDirectory(stopped.workdir).is_locked())
        if number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return on_metrics(self, number, *rest, **more)

    with monkeypatch.context() as patch, pytest.raises(RunStopped) as stop:
        patch.setattr(log.Log, "on_metrics", stop_at_the_first)
        evaluation_tasks.finish_evaluations(stopped)
    assert stop.value.signal == signal.SIGTERM and "the same command continues" in str(stop.value)
    assert all(held) and not RunDirectory(stopped.workdir).is_locked() and len(starts(stopped)) == 1
    with RunDirectory(stopped.workdir).lock(), pytest.raises(lease.FolderInUse):
        evaluation_tasks.finish_evaluations(stopped)
    found, expected = (
        evaluation_tasks.finish_evaluations(cfg)["evaluations"]["finetuned_tasks"] for cfg in (stopped, finished_run)
    )
    assert len(found) == 2 and all(one["evaluation"] == expected[name]["evaluation"] for name, one in found.items())
    assert sorted([start["step"] > 0 for start in records] for records in starts(stopped).values()) == [
        [False],
        [False, True],
    ]


def test_one_that_diverges_is_an_answer_and_a_failure(pretrained, monkeypatch):
    _, copy = pretrained
    cfg = copy()

    def diverges(tuned, packed):
        raise hooks.DivergenceError("step 1: loss nan")

    monkeypatch.setattr(loop, "train", diverges)
    (one,) = evaluation_tasks.finish_evaluations(cfg)["summary"]["finetuned_tasks"].values()
    assert one["failed"] == [0] and one["trials"] == 2 and evaluation_tasks.list_missing_cases(cfg) == []


BAD = {
    "an unknown task": ({"tasks": "topic,sst-2"}, r"tasks = 'sst-2': expected one of topic, .*did you mean 'sst2'\?"),
    "another folder": ({"path": "nowhere"}, r"data\.task_path = 'nowhere/sst2': expected the folder of its files"),
    "more layers than there are": (
        {"variants": "finetune.trainable_layers=2"},
        r"finetune\.trainable_layers = 2: expected -1 <= value <= 1",
    ),
    "no field": ({"variants": "finetune.layer=0"}, r"finetune\.layer: no such field; did you mean config\.finetune\."),
    "a batch without parts": (
        {"variants": "train.grad_accum_steps=4", "batch_sizes": (6, 32)},
        "grad_accum_steps = 4: expected",
    ),
    "what nothing reads": (
        {"tasks": "", "path": "", "learning_rates": (), "seeds": 2, "epochs": (3.0,)},
        r"seeds = 2: nothing reads it, since config\.downstream\.tasks",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_fine_tuned_is_refused_in_one_line_before_anything_is_trained(pretrained, case, monkeypatch):
    own, said = BAD[case]
    monkeypatch.setattr(loop, "train_runs", None)
    line = get_refusal(lambda: loop.check(resolution.resolve(pretrained[1](**own))))
    assert re.search(r"config\.(downstream\b.*)?" + said, line)
