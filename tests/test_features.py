"""What labelled objectives read of a model's layers, and the recurrent head on it, by numpy."""

import functools

import jax
import numpy as np
import pytest
from scipy.special import expit, softmax
from small import LABELLED, PLAIN, batch, make_dataset_info, replace_text, small_config

from mlm.base import types
from mlm.objectives import OBJECTIVES, heads, tagging

LAYERS, ROWS, WIDTH = 5, 3, 6
H_KxBxLxD = np.random.default_rng(0).normal(size=(LAYERS + 1, ROWS, 16, WIDTH)).astype(np.float32)
READ = {  # what is read of token l of row b, by config.finetune.layer_features
    "last": lambda h, mixed: h[5],
    "second_to_last": lambda h, mixed: h[4],
    "0": lambda h, mixed: h[0],
    "2": lambda h, mixed: h[2],
    "concat4": lambda h, mixed: np.concatenate(h[2:], -1),
    "sum4": lambda h, mixed: mixed(h[2:]),
    "mix": lambda h, mixed: mixed(h[1:]),
}


def make_config(features="last", layers=LAYERS, **changes):
    return small_config(
        **{
            "objective": "tagging",
            **PLAIN,
            "model__num_layers": layers,
            "finetune__layer_features": features,
            **changes,
        }
    )


def model(keys=None):
    """One whose layers are given; keys: takes those that it was to drop by."""
    keys = [] if keys is None else keys

    def every(params, text, source, *, key_B):
        keys.append(key_B)
        return H_KxBxLxD.reshape(LAYERS + 1, *text.ids_BxL.shape, WIDTH)

    return types.Model(
        ("both",), WIDTH, dict, lambda *args, **key: (every(*args, **key)[-1],), None, encode_layers=every
    )


def draw_values(params):
    """The same tree, no leaf of it of special values."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)


@pytest.mark.parametrize("asked", READ)
def test_features_are_those_of_the_layers_asked_for(asked):
    cfg = make_config(asked)
    of = draw_values(heads.init_features(cfg))

    def mixed(h_KxBxLxD):
        return of["mix"]["scale"] * np.tensordot(softmax(of["mix"]["logits"]), h_KxBxLxD, 1)

    found = heads.read_features(cfg, {"model": {}, "objective": of}, model(), batch(ROWS), None)
    np.testing.assert_allclose(found, READ[asked](H_KxBxLxD, mixed), rtol=1e-5, atol=1e-6)
    assert found.shape[-1] == heads.compute_width(cfg, model())
    alike = heads.read_features(cfg, {"model": {}, "objective": heads.init_features(cfg)}, model(), batch(ROWS), None)
    np.testing.assert_allclose(alike, READ[asked](H_KxBxLxD, lambda h: h.mean(0)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trained", [-1, 0])
@pytest.mark.parametrize("asked", ["last", "mix"])
@pytest.mark.parametrize("objective", LABELLED)
def test_a_model_that_is_not_trained_drops_nothing(objective, asked, trained):
    cfg, keys = make_config(asked, objective=objective, finetune__trainable_layers=trained), []
    of = OBJECTIVES[objective].build(cfg, make_dataset_info(cfg))
    hparams = types.TracedHparams(0, 0.0, 0.0, OBJECTIVES[objective].eval_hparams(cfg))

    def losses(key):
        params, key_B = {"model": {}, "objective": of.init(key, model())}, jax.random.split(key, ROWS)
        return [
            of.loss(params, model(keys), batch(ROWS, labels=True), key_B, hparams, train=train)
            for train in (True, False)
        ]

    jax.eval_shape(losses, jax.random.key(0))
    assert [key is not None for key in keys] == [trained != 0, False]


def lstm(params, direction, x_LxI):
    """A direction's states along a row, word by word."""
    h_H = c_H = np.zeros(params["state"].shape[1])
    out = []
    for x_I in x_LxI:
        i, f, g, o = np.split(
            x_I @ params["input"][direction] + params["bias"][direction] + h_H @ params["state"][direction], 4
        )
        c_H = expit(f + 1) * c_H + expit(i) * np.tanh(g)
        h_H = expit(o) * np.tanh(c_H)
        out.append(h_H)
    return np.array(out)


def test_the_bilstm_reads_each_row_s_real_tokens_alone_in_both_directions():
    length_B = np.array([16, 9, 1])
    segments_BxL = 1 * (np.arange(16) < length_B[:, None])
    params = draw_values(jax.eval_shape(lambda key: tagging.init_bilstm(key, WIDTH, 4), jax.random.key(0)))
    found = np.asarray(jax.jit(functools.partial(tagging.apply_bilstm, unroll=3))(params, H_KxBxLxD[0], segments_BxL))
    for row, length in enumerate(length_B):
        x_LxI = H_KxBxLxD[0, row, :length]
        for name in ("lower", "upper"):
            x_LxI = np.concatenate([lstm(params[name], 0, x_LxI), lstm(params[name], 1, x_LxI[::-1])[::-1]], -1)
        np.testing.assert_allclose(found[row, :length], x_LxI, rtol=1e-4, atol=1e-5)


def test_every_part_of_a_tagger_on_a_mix_learns_and_padding_teaches_it_nothing():
    cfg = make_config("mix", finetune__trainable_layers=0, finetune__head="bilstm", finetune__head_dim=4)
    of, rows = OBJECTIVES["tagging"].build(cfg, make_dataset_info(cfg)), batch(ROWS, labels=True)
    params = {
        "model": {},
        "objective": draw_values(jax.eval_shape(lambda key: of.init(key, model()), jax.random.key(0))),
    }

    def value(head, rows):
        return of.loss(params | {"objective": head}, model(), rows, None, None, train=True).loss_B["tagging"].sum()

    slope = jax.jit(jax.value_and_grad(value))
    loss, gradient = slope(params["objective"], rows)
    assert all((np.abs(leaf) > 0).any() for leaf in jax.tree.leaves(gradient))
    padding = rows.text.segments_BxL == 0
    moved = rows._replace(labels={"tag_BxL": np.where(padding, 2, rows.labels["tag_BxL"])})
    assert slope(params["objective"], replace_text(moved, ids_BxL=np.where(padding, 9, rows.text.ids_BxL)))[0] == loss
