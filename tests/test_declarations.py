"""What is declared of a field holds: its choices are those of the code that reads it, and its help names them."""

import json
import math
import subprocess
import sys

import pytest

from mlm.base import config, errors, fields, types
from mlm.data.language import lexicon
from mlm.data.rows import packing
from mlm.data.text import corpus
from mlm.data.tokenizers import kinds
from mlm.models import layers, stack
from mlm.objectives import heads, masking
from mlm.training.run import resolution


@pytest.mark.parametrize(
    ("name", "names", "where"),
    [
        ("data.corpus", [*corpus.CORPORA, "task", "auto"], "CORPORA of mlm/data/text/corpus.py"),
        ("tokenizer.kind", kinds.KINDS, "KINDS of mlm/data/tokenizers/kinds.py"),
        ("pack.mode", packing.PACKERS, "PACKERS of mlm/data/rows/packing.py"),
        ("mask.schedule", masking.MaskSchedule, "MaskSchedule of mlm/objectives/masking.py"),
        ("model.directionality", types.Directionality, "Directionality of mlm/base/types.py"),
        ("model.norm", layers.NORMS, "NORMS of mlm/models/layers.py"),
        ("model.activation", layers.ACTIVATIONS | layers.GATES, "ACTIVATIONS and GATES of mlm/models/layers.py"),
        ("model.lm_head_activation", heads.ACTIVATIONS, "ACTIVATIONS of mlm/objectives/heads.py"),
        ("model.remat_policy", stack.POLICIES, "POLICIES of mlm/models/stack.py"),
        ("finetune.pooling", types.Pooling, "Pooling of mlm/base/types.py"),
    ],
)
def test_the_choices_are_those_of_the_code(name, names, where):
    choices, entries = {*fields.DECLARATIONS[name].choices}, {*names}
    assert choices <= entries, f"config.{name} has choices that {where} lacks: {sorted(choices - entries)}"
    assert choices >= entries, f"{where} has entries that are no choices of config.{name}: {sorted(entries - choices)}"


def test_the_bounds_are_those_of_the_code():
    bounds = {name: declaration.bounds for name, declaration in fields.DECLARATIONS.items()}
    assert bounds["data.language.num_topics"].high == len(lexicon.TOPICS)
    assert bounds["data.language.num_names"].high == len(lexicon.SHARED["name"])
    for name, value in fields.DEFAULT.items():
        assert (bounds[name] is not None) == (type(value) in (int, float, tuple)), name


def test_a_number_beyond_its_bounds_is_refused_and_its_default_is_not():
    for name, (default, number_type, bounds, *_) in fields.DECLARATIONS.items():
        if bounds:
            low, high = bounds[:2]
            for number in (low - 1, low - 2, *([high + 1, 1.5 * high] if high < math.inf else [])):
                value = number_type(number)
                if value != default:
                    changes = {name: (value,) if type(default) is tuple else value}
                    with pytest.raises(errors.ConfigError) as caught:
                        fields.check_values(fields.override(config.Config(), changes))
                    assert str(caught.value) == f"config.{name} = {value!r}: expected {bounds}"
    fields.check_values(config.Config())


def test_a_text_that_is_no_choice_is_refused_with_the_nearest():
    for name, declaration in fields.DECLARATIONS.items():
        if choices := declaration.choices:
            for choice in choices:
                fields.check_values(fields.override(config.Config(), {name: choice}))
            wrong = max(choices, key=len) + "x"
            with pytest.raises(errors.ConfigError) as caught:
                fields.check_values(fields.override(config.Config(), {name: wrong}))
            assert str(caught.value).startswith(f"config.{name} = {wrong!r}: expected one of ")
            assert str(caught.value).endswith(f"did you mean {wrong[:-1]!r}?")


def test_what_json_stores_of_a_config_overrides_to_the_same_config():
    """Of each field another value than its default, of its type."""
    kinds = {name: (type(one.default), one.number_type) for name, one in fields.DECLARATIONS.items()}
    others = {name: (number(7),) if kind is tuple else kind(7) for name, (kind, number) in kinds.items()}
    others |= {name: not fields.DEFAULT[name] for name, (kind, _) in kinds.items() if kind is bool}
    cfg = fields.override(config.Config(), others)
    stored = json.loads(json.dumps(fields.flatten(cfg)))
    assert fields.override(config.Config(), stored) == cfg
    assert not any(value == fields.DEFAULT[name] for name, value in fields.flatten(cfg).items())


def test_the_help_names_each_choice():
    for name, (*_, choices, facts) in fields.DECLARATIONS.items():
        if name != "model.lm_head_activation":  # which refers to another field's
            assert all(choice in facts["help"] for choice in choices), name


NEW_FIELD = """
from mlm.base import config

@config.section
class Noise:
    share: config.Fraction = config.field(
        0.0, "share of noise", when={"objective": "mlm"}, role=config.Role.TRACED
    )

@config.section
class Config(config.Config):
    noise: Noise = config.subsection(Noise)

config.Config = Config
from mlm.base import fields
from mlm.cli import config_help
from mlm.training.run import resolution
from mlm.training.step import program

def refuse(changes):
    try:
        resolution.resolve(Config(), changes)
    except ValueError as error:
        return str(error)

assert refuse({"noise.share": 1.5}) == "config.noise.share = 1.5: expected 0 <= value <= 1"
assert refuse({"noise.sahre": 0.5}).endswith("did you mean config.noise.share?")
unread = refuse({"noise.share": 0.5, "objective": "causal"})
assert unread.startswith("config.noise.share = 0.5: nothing reads it, since config.objective is 'causal', not mlm")
plain, noisy = (resolution.resolve(Config(), {"noise.share": share}) for share in (0.0, 0.5))
assert fields.fingerprint(plain) != fields.fingerprint(noisy)
assert program.make_static_config(plain) == program.make_static_config(noisy)
config_help.main(["config", "--search=noise"])
"""
TASK_NAMES = """
from mlm.evaluation import finetuned_tasks

tuned = resolution.resolve(config.Config(), {"downstream.tasks": "topic"})
print(*(case.name for case in finetuned_tasks.list_due_cases(tuned)))
"""


def test_a_new_field_is_one_declaration(capsys):
    """Checks, nearest names, conditions, help, fingerprint and static config see it; scores of before stay in use."""
    done = subprocess.run([sys.executable, "-c", NEW_FIELD + TASK_NAMES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    exec(TASK_NAMES, {"config": config, "resolution": resolution})
    assert done.stdout == f"noise.share = 0.0 (float)\n    share of noise\n{capsys.readouterr().out}"
