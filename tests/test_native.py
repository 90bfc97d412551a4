"""The recurrence that the machine's compiler makes has the values and gradients of the plain formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import batch, small_config
from test_fast import VOCAB, near

from mlm.models import MODELS, native, rnn
from mlm.models.native import library

CELLS = ("elman", "gru", "lstm")
compiler = pytest.mark.skipif(not library.get_ffi_target(), reason="no C++ compiler makes mlm/models/native here")


def given(cell, hidden=37, rows=11, length=9, directions=2, dtype="float32"):
    """Kernels, biases and inputs of each direction, and where states go on: rows of several segments. No size fits the
    tiles that products are made in."""
    rng, width = np.random.default_rng(0), rnn.CELLS[cell].gates * hidden
    draw = lambda *shape: tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(directions))
    kernels = tuple((kernel / hidden**0.5).astype(dtype) for kernel in draw(hidden, width))
    same = tuple(jnp.asarray(rng.uniform(size=(length, rows)) < 0.8) for _ in range(directions))
    return (kernels, draw(width), draw(length, rows, width)), same


def plainly(cell, kernels, biases, inputs, same):
    return tuple(
        rnn.scan_cell(rnn.CELLS[cell], kernel, bias, x, s, 1)
        for kernel, bias, x, s in zip(kernels, biases, inputs, same, strict=True)
    )


def gradient(recur, same):
    """Of a loss that weighs every unit of every state otherwise."""

    def loss(kernels, biases, inputs):
        h = recur(kernels, biases, inputs, same)
        weight = jnp.cos(jnp.arange(h[0].size, dtype=jnp.float32)).reshape(h[0].shape)
        return sum((h_LxBxH * weight).sum() for h_LxBxH in h), h

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))


@compiler
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_as_the_plain_formula(cell, directions):
    arguments, same = given(cell, directions=directions)
    ((_, h), found), ((_, plain_h), plain) = (
        gradient(functools.partial(recur, cell), same)(*arguments) for recur in (native.scan_cell, plainly)
    )
    near(h, plain_h, 1e-5)
    near(found, plain, 1e-5)


@compiler
@pytest.mark.parametrize("cell", CELLS)
def test_in_bfloat16_operands_are_rounded_and_sums_are_not(cell):
    """As float32 products of the rounded operands: of two tokens, as a longer row's roundings part."""
    arguments, same = given(cell, length=2, dtype="bfloat16")
    (_, h), found = gradient(functools.partial(native.scan_cell, cell), same)(*arguments)

    def rounded(x):
        return jax.lax.reduce_precision(x, 8, 7)

    (kernels, biases, inputs) = arguments
    zeros = [jnp.zeros((11, 37))] * rnn.CELLS[cell].carries
    for kernel, bias, x, s, h_LxBxH in zip(kernels, biases, inputs, same, h, strict=True):
        kernel_HxG = kernel.astype(jnp.float32)
        first = rnn.CELLS[cell].step(x[0], bias, tuple(zeros))
        kept = tuple(jnp.where(s[1][:, None], c, 0) for c in first)
        second = rnn.CELLS[cell].step(x[1], rounded(kept[0]) @ kernel_HxG + bias, kept)
        near(h_LxBxH, jnp.stack([first[0], second[0]]), 1e-5)
    assert [d.dtype for d in found[0]] == [jnp.bfloat16] * 2
    near(
        found,
        gradient(functools.partial(plainly, cell), same)(
            tuple(kernel.astype(jnp.float32) for kernel in kernels), biases, inputs
        )[1],
        0.03,
    )


@compiler
def test_members_of_a_population_each_have_their_own():
    arguments, same = given("gru", directions=1)
    several = jax.tree.map(lambda x: jnp.stack([x, 2 * x, -x]), arguments)
    both = [
        jax.vmap(gradient(functools.partial(recur, "gru"), same))(*several) for recur in (native.scan_cell, plainly)
    ]
    near(both[0], both[1], 1e-5)


@compiler
def test_states_that_are_not_numbers_stay_so():
    (kernels, biases, inputs), same = given("lstm")
    h = native.scan_cell(
        "lstm", kernels, biases, (inputs[0].at[3, 2, 5].set(jnp.nan), inputs[1]), tuple(jnp.ones_like(s) for s in same)
    )
    lost = np.isnan(h[0])
    assert lost[3, 2, 5] and lost[4:, 2].all() and lost.sum() == 1 + lost[4:, 2].size and not np.isnan(h[1]).any()


@compiler
def test_large_inputs_saturate():
    (kernels, biases, inputs), same = given("elman")
    h = native.scan_cell("elman", kernels, biases, tuple(1e30 * x for x in inputs), same)
    np.testing.assert_allclose(np.abs(h), 1, atol=1e-6)


def is_called():
    """Whether a recurrent model asks for it."""
    model = MODELS["rnn"].build(small_config("rnn", "gru", model__num_layers=1).model, VOCAB)
    params = jax.eval_shape(model.init, jax.random.key(0))
    return "ffi_call" in str(jax.make_jaxpr(model.encode)(params, batch(2, length=5).text))


@compiler
def test_models_ask_for_it():
    assert is_called()


@compiler
def test_a_library_that_cannot_be_loaded_is_made_again(tmp_path):
    path = tmp_path / "deep" / "broken.so"
    path.parent.mkdir()
    path.write_bytes(b"no library")
    assert library.load_function(path) and [file.name for file in path.parent.iterdir()] == ["broken.so"]


@pytest.mark.parametrize("lacks", ["compiler", "success", "place"])
def test_where_it_cannot_be_made_models_do_without(lacks, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    if lacks == "place":
        (tmp_path / "here").write_text("a file")
    else:
        monkeypatch.setattr(
            library, "COMPILER_COMMAND", {"compiler": ("no-such-compiler",), "success": ("false",)}[lacks]
        )
    library.get_ffi_target.cache_clear()
    try:
        assert library.get_ffi_target() is None and not is_called()
    finally:
        library.get_ffi_target.cache_clear()
