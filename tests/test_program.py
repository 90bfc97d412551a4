"""Runs that differ in traced values alone share one compiled program, and end as they would without sharing."""

import contextlib
import functools
import json
import pickle

import jax
import numpy as np
import pytest
from small import drawn_config, train_config

from mlm.base import fields
from mlm.data.rows import pack
from mlm.training.compilation import cost
from mlm.training.run import loop
from mlm.training.step import program
from mlm.training.validation import references

pytestmark = pytest.mark.slow

OTHER = {
    "seed": 3,
    "mask__rate": 0.4,
    "mask__mask_token_prob": 0.5,
    "optim__learning_rate": 3e-3,
    "optim__weight_decay": 0.1,
}
COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    return drawn_config(
        folder / "cache",
        "feedforward",
        "window",
        model__num_layers=1,
        train__steps=8,
        train__batch_size=8,
        train__log_every=1,
        eval__batch_size=20,
        data__language__validation_documents=20,
        mask__max_rate=0.5,
        workdir=str(folder),
    )


def member(cfg, name, **changes):
    changes = {field.replace("__", "."): value for field, value in changes.items()}
    return fields.override(cfg, changes | {"workdir": f"{cfg.workdir}/{name}"})


@contextlib.contextmanager
def compilations():
    found = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **about: found.append(about) if name == COMPILED else None
    )
    try:
        yield found
    finally:
        jax.monitoring.clear_event_listeners()


@pytest.mark.exhaustive  # a value in a program's text is refused: test_a_hidden_field_cannot_be_read_by_mistake
def test_a_second_run_compiles_nothing_and_ends_as_if_it_were_alone(cfg, monkeypatch):
    train_config(member(cfg, "first"))
    with compilations() as compiled:
        after = train_config(member(cfg, "after", **OTHER))
        assert compiled == []
        monkeypatch.setattr(program, "_build_cached", functools.cache(program._build_cached.__wrapped__))
        alone = train_config(member(cfg, "alone", **OTHER))
        assert compiled
    for name in ("evaluation", "tokens", "predictions", "flops"):
        assert json.dumps(after[name]) == json.dumps(alone[name]), name
    assert alone["realised_rate"] == pytest.approx(0.4, abs=0.02)


def test_what_is_asked_of_held_out_rows_is_one_program(cfg):
    """Its operations one by one would each be compiled at every start: seconds of it."""
    few = fields.override(cfg, {"eval.max_examples": 7})  # as many as no other run here has
    packed = pack.load_dataset(few)
    made = program.build_program(few, packed.dataset_info)
    with compilations() as compiled:
        asked_NxL = references.compute_eval_mask(few, made, packed)
    assert len(asked_NxL) == 7 and len(compiled) == 1


@pytest.mark.exhaustive
def test_room_for_more_masks_than_the_rate_asks_for_changes_no_result(cfg):
    configs = [member(cfg, f"room-{rate}", mask__max_rate=rate) for rate in (0.15, 0.5)]
    tight, roomy = map(loop.train, configs)
    assert tight["fingerprint"] == roomy["fingerprint"]
    assert len({cost.count_step_flops(cfg, tight["vocab_size"]) for cfg in configs}) == 1
    assert tight["predictions"] == roomy["predictions"]
    for name, value in tight["evaluation"].items():
        assert roomy["evaluation"][name] == pytest.approx(value, rel=1e-5), name


def test_every_field_is_either_traced_or_outside_or_asks_for_a_program_of_its_own(cfg):
    """A field that a knob carries or no compiled function reads is blanked; any other tells programs apart."""
    for name, value in fields.flatten(cfg).items():
        change = {bool: lambda x: not x, str: lambda x: f"{x}!", tuple: lambda x: (*x, 0.5)}.get(
            type(value), lambda x: x + 1
        )
        other = fields.override(cfg, {name: "nsp" if name == "objective" else change(value)})
        is_shared = program.make_static_config(other) == program.make_static_config(cfg)
        assert is_shared == (name in program.HIDDEN_FIELDS), name


def test_a_hidden_field_cannot_be_read_by_mistake(cfg):
    """Its value is no default in the run's place: a branch, a comparison, arithmetic and text all refuse it."""
    static = program.make_static_config(cfg)
    for use in (
        lambda: static.mask.rate * 2,
        lambda: 1 - static.mask.rate,
        lambda: np.float32(static.optim.learning_rate),
        lambda: bool(static.mask.static_masks),
        lambda: static.mask.schedule == "linear",
        lambda: static.mask.schedule in ("linear", "cosine"),
        lambda: static.seed > 0,
        lambda: f"{static.workdir}/log",
        lambda: program.make_train_hparams(static),
    ):
        with pytest.raises(TypeError, match=r"config\.[a-z_.]+: a compiled function cannot read it"):
            use()
    assert static.model == cfg.model and static == pickle.loads(pickle.dumps(static)) and hash(static) is not None
    assert program.make_static_config(static) == static
    filled = program.fill_hidden_fields(static)
    assert filled.mask.rate == fields.DEFAULT["mask.rate"] and program.make_static_config(filled) == static
