"""Fields that nothing reads: set, they are an error with its reason; without their reader, they are dropped."""

import dataclasses
import itertools
import re

import jax
import numpy as np
import pytest

from mlm.base import conditional_fields, config, errors, fields
from mlm.cli import sweep, train
from mlm.data.language import grammar
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES
from mlm.training.run import resolution
from mlm.training.step.optimizers import OPTIMIZERS

LANGUAGE = {"data.corpus": "language"}
TASK = {"data.corpus": "task", "data.task_path": "a", "tokenizer.path": "b", "pack.seq_len": 256}
PAIRS = {"data.corpus": "parallel", "objective": "causal", "model.family": "encoder_decoder"}
SOURCE = LANGUAGE | {"model.family": "encoder_decoder", "objective": "denoising"}
STARTS = [
    LANGUAGE,
    {"data.corpus": "text", "data.path": "a.txt", "data.validation_path": "b.txt"},
    {"data.corpus": "docstrings", "tokenizer.path": "a"},
    {"data.corpus": "tfds", "data.tfds_name": "lm1b"},
    *(TASK | {"data.task": task} for task in ("sst2", "stsb", "wnut17", "squad")),
    TASK | {"data.task": "ud_dep", "finetune.trainable_layers": 0},
    PAIRS,
    PAIRS | {"data.parallel_path": "a"},
    SOURCE,
    SOURCE | {"model.cell": "gru"},
    LANGUAGE | {"model.family": "rnn", "model.cell": "elman"},
]


def can_run(changes):
    try:
        resolution.resolve(config.Config(), changes)
    except errors.ConfigError:
        return False
    return True


# Each choice of a field, and each value that takes the reader from another, in a config that can run with it.
CHOICES = STARTS + [
    changes
    for name, values in (
        ("model.family", MODELS),
        ("objective", OBJECTIVES),
        ("optim.optimizer", OPTIMIZERS),
        *((name, declared.choices) for name, declared in fields.DECLARATIONS.items()),
        *((condition.depends_on, condition.excluded_values) for condition in resolution.FIELD_CONDITIONS),
    )
    for value in values
    if value != fields.DEFAULT[name] and can_run(changes := LANGUAGE | {name: value})
]


def other(name):
    """A value of the field that is not its default."""
    named = {
        "data.language.num_declensions": 4,
        "model.local_rope_theta": 500.0,
        "model.local_window": 4,
        "downstream.variants": "finetune.trainable_layers=0",
        "downstream.tasks": "topic",
        "phases.seq_len": (16,),
    }
    if name in named:
        return named[name]
    value, number_type, bounds, choices, _ = fields.DECLARATIONS[name]
    return {
        str: lambda: next((choice for choice in choices or ["other"] if choice != value), ""),
        int: lambda: max(7, bounds.low),
        bool: lambda: not value,
        float: lambda: max(bounds.low, 0.5 if value == 0.25 else 0.25) * 1.0,
        tuple: lambda: (7,) if number_type is int else (max(bounds.low, 0.25) * 1.0,),
    }[type(value)]()


def make_config(changes):
    return fields.override(config.Config(), changes)


def test_a_rule_is_about_fields_that_there_are():
    for rule in resolution.FIELD_CONDITIONS:
        assert rule.depends_on in fields.DEFAULT and bool(rule.values) != bool(rule.excluded_values)
        assert rule.fields and {*rule.fields} <= fields.DEFAULT.keys()


class Reader:
    """A section of a config that notes the dotted name of every field that is read."""

    def __init__(self, section, read, prefix=""):
        self.section, self.read, self.prefix = section, read, prefix

    def __getattr__(self, name):
        value = getattr(self.section, name)
        if dataclasses.is_dataclass(value):
            return Reader(value, self.read, f"{self.prefix}{name}.")
        self.read.add(self.prefix + name)
        return value


def test_a_derived_field_reads_what_it_depends_on_which_is_derived_before_it():
    read, rows = {}, resolution.DERIVED_FIELDS
    for choice in (*CHOICES, {"data.task": "own", "data.labelled.format": "conll"}):
        cfg = make_config(choice)
        for row in rows:
            reader = Reader(cfg, read.setdefault(row, set()))
            if row.applies(reader):
                row.derive(reader)
            cfg = fields.fill_derived_fields([row], cfg)
        assert cfg == resolution.derive_fields(make_config(choice))
    for i, row in enumerate(rows):
        assert read[row] == set(row.depends_on), row.field
        assert row.field in fields.DEFAULT and not {other.field for other in rows[i:]} & read[row], row.field


def test_each_field_with_a_rule_is_refused_where_nothing_reads_it():
    refused = {}
    for choice in CHOICES:
        unread = conditional_fields.find_unread_fields(
            resolution.FIELD_CONDITIONS, fields.flatten(resolution.resolve(make_config(choice)))
        )
        for name, why in unread.items():
            if name in choice or why in refused.setdefault(name, set()):
                continue
            with pytest.raises(errors.ConfigError) as error:
                resolution.resolve(make_config(choice | {name: other(name)}))
            message = str(error.value)
            assert message == f"config.{name} = {other(name)!r}: nothing reads it, since {why}; leave it out"
            refused[name].add(why)
    assert {*refused} == {name for rule in resolution.FIELD_CONDITIONS for name in rule.fields}


def test_a_resolved_config_is_not_refused_for_what_was_filled():
    for choice in CHOICES:
        cfg = resolution.resolve(make_config(choice))
        assert resolution.resolve(cfg) == cfg


def test_what_a_later_layer_leaves_without_a_reader_is_dropped_and_what_it_sets_itself_is_refused():
    below = make_config({"data.language.train_documents": 7, "model.positions": "rotary"})
    text = {"data.path": "a.txt", "tokenizer.vocab_size": 100}
    assert resolution.resolve(below, text) == resolution.resolve(make_config(text | {"model.positions": "rotary"}))
    assert resolution.resolve(below, {}, text) == resolution.resolve(below, text, {})
    with pytest.raises(errors.ConfigError, match=r"train_documents = 9: nothing reads it, since config\.data\.corpus"):
        resolution.resolve(below, text | {"data.language.train_documents": 9})
    with pytest.raises(errors.ConfigError, match=r"heads = 8: nothing reads it, since config\.model\.family is 'rnn'"):
        resolution.resolve(
            make_config({"model.family": "rnn", "model.num_heads": 8}), text
        )  # a contradiction of its own
    template = make_config({"data.validation_path": "held.txt"})
    assert resolution.resolve(template, text).data.validation_path == "held.txt"


@pytest.mark.parametrize("objective", ["mlm", "causal"])  # the first is the default
def test_an_objective_that_is_set_is_never_replaced_by_that_of_the_task(objective):
    task, said = {"data.task": "topic", "tokenizer.path": "a"}, {"objective": objective}
    for layers in ([task | said], [task, said], [said, task]):
        with pytest.raises(errors.ConfigError, match=f"config.objective = '{objective}': expected .*classification"):
            resolution.resolve(config.Config(), *layers)
    assert resolution.resolve(config.Config(), task).objective == "classification"
    # A default that stands for a derived value is derived, also where it is set: so its help says.
    assert resolution.resolve(config.Config(), {"model.width": 0}).model.width > 0


def test_the_origin_of_each_value_is_where_it_comes_from():
    """A value is its default, or its layer's, or follows from the fields that are named with their values."""
    derived = {row.field: row for row in resolution.DERIVED_FIELDS}
    for below, above in itertools.product(CHOICES, CHOICES[:3]):
        layers = [fields.Layer("a.py", below), fields.Layer("command line", above | {"seed": 0, "train.steps": 7})]
        try:
            resolved = resolution.resolve_layers(layers)
        except errors.ConfigError:
            continue
        flat = fields.flatten(resolved.config)
        assert list(flat) == list(resolved.origins) and resolved.origins["seed"] == "command line"
        for name, origin in resolved.origins.items():
            if origin == "default":
                assert flat[name] == fields.DEFAULT[name]
            elif origin in ("a.py", "command line"):
                layer = layers[origin == "command line"].values
                assert flat[name] == layer[name] and (origin == "command line" or name not in layers[1].values)
            else:
                causes = [name for name in derived[name].depends_on if f"{name} = {flat[name]!r}" in origin.split(", ")]
                assert flat[name] != fields.DEFAULT[name] and causes and origin.count(" = ") == len(causes)


def test_print_config_shows_origins_and_touches_no_device_and_no_disk(tmp_path, monkeypatch, capsys):
    recipe = tmp_path / "recipe.py"
    recipe.write_text("import mlm\n\ndef get_config():\n    return mlm.Config(seed=3, model=mlm.Config().model)\n")
    for name in ("devices", "local_devices", "device_count", "local_device_count", "process_count"):
        monkeypatch.setattr(jax, name, None)
    monkeypatch.chdir(tmp_path)
    train.main(["train", f"--config={recipe}", "model.size=micro", "--print_config", "--extend_to=9"])
    lines = dict(re.split(r"  +", line) for line in capsys.readouterr().out.splitlines())
    assert len(lines) == len(fields.DEFAULT) and lines["pack.seq_len = 128"] == "default"
    assert lines["seed = 3"] == str(recipe) and lines["model.size = 'micro'"] == "command line"
    assert lines["model.width = 64"] == "model.size = 'micro', model.family = 'transformer'"
    assert lines["train.steps = 9"] == "--extend_to=9"
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.py"]
    with pytest.raises(errors.ConfigError, match=r"config\.train\.steps = 0: expected"):
        train.main(["train", "--print_config", "train.steps=0"])


def test_the_fields_of_a_point_show_the_layer_that_set_them(tmp_path, monkeypatch, capsys):
    """Defaults, size, recipe, row of the experiment, command line, budget; the values are those the sweep trains."""
    monkeypatch.chdir(tmp_path)
    experiment, recipe = tmp_path / "ask.py", tmp_path / "recipe.py"
    experiment.write_text(
        "SCALES = {'quick': {'model.size': 'micro', 'train.steps': 8}}\n"
        "def sweep(scale):\n"
        "    return {f'rate{r}': SCALES[scale] | {'mask.rate': r, 'model.num_heads': 2} for r in (0.2, 0.4)}\n"
        "def table(results):\n    return [], []\n"
    )
    recipe.write_text("import mlm\n\ndef get_config():\n    return mlm.Config(seed=3)\n")
    words = [str(experiment), f"--config={recipe}", "--budget=predictions", "model.num_heads=1"]
    sweep.main(["sweep", "list", *words, "--points=rate0.4", "--print_config"])
    first, *lines = capsys.readouterr().out.splitlines()
    origins = dict(re.split(r"  +", line) for line in lines)
    row = f"{experiment}: rate0.4"
    assert len(origins) == len(fields.DEFAULT) and origins["pack.seq_len = 128"] == "default"
    assert origins["seed = 3"] == str(recipe) and origins["mask.rate = 0.4"] == row == origins["model.size = 'micro'"]
    assert origins["model.num_heads = 1"] == "command line" and origins["train.steps = 4"] == "--budget=predictions"
    assert origins["model.width = 64"] == "model.size = 'micro', model.family = 'transformer'"
    assert origins[f"workdir = {first.partition(':')[0]!r}"] == "the sweep"


def test_the_language_s_rules_say_what_is_so():
    """Equal documents whatever an unread knob is, and other ones where it is read."""

    def draw(**knobs):
        language = dataclasses.replace(config.Language(max_words=20), **knobs)
        return [next(grammar.iterate_documents(language, start)) for start in (0, 1000)]

    for where, knobs in (
        ("modifier_prob", {"modifier_continue_prob": 0.9, "attractor_prob": 0.9}),
        ("protagonist_prob", {"recall_prob": 0.1}),
    ):
        for name, value in knobs.items():
            assert draw(**{where: 0.0}) == draw(**{where: 0.0, name: value})
            language = [dataclasses.replace(config.Language(max_words=20), **{name: v}) for v in (0.4, 0.1)]
            a, b = (grammar.build_grammar(one).hmm for one in language)
            assert not all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
