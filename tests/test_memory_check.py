"""What cannot fit this machine is refused before anything is allocated; what can is not."""

import re

import pytest
from small import MEMBERS, get_refusal

from mlm.base import config, fields
from mlm.models import lm
from mlm.training.compilation import cost
from mlm.training.run import resolution
from mlm.training.step import parallel, program


def resolve(**changes):
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return resolution.resolve(fields.override(config.Config(), {"data.corpus": "docstrings"} | changes))


@MEMBERS
def test_the_least_is_no_more_than_the_state_and_the_gradient(family, cell):
    cfg = resolve(model__family=family, model__cell=cell, model__num_layers=3, tokenizer__vocab_size=3000)
    parameters = lm.count_parameters(cost.make_abstract_state(program.make_static_config(cfg), 3000).params["model"])[
        "parameters"
    ]
    least = cost.compute_min_memory(cfg) - cost.compute_activation_memory(cfg)
    assert 0.2 * 16 * parameters < least <= 16 * parameters


@pytest.mark.exhaustive(but=("changes2", "changes3"))
@pytest.mark.parametrize(
    "changes",
    [
        {"model__num_layers": 2**31 - 1},
        {"model__width": 2**31 - 2, "model__num_heads": 2, "model__positions": "learned"},
        {"model__max_positions": 2**31 - 1, "model__positions": "learned"},
        {"model__family": "feedforward", "model__window": 60_000, "model__width": 2048, "pack__seq_len": 65_535},
        {"tokenizer__vocab_size": 2**31 - 1},
        {"train__batch_size": 2**31 - 8},
        {"eval__batch_size": 2**31 - 4},
    ],
)
def test_what_cannot_fit_is_refused_with_what_it_takes(changes, monkeypatch):
    monkeypatch.setattr(parallel, "device_memory", lambda: 25 * 10**9)
    cfg = resolve(**changes)
    resolution.check(cfg)
    line = get_refusal(cost.check_memory, cfg)
    assert re.search(r"needs at least [\d,]+ GB, and a device here has 25", line) and "mlm sweep plan" in line
