"""Blocks of docs/extending.md are complete: files with their lines have the choice, and torch computes what JAX does."""

import dataclasses
import types

import numpy as np
import pytest
from small import ROOT, read_example, small_config

from mlm.base import fields

MODEL = small_config().model
X_BxLxD = np.random.default_rng(0).normal(size=(2, 9, MODEL.width)).astype(np.float32)


def change_file(title: str, path: str) -> types.ModuleType:
    """A file with the lines of an example, as a module."""
    (old, new), text = read_example(title)[path], (ROOT / path).read_text()
    assert text.count(old) == 1, old
    module = types.ModuleType(path.removesuffix(".py").replace("/", "."))
    module.__package__ = module.__name__.rpartition(".")[0]
    exec(text.replace(old, new), vars(module))
    return module


def choose(title: str, field: str, choice: str):
    """A model with the choice that an example adds to config.py."""
    declaration = dict(fields.list_declarations(change_file(title, "mlm/base/config.py").Config))[f"model.{field}"]
    assert choice in declaration.choices and choice in declaration.facts["help"] and len(read_example(title)) == 3
    return dataclasses.replace(MODEL, **{field: choice})


def test_an_activation():
    model, expected = choose("An activation", "activation", "mish"), X_BxLxD * np.tanh(np.log1p(np.exp(X_BxLxD)))
    ours_BxLxD = change_file("An activation", "mlm/models/layers.py").activate(model, X_BxLxD)
    np.testing.assert_allclose(ours_BxLxD, expected, atol=1e-6)
    torch = pytest.importorskip("torch")
    theirs = change_file("An activation", "mlm/models/hub/layers_mlm.py").MLP(model)
    np.testing.assert_allclose(theirs.activation(torch.from_numpy(X_BxLxD)), expected, atol=1e-6)


def test_a_norm():
    model, scale_D = choose("A norm", "norm", "l1norm"), np.arange(1, MODEL.width + 1, dtype=np.float32)
    expected = scale_D * X_BxLxD / (np.abs(X_BxLxD).mean(-1, keepdims=True) + model.norm_eps)
    ours = change_file("A norm", "mlm/models/layers.py").norm(model)
    np.testing.assert_allclose(ours.apply({"params": {"scale": scale_D}}, X_BxLxD), expected, rtol=1e-5)
    torch = pytest.importorskip("torch")
    theirs = change_file("A norm", "mlm/models/hub/layers_mlm.py").Norm(model, MODEL.width)
    theirs.load_state_dict({"scale": torch.from_numpy(scale_D)})
    np.testing.assert_allclose(theirs(torch.from_numpy(X_BxLxD)).detach(), expected, rtol=1e-5)


def test_a_position_scheme():
    model, place_L = choose("A position scheme", "positions", "log"), np.arange(9)
    expected = -np.arange(1, model.num_heads + 1)[:, None, None] * np.log(1 + abs(place_L - place_L[:, None]))
    context = change_file("A position scheme", "mlm/models/positions.py").make_context(
        model, np.ones((1, 1, 9, 9), bool)
    )
    np.testing.assert_allclose(context.bias_BxHxLxS[0], expected, rtol=1e-5)
    torch = pytest.importorskip("torch")
    theirs = change_file("A position scheme", "mlm/models/hub/encoders_mlm.py").Encoder(model)
    mask_BxHxLxL, *_ = theirs.make_context(torch.ones(1, 9, dtype=torch.long), False)
    np.testing.assert_allclose(mask_BxHxLxL[0].detach(), expected, rtol=1e-5)
