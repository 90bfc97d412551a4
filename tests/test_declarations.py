"""What is declared of a field holds: its choices are those of the code that reads it, and its help names them."""

import pytest

from mlm.base import fields, types
from mlm.data.language import grammar
from mlm.data.rows import packing
from mlm.data.text import corpus
from mlm.data.tokenizers import kinds
from mlm.models import layers, remat_policies
from mlm.objectives import OBJECTIVES, heads, masking
from mlm.training.step import optim, parallel
from mlm.training.step.optimizers import OPTIMIZERS


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("objective", OBJECTIVES),
        ("data.corpus", [*corpus.CORPORA, "task", "auto"]),
        ("tokenizer.kind", kinds.KINDS),
        ("pack.mode", packing.PACKERS),
        ("mask.schedule", masking.MaskSchedule),
        ("model.directionality", types.Directionality),
        ("model.activation", [*heads.ACTIVATIONS, "relu2", *layers.GATES]),
        ("model.lm_head_activation", heads.ACTIVATIONS),
        ("model.remat_policy", remat_policies.POLICIES),
        ("optim.optimizer", OPTIMIZERS),
        ("optim.schedule", optim.Schedule),
        ("optim.decay_shape", optim.DecayShape),
        ("optim.loss_reduction", optim.LossReduction),
        ("finetune.pooling", types.Pooling),
        ("parallel.mode", parallel.MODES),
    ],
)
def test_the_choices_are_those_of_the_code(name, names):
    assert sorted(fields.DECLARATIONS[name].facts["choices"]) == sorted(names)


def test_the_bounds_are_those_of_the_code():
    bounds = {name: declaration.facts.get("bounds") for name, declaration in fields.DECLARATIONS.items()}
    assert bounds["data.language.num_topics"].high == len(grammar.TOPICS)
    assert bounds["data.language.num_names"].high == len(grammar.NAMES.split())
    for name, value in fields.DEFAULT.items():
        assert (bounds[name] is not None) == (type(value) in (int, float, tuple)), name


def test_the_help_names_each_choice():
    for name, (_, _, facts) in fields.DECLARATIONS.items():
        if name != "model.lm_head_activation":  # which refers to another field's
            assert all(choice in facts["help"] for choice in facts.get("choices", ())), name
