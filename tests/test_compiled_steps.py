"""Steps that libtpu compiles for TPUs that are not here: their memory and collectives stay within 5% of these figures.

A change that moves one on purpose writes the new figure down, here and in docs/scaling.md.
"""

from typing import NamedTuple

import pytest
from test_target_compiler import make_target, needs

from mlm.base import config, fields
from mlm.launch.sweep import target_compiler
from mlm.training.run import resolution
from mlm.training.step import program

VOCAB = 30_522
BERT = {
    "data.corpus": "docstrings",
    "tokenizer.vocab_size": VOCAB,
    "model.norm_placement": "post",
    "model.dtype": "bfloat16",
    "model.attention_dropout": 0.0,
}


class CompiledStep(NamedTuple):
    """A step's config and what its compiler planned, per device."""

    accelerator: str
    changes: dict
    temporaries: float  # GB
    collectives: dict[str, float]  # GB of full arrays a step
    cycles: float  # millions


STEPS = {}


@pytest.mark.slow
@needs("v5e-4")
@pytest.mark.parametrize("name", STEPS)
def test_memory_and_collectives_are_those_that_were_written_down(name):
    step = STEPS[name]
    cfg = resolution.resolve(fields.override(config.Config(), BERT | step.changes))
    with target_compiler.open_compiler(make_target(step.accelerator)) as compile_step:
        cost = compile_step(program.make_static_config(cfg), VOCAB)
    found = {kind: size / 1e9 for kind, size in cost.collective_bytes.items() if size}
    assert found == pytest.approx(step.collectives, rel=0.05)
    assert cost.temporaries / 1e9 == pytest.approx(step.temporaries, rel=0.05)
    assert cost.cycles / 1e6 == pytest.approx(step.cycles, rel=0.05)
