"""The lectures' worked examples of units, gradients, attention and nets, by the functions that the models are made of.

Where a lecture's formula is wrong, the test says so and holds the right one.
"""

import types as standard

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import PLAIN, batch, make_dataset_info, replace_text, small_config

from mlm.base import config, estimates, types
from mlm.models import attention, feedforward, layers, lm, positions, recurrence, rnn
from mlm.objectives import OBJECTIVES, heads
from mlm.objectives.cross_entropy import cross_entropy

RNG = np.random.default_rng(0)


def sigmoid(z):
    return recurrence.apply_gates(jnp.atleast_2d(jnp.asarray(z, jnp.float32)), "s", (0,))[0]


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def test_a_unit_s_0_69_becomes_0_67():
    """y = sigma(w x + b), of w = .1 .4 .2, x = .3 .2 .9, b = .4; the lecture rounds 0.66597."""
    unit = {"kernel": jnp.array([[0.1], [0.4], [0.2]]), "bias": jnp.array([0.4])}
    z = heads.apply_dense(unit, jnp.array([[0.3, 0.2, 0.9]]))[0, 0]
    assert z == pytest.approx(0.69, abs=1e-6)
    assert sigmoid(z)[0] == pytest.approx(0.66597, abs=5e-6)


def test_the_gradients_of_the_graph_c_times_a_plus_2b():
    """L = c (a + 2b) at 3, 1, -2: d = 2, e = 5, L = -10, backwards -2, -4, 5; by JAX, and by the complex step that
    errors of scores are reckoned with."""

    def d(b):
        return 2 * b

    def e(a, b):
        return a + d(b)

    def loss(a, b, c):
        return c * e(a, b)

    at = (3.0, 1.0, -2.0)
    assert (d(1.0), e(3.0, 1.0), loss(*at)) == (2, 5, -10)
    assert [float(x) for x in jax.grad(loss, (0, 1, 2))(*at)] == [-2, -4, 5]
    assert [estimates._partial_derivative(loss, at, place) for place in range(3)] == [-2, -4, 5]


@pytest.mark.parametrize("right", [0, 1])
def test_the_gradient_by_z_of_the_logistic_loss_is_a_minus_y(right):
    """Of two classes, one with the score z and one with 0, so that a = sigma(z) is the first's probability."""

    def loss(z):
        return cross_entropy(jnp.zeros((1, 1)), jnp.zeros((2, 1)), jnp.array([0.0, 1.0]) * z, jnp.array([right]))[0][0]

    for z in (-2.0, 0.69, 3.0):
        assert jax.grad(loss)(z) == pytest.approx(float(sigmoid(z)[0]) - right, abs=1e-6)


def test_the_gradient_by_z_of_the_softmax_loss_is_a_minus_y():
    z_V, target_N = normal(5), jnp.array([3])
    gradient_V = jax.grad(lambda z_V: cross_entropy(jnp.zeros((1, 1)), jnp.zeros((5, 1)), z_V, target_N)[0][0])(z_V)
    np.testing.assert_allclose(gradient_V, softmax(z_V) - np.eye(5)[3], atol=1e-6)


def test_a_bias_is_the_weight_of_an_input_of_one():
    kernel_DxC, bias_C, x_BxD = normal(4, 3), normal(3), normal(6, 4)
    without = {"kernel": np.concatenate([bias_C[None], kernel_DxC]), "bias": np.zeros(3, np.float32)}
    x_BxE = np.concatenate([np.ones((6, 1), np.float32), x_BxD], 1)
    np.testing.assert_allclose(
        heads.apply_dense({"kernel": kernel_DxC, "bias": bias_C}, x_BxD), heads.apply_dense(without, x_BxE), rtol=1e-5
    )


def test_closed_form_gradient_descent_and_numerical_gradients_find_the_same_weights():
    """(X'X)^-1 X'y is what the objective `regression` of rows of one token comes to."""
    x_BxD, rows = normal(12, 3), batch(12)
    y_B = x_BxD @ [0.5, -1.0, 2.0] + 0.3 + 0.1 * normal(12)
    first_BxL = np.arange(16) == np.zeros((12, 1))
    rows = replace_text(rows, segments_BxL=1 * first_BxL)._replace(labels={"value_B": y_B.astype(np.float32)})
    cfg = small_config(objective="regression", finetune__pooling="mean", **PLAIN)
    objective = OBJECTIVES["regression"].build(cfg, make_dataset_info(cfg))
    model = types.Model(("bidirectional",), 3, dict, lambda *_, **__: (x_BxD[:, None] * first_BxL[..., None],), None)

    @jax.jit
    def loss(w_D):
        label = {"kernel": w_D[1:, None], "bias": w_D[:1]}
        found = objective.loss({"model": {}, "objective": {"label": label}}, model, rows, None, None, train=True)
        return found.loss_B["regression"].sum() / found.weight_B["regression"].sum()

    design_BxD = np.concatenate([np.ones((12, 1)), x_BxD], 1)
    closed_D = np.linalg.inv(design_BxD.T @ design_BxD) @ design_BxD.T @ y_B
    by_rule = jax.jit(jax.grad(loss))

    def differentiate(w_D):
        return jnp.array([(loss(w_D + step_D) - loss(w_D - step_D)) / 0.2 for step_D in 0.1 * np.eye(4, dtype="f")])

    for gradient in (by_rule, differentiate):
        w_D = jnp.zeros(4)
        for _ in range(120):
            w_D -= 0.2 * gradient(w_D)
        np.testing.assert_allclose(w_D, closed_D, atol=2e-3)


def test_sigmoid_tanh_and_relu():
    """sigma(z) = 1 / (1 + e^-z); tanh z = 2 sigma(2z) - 1; ReLU(z) = max(0, z)."""
    z = np.linspace(-4, 4, 17, dtype=np.float32)
    np.testing.assert_allclose(sigmoid(z), 1 / (1 + np.exp(-z)), atol=1e-6)
    tanh = recurrence.apply_gates(z[None], "t", (0,))[0]
    np.testing.assert_allclose(tanh, np.tanh(z), atol=1e-6)
    np.testing.assert_allclose(tanh, 2 * sigmoid(2 * z) - 1, atol=1e-6)
    np.testing.assert_array_equal(layers.activate(config.Model(activation="relu"), z), np.where(z > 0, z, 0))


def attend(q_LxD, k_SxD, v_SxD, heads=1, model=None):
    """attention.attend of one row, in which every token sees all."""
    module = standard.SimpleNamespace(
        model=model or config.Model(attention_dropout=0.0), sow=lambda *_: None, is_mutable_collection=lambda _: False
    )
    q, k, v = (jnp.asarray(x)[None].reshape(1, len(x), heads, -1) for x in (q_LxD, k_SxD, v_SxD))
    out_1xLxHxd = attention.attend(module, q, k, v, jnp.ones((1, 1, len(q_LxD), len(k_SxD)), bool), None)
    return np.asarray(out_1xLxHxd).reshape(len(q_LxD), -1)


def test_scores_of_112_and_96_become_weights_of_0_88_and_0_12():
    """Divided by 8, the root of d_k = 64: 14 and 12."""
    q_1x64, k_2x64 = np.zeros((1, 64), np.float32), np.zeros((2, 64), np.float32)
    q_1x64[0, :2], k_2x64[:, 0], k_2x64[:, 1] = (8, 4), (10, 10), (8, 4)
    np.testing.assert_array_equal(q_1x64 @ k_2x64.T, [[112, 96]])
    v_2x64 = np.eye(2, 64, dtype=np.float32)
    np.testing.assert_allclose(attend(q_1x64, k_2x64, v_2x64)[0, :2], [0.8808, 0.1192], atol=5e-5)


def test_attention_is_the_listing_s_with_the_scale_that_it_forgets():
    """The listing has softmax(Q K') V; Vaswani et al. 2017, equation 1, divide by the root of d_k first."""

    def listing(q, k, v):
        return softmax(q @ k.T) @ v

    q, k, v = normal(3, 16), normal(5, 16), normal(5, 16)
    np.testing.assert_allclose(attend(q, k, v), listing(q / 4, k, v), atol=1e-5)
    assert np.abs(attend(q, k, v) - listing(q, k, v)).max() > 0.1


def test_heads_are_attentions_of_their_own_side_by_side():
    """concat(head_1, ..., head_H) W_O, each head with its part of what Q, K and V are projected to."""
    model = config.Model(
        width=12, num_heads=3, attention_dropout=0.0, positions="learned", directionality="bidirectional", init_std=0.1
    )
    module, x_LxD = attention.Attention(model), normal(4, 12)
    inputs = x_LxD[None], 1, positions.AttentionContext(jnp.ones((1, 1, 4, 4), bool)), None
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs))["params"]
    params = jax.tree.map(lambda x: normal(*x.shape), shapes)
    q, k, v = np.split(x_LxD @ params["qkv"]["kernel"] + params["qkv"]["bias"], 3, -1)
    each = [attend(q[:, i : i + 4], k[:, i : i + 4], v[:, i : i + 4]) for i in (0, 4, 8)]
    by_hand_LxD = np.concatenate(each, -1) @ params["out"]["kernel"] + params["out"]["bias"]
    found_1xLxD = module.apply({"params": params}, *inputs)
    np.testing.assert_allclose(found_1xLxD[0], by_hand_LxD, rtol=1e-4, atol=1e-4)


def test_positions_are_sines_and_cosines_in_turn():
    """PE(p, 2i) = sin(p / 10000^(2i / d)), PE(p, 2i + 1) = cos of the same."""
    by_hand = [[(np.sin, np.cos)[j % 2](p / 10_000 ** ((j - j % 2) / 6)) for j in range(6)] for p in range(30)]
    np.testing.assert_allclose(lm.sinusoids(30, 6), by_hand, atol=1e-5)


def test_the_feedforward_language_model_of_three_words():
    """e = [E w_1; E w_2; E w_3], h = ReLU(W e + b), y = softmax(U h): of each place, the three words up to it."""
    table_VxD, hidden, output = normal(7, 4), {"kernel": normal(12, 5), "bias": normal(5)}, normal(5, 7)
    words = np.array([6, 1, 3, 2, 5])
    pairs = feedforward.gather_neighbors(jnp.asarray(table_VxD[words])[None], jnp.ones((1, 5), int), 3, "causal")
    e_1xLx3D = jnp.concatenate([x for x, _ in pairs], -1)
    h_1xLxH = layers.activate(config.Model(activation="relu"), heads.apply_dense(hidden, e_1xLx3D))
    y_LxV = jax.nn.softmax(h_1xLxH @ output)[0]
    for t in range(2, 5):
        e = np.concatenate([table_VxD[word] for word in words[t - 2 : t + 1]])
        h = np.maximum(e @ hidden["kernel"] + hidden["bias"], 0)
        np.testing.assert_allclose(y_LxV[t], softmax(h @ output), atol=1e-5)
    np.testing.assert_array_equal(e_1xLx3D[0, 0, :8], 0)  # nothing stands before the first word


def test_forward_passes_of_the_recurrent_graph():
    """h_t = g(U h_t-1 + W x_t), y_t = softmax(V h_t), from h_0 = 0; by either implementation of the recurrence."""
    u_HxH, w_DxH, v_HxV, x_LxD = normal(3, 3), normal(4, 3), normal(3, 6), normal(5, 4)
    h_H, by_hand = np.zeros(3), []
    for x_D in x_LxD:
        h_H = np.tanh(h_H @ u_HxH + x_D @ w_DxH)
        by_hand.append(softmax(h_H @ v_HxV))
    arguments = u_HxH, np.zeros(3, np.float32), (x_LxD @ w_DxH)[:, None], np.arange(5)[:, None] > 0
    plain = rnn.scan_cell(rnn.CELLS["elman"], *arguments, 1)
    (fast,) = recurrence.scan_cell("elman", 1, *((x,) for x in arguments))
    for h_Lx1xH in (plain, fast):
        np.testing.assert_allclose(softmax(np.asarray(h_Lx1xH)[:, 0] @ v_HxV), by_hand, atol=1e-5)
