"""Fields that nothing reads: set, they are an error that says why; left below what took their reader, they are dropped.
"""
import dataclasses

import numpy as np
import pytest

from mlm.base import config, errors, fields, reads
from mlm.data.language import grammar
from mlm.data.tasks import tasks
from mlm.objectives import OBJECTIVES
from mlm.train import recipe

ALWAYS = {  # read by every run
    "seed", "workdir", "objective", "data.corpus", "data.cache", "tokenizer.path", "pack.length",
    "model.family", "model.cell", "model.size", "model.layers", "model.width", "model.hidden",
    "model.sees", "model.dropout", "model.init_std", "model.norm_eps", "model.dtype",
    "model.unroll", "model.remat", "model.fast", "model.plain",
    "optim.learning_rate", "optim.schedule", "optim.warmup_fraction", "optim.b1", "optim.b2", "optim.eps",
    "optim.weight_decay", "optim.clip", "optim.average", "train.steps", "train.batch_size", "train.accumulate",
    "train.eval_every", "train.checkpoint_every", "train.log_every", "train.spike", "start.run", "start.hub",
    "tune.layers", "tune.decay", "eval.seed", "eval.batch_size", "eval.max_rows", "parallel.mode"}
# Each choice that takes a reader away, with what else it needs.
CHOICES = [{"data.corpus": "language"} | choice for choice in (
    {}, {"data.corpus": "text", "data.path": "a.txt", "data.validation_path": "b.txt"},
    {"data.corpus": "tfds", "data.tfds_name": "lm1b"}, {"data.corpus": "docstrings"}, {"data.language.modifiers": 0.0},
    {"data.language.protagonist": 0.0}, {"objective": "causal"}, {"optim.schedule": "constant"},
    {"model.family": "feedforward"}, {"model.family": "rnn"}, {"model.family": "rnn", "model.cell": "elman"},
    {"model.family": "encoder_decoder", "objective": "denoise"},
    {"model.family": "encoder_decoder", "model.cell": "gru", "objective": "denoise"},
    {"data.corpus": "docstrings", "tokenizer.path": "a"})]
TASK = {"data.corpus": "task", "data.task_path": "a", "tokenizer.path": "b", "pack.length": 256}
CHOICES += [TASK | {"data.task": task} for task in ("sst2", "stsb", "wnut17", "squad")
            if tasks.TASKS[task].objective in OBJECTIVES]
CHOICES += [TASK | {"data.task": "ud_dep", "tune.layers": 0}]
PAIRS = {"data.corpus": "aligned", "objective": "causal", "model.family": "encoder_decoder"}
CHOICES += [PAIRS, PAIRS | {"data.aligned_path": "a"}]


def other(name):
    """A value of the field that is not its default."""
    named = {"model.norm": "post", "model.activation": "relu", "model.positions": "rotary", "model.segment_types": 1,
             "model.output": "plain", "downstream.variants": "tune.layers=0", "downstream.names": "topic"}
    if name in named:
        return named[name]
    value = fields.DEFAULT[name]
    return {str: lambda: "other", int: lambda: 7, bool: lambda: not value,
            float: lambda: 0.5 if value == 0.25 else 0.25,
            tuple: lambda: (7,) if int in map(type, value) else (0.25,)}[type(value)]()


def made(changes):
    return fields.override(config.Config(), changes)


def test_every_field_is_always_read_or_has_a_rule():
    ruled = {name for rule in recipe.READ for name in rule.names(fields.DEFAULT)}
    assert ruled | ALWAYS == set(fields.DEFAULT), "a new field: who reads it, and when?"
    assert not ruled & ALWAYS
    for rule in recipe.READ:
        assert rule.where in fields.DEFAULT and bool(rule.values) != bool(rule.unless)
        assert all(reads.Rule((field,), rule.where).names(fields.DEFAULT) for field in rule.fields)


def test_each_field_with_a_rule_is_refused_where_nothing_reads_it():
    refused = set()
    for choice in CHOICES:
        unread = reads.unread(recipe.READ, fields.flatten(recipe.resolve(made(choice))))
        for name, why in unread.items():
            if name in choice:
                continue
            with pytest.raises(errors.ConfigError) as error:
                recipe.resolve(made(choice | {name: other(name)}))
            message = str(error.value)
            assert message == f"config.{name} = {other(name)!r}: nothing reads it, since {why}; leave it out"
            refused.add(name)
    assert refused | ALWAYS == set(fields.DEFAULT)


def test_a_resolved_config_is_not_refused_for_what_was_filled():
    for choice in CHOICES:
        cfg = recipe.resolve(made(choice))
        assert recipe.resolve(cfg) == cfg


def test_what_a_later_layer_leaves_without_a_reader_is_dropped_and_what_it_sets_itself_is_refused():
    below = made({"data.language.train_documents": 7, "model.positions": "rotary"})
    text = {"data.path": "a.txt", "tokenizer.vocab_size": 100}
    assert recipe.resolve(below, text) == recipe.resolve(made(text | {"model.positions": "rotary"}))
    assert recipe.resolve(below, {}, text) == recipe.resolve(below, text, {})
    with pytest.raises(errors.ConfigError, match=r"train_documents = 9: nothing reads it, since config\.data\.corpus"):
        recipe.resolve(below, text | {"data.language.train_documents": 9})
    with pytest.raises(errors.ConfigError, match=r"heads = 8: nothing reads it, since config\.model\.family is 'rnn'"):
        recipe.resolve(made({"model.family": "rnn", "model.heads": 8}), text)  # a contradiction of its own
    template = made({"data.validation_path": "held.txt"})
    assert recipe.resolve(template, text).data.validation_path == "held.txt"


def test_the_language_s_rules_say_what_is_so():
    """Equal documents whatever an unread knob is, and other ones where it is read."""
    def draw(**knobs):
        language = dataclasses.replace(config.Language(words=20), **knobs)
        return [next(grammar.documents(language, start)) for start in (0, 1000)]

    for where, knobs in (("modifiers", {"continues": 0.9, "attractors": 0.9}), ("protagonist", {"recall": 0.1})):
        for name, value in knobs.items():
            assert draw(**{where: 0.0}) == draw(**{where: 0.0, name: value})
            language = [dataclasses.replace(config.Language(words=20), **{name: v}) for v in (0.4, 0.1)]
            a, b = (grammar.build(one).hmm for one in language)
            assert not all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", [name for name, value in fields.DEFAULT.items() if type(value) in (float, tuple)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e308, 1e-300])
def test_no_float_is_outside_float32(name, value):
    value = (value,) if type(fields.DEFAULT[name]) is tuple else value
    with pytest.raises(errors.ConfigError, match=rf"^config\.{name} = .*\bexpected\b"):
        recipe.check(recipe.resolve(made({name: value})))


@pytest.mark.parametrize("name", [name for name, value in fields.DEFAULT.items() if type(value) is int])
@pytest.mark.parametrize("value", [2**63, -2**63, 2**32])
def test_no_integer_is_outside_int32(name, value):
    with pytest.raises(errors.ConfigError, match=rf"^config\.{name} = -?\d+: expected"):
        recipe.check(recipe.resolve(made({name: value})))


@pytest.mark.parametrize("name", [name for name, value in fields.DEFAULT.items() if type(value) is str])
def test_no_text_holds_a_line_end_or_nul(name):
    for letter in "\0\n\r":
        with pytest.raises(errors.ConfigError, match=rf"^config\.{name} = "):
            recipe.check(recipe.resolve(made({name: f"a{letter}b"})))
