"""A fine-tuning is a run: what is frozen stays, what is killed continues, and devices agree."""

import math
import os
import signal

import jax
import numpy as np
import pytest
from small import batch, make_dataset_info, make_run_config, prepare_finetuning, small_config, state_of, train_config

from mlm.base import config, errors, fields
from mlm.cli import finetune as command
from mlm.data.language import synthetic_task as language
from mlm.evaluation import evaluation_tasks
from mlm.training.run import checkpoint, finetuning_recipe, hooks, initialization, loop, resolution, trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.step import program

pytestmark = pytest.mark.slow
STACK = "['layers']"


def steps(count, devices=1, **changes):
    """The state before and after some updates on labelled rows, with their losses."""
    cfg = small_config(objective="classification", train__batch_size=8, train__steps=count, **changes)
    made = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:devices])
    knobs = program.make_train_hparams(cfg)
    first = state_of(made.init_state.eval_shape(knobs))
    state, losses = made.partitioner.put_state(first), []
    for number in range(count):
        rows = made.partitioner.put_batch(batch(8, seed=number, labels=True))
        state, metrics = made.partitioner.train_step(state, rows, knobs)
        losses.append(float(made.partitioner.get_metrics(metrics)["loss"]))
    return first, made.partitioner.get_state(state), losses


def find_changes(before, after) -> dict[str, list[bool]]:
    """Whether any bit changed, by the name of a leaf; of stacked layers one after the other."""
    found = {}
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        name = jax.tree_util.keystr(path)
        found[name] = [(x != y).any() for x, y in zip(a, b, strict=True)] if STACK in name else [(a != b).any()]
    return found


@pytest.fixture(scope="module")
def one_layer():
    return steps(3, family="feedforward", cell="bag", finetune__trainable_layers=1, finetune__layerwise_lr_decay=0.5)


def test_what_is_frozen_stays_bit_for_bit_and_has_no_optimiser_state(one_layer):
    before, after, _ = one_layer
    for name, changed in find_changes(before.params, after.params).items():
        behind = "['objective']" in name or "['body']['norm']" in name
        assert changed == ([False, True] if STACK in name else [behind]), name
    kept = sum(leaf.size for leaf in jax.tree.leaves(after.opt_state) if leaf.ndim)
    params = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(after.params)}
    train = sum(
        (leaf[1:] if STACK in name else leaf).size
        for name, leaf in params.items()
        if any(part in name for part in (STACK, "['objective']", "['body']['norm']"))
    )
    assert kept == 2 * train


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A run of a few steps on the built-in language, and what all fine-tunings here have in common."""
    cache = tmp_path_factory.mktemp("finetune")
    cfg = make_run_config(cache, cache / "run")
    train_config(cfg)
    with pytest.MonkeyPatch.context() as patch:
        for split, count in (("train", 64), ("dev", 40), ("test", 24)):
            patch.setitem(language.SPLIT_SIZES, split, count)
        yield (
            cfg.workdir,
            {
                "data.task": "topic",
                "data.cache_dir": str(cache),
                "train.steps": 6,
                "train.batch_size": 8,
                "train.checkpoint_every": 2,
                "train.log_every": 1,
                "eval.batch_size": 8,
            },
        )


def make_config(pretrained, name, **changes):
    run, common = pretrained
    given = common | {"workdir": f"{run}-{name}"} | {key.replace("__", "."): value for key, value in changes.items()}
    return prepare_finetuning(run, given)


def test_a_fine_tuning_knows_where_each_value_comes_from(pretrained):
    run, common = pretrained
    command_line = {name: value for name, value in common.items() if name not in ("data.task", "train.steps")}
    layers = [fields.Layer("task.toml", {"data.task": "topic"}), fields.Layer("command line", command_line)]
    resolved, packed = finetuning_recipe.prepare_finetuning(run, layers, epochs=2)
    assert {resolved.origins[name] for name in command_line} == {"command line"}
    origins = {name: resolved.origins[name] for name in ("data.task", "model.width", "optim.b2", "train.steps")}
    assert list(origins.values()) == ["task.toml", run, "fine-tuning recipe", "epochs = 2"]
    assert resolved.config.train.steps == 2 * len(packed.train["ids"]) // 8


@pytest.fixture(scope="module")
def tuned(pretrained):
    cfg, packed = make_config(pretrained, "whole")
    return cfg, packed, loop.train(cfg, packed)


def test_without_epochs_the_steps_follow_from_the_examples(pretrained):
    resolved, packed = finetuning_recipe.prepare_finetuning(
        pretrained[0], [fields.Layer("task", {"data.task": "topic"})]
    )
    cfg, examples = resolved.config, len(packed.train["ids"])
    epochs = finetuning_recipe.choose_epochs(cfg.model.width, examples, cfg.train.batch_size)
    assert cfg.train.steps == math.ceil(examples * epochs / cfg.train.batch_size)
    assert resolved.origins["train.steps"] == f"epochs = {epochs:g}"


def test_it_starts_from_the_run_and_says_of_which_state(pretrained, tuned):
    run, (cfg, packed, _) = trained_run.load(pretrained[0], {}), tuned
    assert cfg.init.run_sha256 == run.digest != "" and cfg.model == run.cfg.model.__class__(
        **{**vars(run.cfg.model), "dropout": cfg.model.dropout, "kernels": "auto"}
    )

    def draw_state(cfg):
        made = program.build_program(cfg, packed.dataset_info)
        return state_of(made.init_state.eval_shape(program.make_train_hparams(cfg)))

    begun, _ = initialization.init_from_source(cfg, draw_state(cfg), packed.tokenizer)
    jax.tree.map(np.testing.assert_array_equal, begun.params["model"], jax.device_get(run.state.params["model"]))
    other = fields.override(cfg, {"init.run_sha256": "0" * 64})
    with pytest.raises(errors.ConfigError, match=r"config.init.run_sha256 = '0+': expected the state of the newest"):
        initialization.init_from_source(other, begun, packed.tokenizer)
    wider = fields.override(cfg, {"model.mlp_dim": 40})
    with pytest.raises(errors.ConfigError, match=r"config.model.mlp_dim is 24 there and 40 here"):
        initialization.init_from_source(wider, draw_state(wider), packed.tokenizer)
    further = resolution.resolve(config.Config(), {"init.run": pretrained[0], "train.steps": 3})
    assert further.data.language == run.cfg.data.language and further.tokenizer.path == ""
    assert (further.objective, further.init.run_sha256) == ("mlm", run.digest)
    layers = resolution.make_layers(config.Config(), {"init.run": pretrained[0]})
    origins = resolution.resolve_layers(layers).origins
    assert origins["model.width"] == f"init.run = {pretrained[0]!r}" and origins["init.run"] == "override"
    otherwise = packed.tokenizer._replace(model=packed.tokenizer.model + b" ")
    with pytest.raises(errors.ConfigError, match=r"config.init.run = .*: expected the vocabulary of the training data"):
        initialization.init_from_source(cfg, begun, otherwise)


def test_its_result_has_the_optimum_of_the_very_rows(tuned):
    _, _, result = tuned
    found = result["evaluation"]
    assert found["rows"] == 40 and 0.8 < found["optimum"] <= 1
    assert found["shortfall"] == pytest.approx(found["optimum"] - found["accuracy"])
    assert found["majority_accuracy"] < found["optimum"]


def test_killed_and_continued_it_ends_with_the_same_bits(pretrained, tuned, monkeypatch):
    cfg, packed = make_config(pretrained, "killed")
    now = hooks.Preemption.is_requested

    def stop_at_three(self, checkpoints, number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return now(self, checkpoints, number)

    with monkeypatch.context() as patch, pytest.raises(errors.RunStopped):
        patch.setattr(hooks.Preemption, "is_requested", stop_at_three)
        loop.train(cfg, packed)
    assert RunDirectory(cfg.workdir).read_result() is None
    again = loop.train(cfg, packed)
    digests = [checkpoint.read_newest_digest(RunDirectory(one.workdir)) for one in (cfg, tuned[0])]
    assert digests[0] == digests[1] and again["evaluation"] == tuned[2]["evaluation"]


def test_predictions_of_dev_and_test_are_written_and_give_the_scores(tuned):
    cfg, packed, result = tuned
    answers = evaluation_tasks.finish_evaluations(cfg, packed)["evaluations"]["predictions"]
    for split, count in (("dev", 40), ("test", 24)):
        records = RunDirectory(cfg.workdir).read_predictions(split)
        right = [record["gold"] == record["predicted"] for record in records]
        assert len(records) == count and np.mean(right) == pytest.approx(answers[split]["accuracy"])
        assert all(record["score"] <= 0 for record in records)
    assert answers["dev"]["accuracy"] == result["evaluation"]["accuracy"]


@pytest.mark.parametrize(
    "width, examples, batch_size, epochs", [(64, 3200, 32, 3), (128, 960, 32, 10), (129, 100, 32, 3)]
)
def test_a_small_model_sees_few_examples_more_often(width, examples, batch_size, epochs):
    assert finetuning_recipe.choose_epochs(width, examples, batch_size) == epochs


@pytest.mark.parametrize(
    ("predicted", "said"), [("aabb", "never predicted: 'c', 'd', 2 of 4 examples of dev"), ("abcd", ""), ("aaaa", "")]
)
def test_classes_that_are_never_predicted_are_a_line(predicted, said):
    line = command.describe_unpredicted_classes(
        [{"gold": gold, "predicted": label} for gold, label in zip("abcd", predicted, strict=True)]
    )
    assert bool(line) == bool(said) and line.startswith(said) and "\n" not in line
