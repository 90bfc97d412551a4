"""What a run is fine-tuned for is made once, goes on where it was stopped, and is refused before any training."""

import os
import random
import re
import shutil
import signal
from pathlib import Path

import pytest
from small import small_config

from mlm.base import config, errors, fields, lease
from mlm.evaluation import evaluation_tasks
from mlm.launch.sweep import sweep_points, sweep_state
from mlm.training.run import directory, divergence, finetuning_recipe, log, loop, resolution
from mlm.training.run.preemption import RunStopped
from mlm.training.step import program

GRID = {"downstream.learning_rates": (1e-2, 1e-3), "downstream.epochs": (1.0,)}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A run of a few steps, the folder of its tasks, and how to have a copy of it with fields of config.downstream."""
    folder, draw = tmp_path_factory.mktemp("pretrained"), random.Random(0)
    (folder / "texts.txt").write_text("\n".join(" ".join(draw.choices("abcdefgh", k=9)) for _ in range(150)))
    for task in ("sst2", "rte"):
        (folder / "tasks" / task).mkdir(parents=True)
    for name, count in (("train", 120), ("dev", 24)):
        texts = [" ".join(draw.choices("abcdefgh", k=6)) for _ in range(count)]
        (folder / "tasks" / "sst2" / f"{name}.tsv").write_text(
            "sentence\tlabel\n" + "".join(f"{text}\t{int(text < 'd')}\n" for text in texts)
        )
    cfg = small_config(
        model__num_layers=1,
        data__path=str(folder / "texts.txt"),
        data__document_boundary="line",
        data__cache_dir=str(folder / "cache"),
        tokenizer__kind="words",
        tokenizer__vocab_size=13,
        workdir=str(folder / "run"),
        train__steps=2,
        train__batch_size=8,
        eval__batch_size=16,
    )
    loop.train(cfg)
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
        path.parent.name: directory.read_provenance(path.parent)
        for path in directory.finetuning_folder(cfg.workdir, "").glob("*/provenance.json")
    }


def test_each_point_of_the_grid_is_trained_once_for_each_seed_and_never_again(pretrained):
    _, copy = pretrained
    cfg = copy(seeds=2)
    assert sweep_state.read_state(cfg).name == "stopped"
    found = evaluation_tasks.finish_evaluations(cfg)
    assert sweep_state.read_state(cfg).name == "done" and evaluation_tasks.list_missing_cases(cfg) == []
    assert sorted(name.partition("/")[2] for name in found["evaluations"]["finetuned_tasks"]) == [
        "lr0.001-e1-b32-s0",
        "lr0.001-e1-b32-s1",
        "lr0.01-e1-b32-s0",
        "lr0.01-e1-b32-s1",
    ]
    (one,) = found["summary"]["finetuned_tasks"].values()
    assert one["trials"] == 2 and one["seeds"] == [0, 1] and one["score"]["name"] == "accuracy"
    assert {*one["references"]} == {"majority class"} and one["title"] == "SST-2"
    begun = starts(cfg)
    assert len(begun) == 4 and all(len(records) == 1 for records in begun.values())
    for name, answer in found["evaluations"]["finetuned_tasks"].items():
        run = directory.finetuning_folder(cfg.workdir, answer["run"])
        assert len((run / "predictions-dev.jsonl").read_text().splitlines()) == 24, name
        assert (
            directory.read_result(run)["evaluation"] == answer["evaluation"]
            and not directory.checkpoint_folder(run).exists()
        )
    kept = directory.read_evaluations(cfg.workdir)
    Path(cfg.workdir, "evaluations.json").unlink()
    few = fields.override(cfg, {"downstream.learning_rates": (1e-2,)})
    (fewer,) = evaluation_tasks.finish_evaluations(few)["summary"]["finetuned_tasks"].values()
    evaluation_tasks.finish_evaluations(cfg)
    assert fewer["trials"] == 1 and directory.read_evaluations(cfg.workdir) == kept and starts(cfg) == begun


def test_one_that_is_stopped_goes_on_to_the_same_and_nobody_else_is_at_it_meanwhile(pretrained, monkeypatch):
    _, copy = pretrained
    whole, stopped = (copy(learning_rates=(1e-2,), seeds=2) for _ in range(2))
    on_metrics, held = log.Log.on_metrics, []

    def stop_at_the_first(self, number, *rest, **more):
        held.append(directory.is_held(stopped))
        if number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return on_metrics(self, number, *rest, **more)

    with monkeypatch.context() as patch, pytest.raises(RunStopped) as stop:
        patch.setattr(log.Log, "on_metrics", stop_at_the_first)
        evaluation_tasks.finish_evaluations(stopped)
    assert stop.value.signal == signal.SIGTERM and "the same command continues" in str(stop.value)
    assert all(held) and not directory.is_held(stopped) and len(starts(stopped)) == 1
    with directory.acquire_run(stopped), pytest.raises(lease.FolderInUse):
        evaluation_tasks.finish_evaluations(stopped)
    for cfg in (stopped, whole):
        evaluation_tasks.finish_evaluations(cfg)
    summaries = [directory.read_evaluations(one.workdir)["summary"] for one in (stopped, whole)]
    assert summaries[0] == summaries[1]
    assert sorted([start["step"] > 0 for start in records] for records in starts(stopped).values()) == [
        [False],
        [False, True],
    ]


def test_one_that_diverges_is_an_answer_and_a_failure(pretrained, monkeypatch):
    _, copy = pretrained
    cfg = copy()

    def diverges(tuned, packed):
        raise divergence.DivergenceError("step 1: loss nan")

    monkeypatch.setattr(loop, "train", diverges)
    (one,) = evaluation_tasks.finish_evaluations(cfg)["summary"]["finetuned_tasks"].values()
    assert one["failed"] == [0] and one["trials"] == 2 and evaluation_tasks.list_missing_cases(cfg) == []


def test_nothing_of_it_changes_what_a_run_is(pretrained):
    _, copy = pretrained
    plain = config.Config()
    for name, value in fields.flatten(
        copy(seeds=3, batch_sizes=(16, 32), variants=",finetune.trainable_layers=0")
    ).items():
        if name.startswith("downstream."):
            other = fields.override(plain, {name: value})
            assert other != plain and fields.fingerprint(other) == fields.fingerprint(plain)
            assert program.make_static_config(other) == program.make_static_config(plain)


def test_the_same_task_has_one_column_whatever_is_set_and_a_name_for_each_variant(pretrained):
    _, copy = pretrained
    variants = (
        ",finetune.layerwise_lr_decay=0.95,finetune.layerwise_lr_decay=0.9,from_scratch model.init_std=0.05,"
        "from_scratch model.init_std=0.5"
    )
    parts = evaluation_tasks.list_due_cases(copy(learning_rates=(1e-2,), variants=variants))
    assert len({part.inputs["task_sha256"] for part in parts}) == 1 and len({part.name for part in parts}) == 5
    left = fields.override(copy(learning_rates=(1e-2,)), {"objective": "causal", "model.directionality": "causal"})
    assert (
        finetuning_recipe.plan_config(left, finetuning_recipe.list_trials(left)[0]).finetune.pooling == "last"
    )  # the first state sees nothing
    assert {
        part.inputs["task_sha256"] for part in evaluation_tasks.list_due_cases(left) if part.task == "finetuned_tasks"
    } == {parts[0].inputs["task_sha256"]}
    assert (
        len(
            {
                part.inputs["task_sha256"]
                for part in evaluation_tasks.list_due_cases(copy(tasks="sst2,topic", learning_rates=(1e-2,)))
            }
        )
        == 2
    )


def test_the_same_model_without_its_pretraining_is_a_variant_and_no_two_runs_draw_alike(pretrained):
    _, copy = pretrained
    cfg = copy(learning_rates=(1e-2,), variants=",from_scratch", seeds=2)
    seeds = cfg, fields.override(cfg, {"seed": 1})
    ours, drawn = (
        [
            finetuning_recipe.plan_config(one, trial)
            for one in seeds
            for trial in finetuning_recipe.list_trials(cfg)
            if trial.variant == variant
        ]
        for variant in ("", "from_scratch")
    )
    assert {one.init.run for one in ours} == {cfg.workdir} and {one.init.run for one in drawn} == {""}
    assert len({one.seed for one in ours}) == 4 and [one.seed for one in ours] == [one.seed for one in drawn]
    found = evaluation_tasks.finish_evaluations(fields.override(cfg, {"downstream.seeds": 1}))
    runs = [
        directory.read_identity(directory.finetuning_folder(cfg.workdir, answer["run"]))
        for answer in found["evaluations"]["finetuned_tasks"].values()
    ]
    assert sorted(bool(run["config"]["init.run_sha256"]) for run in runs) == [False, True]
    result, _ = sweep_state.read_point(cfg)
    assert result["config"]["downstream.variants"] == ",from_scratch"  # as asked now, not when it was trained


def test_other_files_are_asked_beside_what_was_and_the_same_elsewhere_are_the_same(pretrained):
    folder, copy = pretrained
    for name in ("same", "others"):
        shutil.copytree(folder / "tasks", folder / name)
    with (folder / "others" / "sst2" / "dev.tsv").open("a") as file:
        file.write("a b c\t1\n")
    whole, same, others = (
        evaluation_tasks.list_due_cases(copy(path=str(folder / name))) for name in ("tasks", "same", "others")
    )
    assert whole == same and len(whole) == 2
    assert not {(part.name, part.sha256) for part in whole} & {(part.name, part.sha256) for part in others}
    head = evaluation_tasks.list_due_cases(copy(variants=" finetune.trainable_layers=0  train.group_by_length=False"))
    assert all(part.name.startswith("sst2-trainable_layers0-group_by_lengthFalse-") for part in head)
    assert len(head) == len(whole)
    assert not {part.sha256 for part in head} & {part.sha256 for part in whole}


BAD = {
    "an unknown task": ({"tasks": "topic,sst-2"}, r"tasks = 'sst-2': expected one of topic, .*did you mean 'sst2'\?"),
    "a task twice": ({"tasks": "topic,topic"}, "tasks = 'topic,topic': expected each once"),
    "no folder": ({"tasks": "topic,cola", "path": ""}, "path = '': expected the folder that holds a folder 'cola'"),
    "another folder": ({"path": "nowhere"}, r"data\.task_path = 'nowhere/sst2': expected the folder of the task's"),
    "a folder without its files": ({"tasks": "rte"}, r"labelled\.train = 'train.tsv': expected a file in .*rte"),
    "more layers than there are": (
        {"variants": "finetune.trainable_layers=2"},
        r"finetune\.trainable_layers = 2: expected -1 <= value <= 1",
    ),
    "no epochs": ({"epochs": ()}, r"epochs = \(\): expected at least one value, each once"),
    "no pass": ({"epochs": (0.0,)}, r"epochs = 0\.0: expected more than 0"),
    "a rate below 0": ({"learning_rates": (-1.0,)}, r"learning_rates = -1\.0: expected more than 0"),
    "no seed": ({"seeds": 0}, "seeds = 0: expected 1 <= value"),
    "half a layer": (
        {"variants": "finetune.trainable_layers=0.5"},
        r"variants = 'finetune\.trainable_layers=0\.5': expected a value of type int",
    ),
    "neither true nor false": ({"variants": "train.group_by_length=no"}, r"expected a value of type bool"),
    "a field's value left out": (
        {"variants": ",finetune.trainable_layers"},
        r"variants = 'finetune\.trainable_layers': expected NAME=VALUE",
    ),
    "no field": ({"variants": "finetune.layer=0"}, r"finetune\.layer: no such field; did you mean config\.finetune\."),
    "a field that the grid sets": ({"variants": "seed=1"}, "variants = 'seed=1': expected a field that may be set"),
    "another model": ({"variants": "model.num_layers=2"}, "variants = .*: expected from_scratch beside it"),
    "what is not its own": ({"variants": "eval.batch_size=8"}, "variants = .*: expected a field that may be set"),
    "a batch without parts": (
        {"variants": "train.grad_accum_steps=4", "batch_sizes": (6, 32)},
        "grad_accum_steps = 4: expected",
    ),
    "a path": ({"variants": "data.labelled.train=a/b"}, "variants = .*: expected a value without /"),
    "a variant twice": (
        {"variants": ",finetune.trainable_layers=0, finetune.trainable_layers=0"},
        "variants = .*: expected each once",
    ),
    "no batch": ({"batch_sizes": (0,)}, "batch_sizes = 0: expected more than 0"),
    "what nothing reads": (
        {"tasks": "", "path": "", "learning_rates": (), "seeds": 2, "epochs": (3.0,)},
        r"seeds = 2: nothing reads it, since config\.downstream\.tasks",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_fine_tuned_is_refused_in_one_line_before_anything_is_trained(pretrained, case, monkeypatch):
    own, said = BAD[case]
    monkeypatch.setattr(loop, "train_runs", None)
    with pytest.raises(errors.ConfigError) as refused:
        loop.check(resolution.resolve(pretrained[1](**own)))
    assert re.search(r"config\.(downstream\b.*)?" + said, str(refused.value)) and "\n" not in str(refused.value)


def test_files_that_are_not_here_stop_no_list(pretrained):
    folder, copy = pretrained
    cfg = copy(path=str(folder / "elsewhere"))
    assert sweep_state.read_state(cfg).name == "stopped"
    named = {"downstream.tasks": "topic,sst2", "downstream.path": "nowhere"}
    (resolved,) = sweep_points.resolve_points(config.Config(), {"one": named}, {"downstream.seeds": 2}).values()
    assert finetuning_recipe.list_trials(resolved)[:3] == [
        ("topic", "", 5e-4, 3.0, 32, 0),
        ("topic", "", 5e-4, 3.0, 32, 1),
        ("topic", "", 1e-3, 3.0, 32, 0),
    ]
