"""A teacher that knows the language: its probabilities are the exact ones, and a model that has them cannot improve."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import PLAIN, VOCAB, batch, make_dataset_info, small_config

from mlm.base import config, errors, fields
from mlm.base.special import CLS, MASK, NUM_SPECIAL, PAD, SEP
from mlm.data.language import grammar, hmm, posterior
from mlm.objectives import mlm as masked_lm
from mlm.objectives import token_prediction
from mlm.training.run import resolution
from mlm.training.step import program, update

pytestmark = pytest.mark.usefixtures("quick_to_compile")
LANGUAGE = dataclasses.replace(config.Language(), max_words=12)


def test_the_teacher_is_the_exact_posterior_in_a_vocabulary_of_any_order():
    built, rng = grammar.build_grammar(LANGUAGE), np.random.default_rng(0)
    words_BxP = hmm.sample_documents(built.hmm, LANGUAGE.max_words, 0, 0, 8)
    pieces = [*range(NUM_SPECIAL), *rng.permutation(len(built.words))]
    word_V = np.array([-1 if i < NUM_SPECIAL else word for i, word in enumerate(pieces)], np.int32)
    entry_W = np.argsort(word_V)[NUM_SPECIAL:]
    ids_BxL = np.where(words_BxP >= 0, entry_W[words_BxP], PAD)
    ids_BxL = np.pad(ids_BxL, ((0, 0), (1, 1)), constant_values=(CLS, SEP))
    masked_BxL = np.pad((words_BxP >= 0) & (rng.random(words_BxP.shape) < 0.4), ((0, 0), (1, 1)))
    known = posterior.compute_posterior(built.hmm, np.where(ids_BxL >= NUM_SPECIAL, word_V[ids_BxL], -1), masked_BxL)
    expected_KxW = np.exp(posterior.compute_log_probs(built.hmm, known))
    positions_BxK = np.broadcast_to(np.arange(ids_BxL.shape[1]), ids_BxL.shape)
    teacher = jax.jit(posterior.build_teacher(built.hmm, word_V))
    found_BxLxV = np.asarray(teacher(jnp.asarray(np.where(masked_BxL, MASK, ids_BxL)), jnp.asarray(positions_BxK)))
    np.testing.assert_allclose(found_BxLxV[masked_BxL][:, entry_W], expected_KxW, atol=1e-6)
    assert not found_BxLxV[masked_BxL][:, :NUM_SPECIAL].any()


def test_the_entropy_of_the_teacher_is_the_least_loss():
    rng = np.random.default_rng(0)
    prob_BxKxV = jnp.asarray(rng.dirichlet(np.ones(7), (2, 3)), jnp.float32)
    target_BxK, weight_BxK = jnp.zeros((2, 3), jnp.int32), jnp.array([[1, 1, 0], [1, 0, 0]], jnp.float32)

    class Logits:
        logits = staticmethod(lambda params, h: h)

    def loss(logits_BxKxV, prob_BxKxV=prob_BxKxV):
        arguments = {"model": {}}, Logits, logits_BxKxV, prob_BxKxV, target_BxK, weight_BxK
        return token_prediction.predict_distribution(*arguments)[0].sum()

    entropy = -(prob_BxKxV * jnp.log(prob_BxKxV)).sum(-1)
    assert float(loss(jnp.log(prob_BxKxV))) == pytest.approx(float((entropy * weight_BxK).sum()), abs=1e-5)
    assert float(abs(jax.grad(loss)(jnp.log(prob_BxKxV))).max()) < 1e-6
    unknown_BxKxV = jnp.where(weight_BxK[..., None] > 0, prob_BxKxV, jnp.nan)  # a teacher knows nothing of unused slots
    assert jnp.isfinite(jax.grad(loss)(rng.normal(size=(2, 3, 7)), unknown_BxKxV)).all()


def test_training_reads_the_teacher_and_evaluation_the_tokens():
    """The loss of training is linear in the teacher's probabilities."""
    cfg = small_config("feedforward", "bag", model__num_layers=1, mask__rate=0.4, **PLAIN)
    model, _ = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    params, rows = {"model": jax.jit(model.init)(jax.random.key(0)), "objective": {}}, batch()
    keys = update.make_example_keys(np.uint32(0), 0, rows.index_B)
    static = program.make_static_config(cfg)

    def measure(prob_V, *, train):
        teacher = lambda ids_BxL, positions_BxK: jnp.broadcast_to(prob_V, (*positions_BxK.shape, VOCAB))
        objective = masked_lm.build(static, make_dataset_info(cfg), teacher)
        hparams = (program.make_train_hparams if train else program.make_eval_hparams)(cfg)
        return jax.jit(lambda params: objective.loss(params, model, rows, keys, hparams, train=train))(params).loss_B[
            "mlm"
        ]

    one_V, other_V = np.eye(VOCAB, dtype=np.float32)[[7, 8]]
    one, other, half = (measure(prob_V, train=True) for prob_V in (one_V, other_V, (one_V + other_V) / 2))
    assert not np.allclose(one, other)
    np.testing.assert_allclose(half, (one + other) / 2, rtol=1e-5)
    np.testing.assert_array_equal(*(measure(prob_V, train=False) for prob_V in (one_V, other_V)))


@pytest.mark.parametrize(
    ("name", "value"),
    [("data.corpus", "docstrings"), ("mask.mask_token_prob", 0.9), ("optim.z_loss", 1e-4), ("objective", "causal")],
)
def test_a_teacher_that_cannot_know_is_refused(name, value):
    changes = {"distillation.teacher": "posterior", "mask.mask_token_prob": 1.0, "mask.random_token_prob": 0.0}
    resolution.check(resolution.resolve(fields.override(config.Config(), changes)))
    with pytest.raises(errors.ConfigError, match=r"distillation\.teacher"):
        resolution.check(resolution.resolve(fields.override(config.Config(), changes | {name: value})))
