"""Blocks of docs/extending.md are complete: files with their lines have the choice, and torch computes what JAX does."""

import dataclasses
import re
import types
from pathlib import Path

import numpy as np
import pytest
from small import small_config

from mlm.base import fields

ROOT = Path(__file__).parents[1]
MODEL = small_config().model
X_BxLxD = np.random.default_rng(0).normal(size=(2, 9, MODEL.width)).astype(np.float32)


def change_files(title: str, field: str, choice: str):
    """(the model with the choice; the changed files of a section: of JAX, of torch), after a look at the config."""
    pages = re.split("^## ", (ROOT / "docs/extending.md").read_text(), flags=re.MULTILINE)
    (page,) = (page for page in pages if page.startswith(f"{title}\n"))
    _, *parts = re.split(r"^--- (.*)\n", re.findall(r"```diff\n(.*?)```", page, re.DOTALL)[0], flags=re.MULTILINE)
    modules = []
    for path, diff in zip(parts[::2], parts[1::2], strict=True):
        lines, text = diff.splitlines(keepends=True), (ROOT / path).read_text()
        old, new = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
        assert text.count(old) == 1, (path, old)
        module = types.ModuleType(path.removesuffix(".py").replace("/", "."))
        module.__package__ = module.__name__.rpartition(".")[0]
        exec(text.replace(old, new), vars(module))
        modules.append(module)
    changed_config, *both = modules
    declaration = dict(fields.list_declarations(changed_config.Config))[f"model.{field}"]
    assert choice in declaration.choices and choice in declaration.facts["help"]
    return dataclasses.replace(MODEL, **{field: choice}), *both


def test_an_activation():
    torch = pytest.importorskip("torch")
    model, ours, theirs = change_files("An activation", "activation", "mish")
    expected = X_BxLxD * np.tanh(np.log1p(np.exp(X_BxLxD)))
    np.testing.assert_allclose(ours.activate(model, X_BxLxD), expected, atol=1e-6)
    np.testing.assert_allclose(theirs.MLP(model).activation(torch.from_numpy(X_BxLxD)), expected, atol=1e-6)


def test_a_norm():
    torch = pytest.importorskip("torch")
    model, ours, theirs = change_files("A norm", "norm", "l1norm")
    scale_D, there = np.arange(1, MODEL.width + 1, dtype=np.float32), theirs.Norm(model, MODEL.width)
    expected = scale_D * X_BxLxD / (np.abs(X_BxLxD).mean(-1, keepdims=True) + model.norm_eps)
    np.testing.assert_allclose(ours.norm(model).apply({"params": {"scale": scale_D}}, X_BxLxD), expected, rtol=1e-5)
    there.load_state_dict({"scale": torch.from_numpy(scale_D)})
    np.testing.assert_allclose(there(torch.from_numpy(X_BxLxD)).detach(), expected, rtol=1e-5)


def test_a_position_scheme():
    torch = pytest.importorskip("torch")
    model, ours, theirs = change_files("A position scheme", "positions", "log")
    head_H, place_L = np.arange(1, model.num_heads + 1), np.arange(9)
    expected = -head_H[:, None, None] * np.log(1 + abs(place_L - place_L[:, None]))
    context = ours.make_context(model, np.ones((1, 1, 9, 9), bool))
    np.testing.assert_allclose(context.bias_BxHxLxS[0], expected, rtol=1e-5)
    mask_BxHxLxL, *_ = theirs.Encoder(model).make_context(torch.ones(1, 9, dtype=torch.long), False)
    np.testing.assert_allclose(mask_BxHxLxL[0].detach(), expected, rtol=1e-5)
