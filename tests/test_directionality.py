"""What each state of a model may know of its row, by model.directionality: both sides, the left, two stacks, or mixed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import ONE_SIDED, batch, build, make_dataset_info, mark_further, small_config

from mlm.objectives import OBJECTIVES

FAMILIES = [("feedforward", "bag"), ("rnn", "lstm"), ("transformer", "")]


def may_see(way, family, segments_L, window):
    """reach_LxL: whether the state of a token (the first L), of a way, may know of each other one."""
    places_L = np.arange(len(segments_L))
    ahead_LxL = places_L - places_L[:, None]  # how far right of the first the second stands
    near = True
    if family == "feedforward":
        near = {
            "bidirectional": (ahead_LxL != 0) & (np.abs(ahead_LxL) <= window),
            "left": -ahead_LxL < window,
            "right": ahead_LxL < window,
            "mixed": (-ahead_LxL < window) & (ahead_LxL <= window),
        }[way]
    side = {"left": ahead_LxL <= 0, "right": ahead_LxL >= 0}.get(way, True)
    return (segments_L == segments_L[:, None]) & near & side


@pytest.mark.parametrize(
    ("family", "cell", "sees"),
    mark_further(
        [(*member, sees) for member in ONE_SIDED for sees in ("bidirectional", "causal", "two_stack", "mixed")],
        [
            *(("transformer", "", sees) for sees in ("bidirectional", "causal", "two_stack", "mixed")),
            ("rnn", "lstm", "two_stack"),
            ("feedforward", "window", "causal"),
            ("mixer", "conv", "causal"),
        ],
    ),
)
def test_a_state_knows_of_the_tokens_that_its_way_may_see_and_of_no_other(family, cell, sees):
    """By its gradients: across segments, of padding, of past and future, of the token itself, through all layers."""
    cfg, rows = small_config(family, cell, model__directionality=sees, model__scan_unroll=1), batch()
    model, params, _ = build(cfg)
    left = {"left_B": np.array([True, False, True])} if sees == "mixed" else {}
    none_BxLxD = np.zeros((*rows.text.ids_BxL.shape, model.width), np.float32)
    toward_D = np.random.default_rng(0).normal(size=model.width).astype(np.float32)

    @jax.jit
    def reach(place_Q):
        _, back = jax.vjp(lambda shift: model.encode(params, rows.text, shift_BxLxD=shift, **left), none_BxLxD)

        def of(place, way):
            asked_L = jnp.arange(16) == place
            (slope_BxLxD,) = back(
                tuple(
                    (number == way) * asked_L[:, None] * jnp.broadcast_to(toward_D, none_BxLxD.shape)
                    for number in range(len(model.directions))
                )
            )
            return jnp.abs(slope_BxLxD).max(-1) > 0

        return jax.vmap(jax.vmap(of, (0, None)), (None, 0))(place_Q, jnp.arange(len(model.directions)))

    found_WxQxBxL = np.asarray(reach(jnp.arange(16)))
    for way, reach_QxBxL in zip(model.directions, found_WxQxBxL, strict=True):
        for row, segments_L in enumerate(rows.text.segments_BxL):
            said = "left" if left and left["left_B"][row] else way
            np.testing.assert_array_equal(reach_QxBxL[:, row], may_see(said, family, segments_L, 3), err_msg=way)


@pytest.mark.exhaustive(but=("transformer-",))
@pytest.mark.parametrize(("family", "cell"), mark_further(FAMILIES, FAMILIES[1:]))
def test_what_sees_by_row_gives_each_row_the_states_that_it_has_among_its_like(family, cell):
    cfg, rows = small_config(family, cell, model__directionality="mixed"), batch()
    model, params, _ = build(cfg)
    states = jax.jit(lambda left_B: model.encode(params, rows.text, left_B=left_B)[0])
    mixed = states(np.array([True, False, True]))
    left, whole = states(np.ones(3, bool)), states(np.zeros(3, bool))
    np.testing.assert_array_equal(mixed, np.stack([left[0], whole[1], left[2]]))
    np.testing.assert_allclose(whole, states(None), rtol=1e-5, atol=1e-5)
    assert np.abs(left - whole)[:, 2].max() > 1e-3


@pytest.mark.exhaustive(but=("transformer-",))
@pytest.mark.parametrize(("family", "cell"), mark_further(FAMILIES, FAMILIES[1:]))
def test_what_sees_both_sides_apart_is_two_that_see_the_left_of_one_row_and_of_the_turned_one(family, cell):
    """They share embeddings and output layer; layers and attention have the ways side by side."""
    model, params, _ = build(small_config(family, cell, model__directionality="two_stack"))
    left, _, _ = build(small_config(family, cell, model__directionality="causal"))
    text, shared = batch().text, {name: params[name] for name in {*params} - {"left", "right"}}
    both, encode_left = jax.jit(model.encode)(params, text), jax.jit(left.encode)
    for way, turn, found in zip(model.directions, (1, -1), both, strict=True):
        (alone,) = encode_left(shared | {"body": params[way]}, jax.tree.map(lambda x, turn=turn: x[:, ::turn], text))
        np.testing.assert_allclose(found, alone[:, ::turn], rtol=1e-5, atol=1e-5)
    layers_KxBxLxD = jax.jit(model.encode_layers)(params, text)
    np.testing.assert_allclose(
        layers_KxBxLxD[-1], np.concatenate(both, -1), rtol=1e-5, atol=1e-5
    )  # where weights are kept, attention takes the plain formula
    np.testing.assert_array_equal(*np.split(layers_KxBxLxD[0], 2, -1))
    if model.attention:
        left_KxBxHxLxL, right_KxBxHxLxL = np.split(np.asarray(jax.jit(model.attention)(params, text)), 2, 2)
        assert not np.triu(left_KxBxHxLxL, 1).any() and not np.tril(right_KxBxHxLxL, -1).any()
        np.testing.assert_allclose(right_KxBxHxLxL.sum(-1), 1, rtol=1e-5)


@pytest.mark.exhaustive
def test_causal_of_both_sides_apart_is_the_sum_of_two_that_read_the_row_and_the_turned_one():
    """Its weight, too: from the left the first token of a segment is given, from the right the last."""
    rows, found = batch(), {}
    turned = rows._replace(text=jax.tree.map(lambda x: x[:, ::-1], rows.text))
    for sees in ("two_stack", "causal"):
        cfg = small_config("rnn", "gru", objective="causal", model__directionality=sees)
        model, params, _ = build(cfg)
        loss = jax.jit(
            functools.partial(
                OBJECTIVES["causal"].build(cfg, make_dataset_info(cfg)).loss,
                model=model,
                key_B=None,
                hparams=None,
                train=False,
            )
        )
        found[sees] = params, loss
    params, loss = found["two_stack"]
    both = loss({"model": params}, batch=rows)
    shared = {name: params[name] for name in {*params} - {"left", "right"}}
    each = [
        found["causal"][1]({"model": shared | {"body": params[way]}}, batch=of)
        for way, of in (("left", rows), ("right", turned))
    ]
    for name in ("loss_B", "weight_B"):
        np.testing.assert_allclose(
            getattr(both, name)["causal"], sum(getattr(one, name)["causal"] for one in each), rtol=1e-5
        )
    np.testing.assert_array_equal(both.weight_B["causal"], [22, 22, 22])  # of segments of seven and six tokens
    np.testing.assert_allclose(both.sums_B["correct"], sum(one.sums_B["correct"] for one in each))
    assert np.isfinite(both.sums_B["unigram_nats"]).all()
