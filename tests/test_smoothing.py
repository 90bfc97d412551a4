"""Label smoothing and z-loss: the loss and gradients of the plain formula, on both ways through the output layer."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import VOCAB, batch, make_dataset_info, small_config

from mlm.objectives import OBJECTIVES, causal, token_prediction
from mlm.training.step import program

EPS, Z = 0.1, 2**-7


def plain(params, h_BxKxD, target_BxK):
    """Cross-entropy against (1 - eps) of the target and eps of the uniform distribution (Szegedy et al. 2016), and the
    squared logarithm of the softmax's denominator (Chowdhery et al. 2022).
    """
    h_BxKxD, table_VxD, bias_V = h_BxKxD * params["gain"], params["table"], params["bias"]
    logits_BxKxV = h_BxKxD @ table_VxD.T + bias_V
    log_BxKxV = jax.nn.log_softmax(logits_BxKxV)
    aim_BxKxV = (1 - EPS) * jax.nn.one_hot(target_BxK, len(bias_V)) + EPS / len(bias_V)
    return -(aim_BxKxV * log_BxKxV).sum(-1) + Z * jnp.log(jnp.exp(logits_BxKxV).sum(-1)) ** 2


@pytest.mark.exhaustive(but=("True-4", "False-0"))
@pytest.mark.parametrize(("fast", "block"), [(True, 0), (True, 4), (False, 0)])
def test_smoothed_nats_and_their_gradients_are_those_of_the_formula(fast, block):
    rng = np.random.default_rng(0)
    params = {
        "table": jnp.asarray(rng.normal(size=(VOCAB, 8)), jnp.float32),
        "gain": jnp.float32(1.5),
        "bias": jnp.asarray(rng.normal(size=VOCAB), jnp.float32),
    }
    h_BxKxD = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32)
    target_BxK = jnp.asarray(rng.integers(0, VOCAB, (2, 5)))
    weight_BxK = jnp.asarray(rng.normal(size=(2, 5)), jnp.float32)

    class Model:
        lm_head = (
            staticmethod(lambda params, h: (h * params["gain"], params["table"], params["bias"])) if fast else None
        )
        vocab_block = block
        logits = staticmethod(lambda params, h: h * params["gain"] @ params["table"].T + params["bias"])

    def ours(params, h_BxKxD):
        nats_BxK, _ = token_prediction.compute_token_loss_fast(params, Model, h_BxKxD, target_BxK, EPS, Z)
        return (nats_BxK * weight_BxK).sum(), nats_BxK

    (_, nats_BxK), found = jax.jit(jax.value_and_grad(ours, (0, 1), has_aux=True))(params, h_BxKxD)
    np.testing.assert_allclose(nats_BxK, plain(params, h_BxKxD, target_BxK), rtol=1e-5)
    loss = lambda *given: (plain(*given, target_BxK) * weight_BxK).sum()
    wanted = jax.jit(jax.grad(loss, (0, 1)))(params, h_BxKxD)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)


def test_training_is_smoothed_and_evaluation_is_not():
    class Model:
        """The logits of a token are a row of a table."""

        directions, lm_head, vocab_block = ("left",), None, 0
        encode = staticmethod(lambda params, text, source, key_B=None: (params[text.ids_BxL],))
        logits = staticmethod(lambda params, h: h)

    table_VxV = jnp.asarray(np.random.default_rng(0).normal(size=(VOCAB, VOCAB)), jnp.float32)
    sums = {}
    for eps in (0.0, EPS):
        cfg = small_config(objective="causal", optim__label_smoothing=eps)
        objective = causal.build(cfg, make_dataset_info(cfg))
        for train in (True, False):
            losses = objective.loss({"model": table_VxV}, Model, batch(), None, {}, train=train)
            sums[eps, train] = np.asarray(losses.loss_B["causal"])
    np.testing.assert_array_equal(sums[EPS, False], sums[0.0, False])
    np.testing.assert_allclose(sums[0.0, True], sums[0.0, False], rtol=1e-5)
    assert (np.abs(sums[EPS, True] - sums[0.0, True]) > 1e-4 * sums[0.0, True]).all()


@pytest.mark.exhaustive(but=("mlm",))
@pytest.mark.parametrize(
    "objective", [name for name, spec in OBJECTIVES.items() if "optim.z_loss" in spec.conditional_fields]
)
def test_training_has_the_z_loss_wherever_tokens_are_predicted_and_evaluation_has_none(objective):
    family, cell = ("encoder_decoder", "transformer") if objective == "denoising" else ("feedforward", "bag")
    rows, keys = jax.tree.map(jnp.asarray, batch(labels=True)), jax.random.split(jax.random.key(0), 3)

    def trace(z, train):
        cfg = small_config(family, cell, objective=objective, optim__z_loss=z, model__num_layers=1)
        model, goal = program.build_model_and_objective(cfg, make_dataset_info(cfg))
        init = lambda key: {"model": model.init(key), "objective": goal.init(key, model)}
        hparams = program.make_train_hparams(cfg) if train else program.make_eval_hparams(cfg)
        hparams = goal.schedule_hparams(hparams, 0.5) if train else hparams
        loss = lambda params: goal.loss(params, model, rows, keys, hparams, train=train).loss_B
        return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(loss)(jax.eval_shape(init, keys[0]))))

    programs = {(z, train): trace(z, train) for z in (0.0, Z) for train in (True, False)}
    assert programs[0.0, False] == programs[Z, False]
    assert f"{Z}" in programs[Z, True] and f"{Z}" not in programs[0.0, True]
