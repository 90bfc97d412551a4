"""What stands after each layer of every member: the last is what `hidden` gives, the others stand in their places."""

import jax
import numpy as np
import pytest
from small import MEMBERS, VOCAB, batch, build, params_of, replace_text, small_config

from mlm.models import feedforward


def normalize(x, params, eps):
    """A layer norm by numpy."""
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * params["scale"] + params["bias"]


@pytest.mark.exhaustive(but=("rnn-lstm",))
@MEMBERS
def test_layers_are_the_states_between_layers_and_the_last_are_the_model_s(family, cell):
    """One compiled program a member: a second layer of zeros adds nothing, so the last states are the first layer's."""
    cfg, rows = small_config(family, cell), batch()
    model, params, _ = build(cfg)
    both = jax.jit(lambda params, text: (model.encode_layers(params, text), model.encode(params, text)[0]))
    h_KxBxLxD, last_BxLxD = jax.device_get(both(params, rows.text))
    assert h_KxBxLxD.shape == (1 + cfg.model.num_layers, *rows.text.ids_BxL.shape, model.width)
    np.testing.assert_allclose(h_KxBxLxD[-1], last_BxLxD, rtol=1e-6, atol=1e-6)

    text = rows.text
    x_BxLxD = params["token"]["embedding"][text.ids_BxL] + params["type"]["embedding"][text.types_BxL]
    if "position" in params:
        x_BxLxD = x_BxLxD + params["position"]["embedding"][text.positions_BxL]
    np.testing.assert_allclose(h_KxBxLxD[0], normalize(x_BxLxD, params["embed_norm"], cfg.model.norm_eps), atol=1e-4)

    first = lambda x: x * (np.arange(len(x)) < 1).reshape(-1, *[1] * (x.ndim - 1))
    stack = jax.tree.map(first, params["body"]["stack"])
    cut_KxBxLxD, _ = jax.device_get(both(params | {"body": params["body"] | {"stack": stack}}, text))
    np.testing.assert_array_equal(cut_KxBxLxD[:2], h_KxBxLxD[:2])
    np.testing.assert_allclose(
        cut_KxBxLxD[2], normalize(h_KxBxLxD[1], params["body"]["norm"], cfg.model.norm_eps), rtol=1e-4, atol=1e-4
    )

    padding = text.segments_BxL == 0
    other = replace_text(rows, ids_BxL=np.where(padding, VOCAB - 1, text.ids_BxL))
    np.testing.assert_array_equal(jax.device_get(both(params, other.text))[0][:, ~padding], h_KxBxLxD[:, ~padding])


def test_a_bag_is_the_mean_of_the_neighbours_that_there_are():
    """Where all tokens of a segment are alike, those at its ends, which have fewer neighbours, have the state of all."""
    model, segments_BxL = small_config("feedforward", "bag").model, batch(1).text.segments_BxL
    x_BxLxD = np.tile(np.linspace(-1, 1, model.width, dtype=np.float32), (*segments_BxL.shape, 1))
    encoder = feedforward.FeedforwardEncoder(model)
    inputs = x_BxLxD, segments_BxL, None, None
    params = params_of(jax.eval_shape(encoder.init, jax.random.key(0), *inputs))
    h_LxD = encoder.apply(params, *inputs)[0, segments_BxL[0] > 0]
    np.testing.assert_allclose(h_LxD, np.tile(h_LxD[0], (len(h_LxD), 1)), atol=1e-5)
