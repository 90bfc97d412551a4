"""No model can beat the floor of the built-in language: one that does has seen the words it is asked for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from small import FAMILY_CELLS, ON_LANGUAGE, ONE_EACH, drawn_config, replace_text, state_of

from mlm.data.rows import loader, pack
from mlm.training.step import parallel, program, update
from mlm.training.validation import references, split_scores

pytestmark = pytest.mark.slow

# An easy language, so that some hundred steps bring a model near the floor, where a small leak shows.
EASY = {
    "data__language__num_topics": 1,
    "data__language__num_names": 2,
    "data__language__zipf_exponent": 2.5,
    "data__language__train_documents": 4000,
    "data__language__validation_documents": 400,
}
QUICK = {
    "model__num_layers": 1,
    "model__width": 32,
    "model__mlp_dim": 64,
    "model__init_std": 0.08,
    "model__dropout": 0.0,
    "model__attention_dropout": 0.0,
    "model__positions": "sinusoidal",
    "mask__rate": 0.3,
    "mask__mask_token_prob": 1.0,
    "mask__random_token_prob": 0.0,
    "eval__mask_rate": 0.3,
    "optim__learning_rate": 1e-2,
    "train__steps": 300,
    "train__batch_size": 16,
    "eval__batch_size": 80,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time here goes into compiling
    yield tmp_path_factory.mktemp("cache")
    jax.config.update("jax_disable_most_optimizations", False)


def trained(cache, family="transformer", cell="", change=lambda model: model, prepare=lambda batch: batch, **changes):
    """The evaluation of a member, changed, after its steps on batches, prepared."""
    cfg = drawn_config(cache, family, cell, **EASY | QUICK | changes)
    rows = pack.load_dataset(cfg)
    model, objective = program.build_model_and_objective(cfg, rows.dataset_info)
    model, knobs = change(model), program.make_train_hparams(cfg)
    run = parallel.build_single_device(functools.partial(update.train_step, cfg, model, objective))
    made = program.Program(model, objective, None, None, run)
    state = run.put_state(
        state_of(jax.eval_shape(functools.partial(update.init_state, cfg, model, objective), knobs), cfg.model.init_std)
    )
    batches = loader.iterate_train_batches(rows.train, seed=cfg.seed, batch_size=cfg.train.batch_size, start_step=0)
    for _, batch in zip(range(cfg.train.steps), batches, strict=False):
        state, _ = run.train_step(state, run.put_batch(prepare(batch)), knobs)
    beside = references.compute_references(cfg, made, rows)
    ready = made._replace(partitioner=run._replace(put_batch=lambda batch: run.put_batch(prepare(batch))))
    columns = beside.add_columns(split_scores.collect_columns(cfg, ready, state, rows.validation))
    return split_scores.summarize(columns, (*objective.scores, *beside.scores))


def leaks(result) -> bool:
    """Whether a loss is below its floor by more than chance allows."""
    return any(result[name] < -3 * result[f"{name}_se"] for name in result if name.endswith("excess_loss"))


@pytest.mark.exhaustive(but=("mlm-feedforward-window",))
@pytest.mark.parametrize(
    ("objective", "family", "cell"),
    [
        (objective, *member)
        for objective in ON_LANGUAGE
        for member in {"mlm": FAMILY_CELLS, "causal": ONE_EACH}.get(objective, ONE_EACH[:1])
    ],
)
def test_no_member_beats_the_floor(cache, objective, family, cell):
    result = trained(cache, family, cell, objective=objective)
    assert not leaks(result), result
    assert result["loss"] < result["unigram_loss"] - 0.05  # a model that has learnt nothing would use no leak


@pytest.mark.exhaustive
def test_a_model_that_sees_both_sides_apart_does_not_beat_the_floor(cache):
    result = trained(cache, "rnn", "gru", objective="causal", model__directionality="two_stack")
    assert not leaks(result) and result["loss"] < result["unigram_loss"] - 0.05, result


@pytest.mark.exhaustive
def test_a_model_that_sees_the_words_is_caught(cache):
    """The words reach the planted model as sentence kinds, which no mask hides."""

    def sees(model):
        def encode(params, text, source=None, *, key_B=None):
            true = text._replace(ids_BxL=text.types_BxL, types_BxL=jnp.zeros_like(text.types_BxL))
            return model.encode(params, true, source, key_B=key_B)

        return dataclasses.replace(model, encode=encode)

    result = trained(cache, change=sees, prepare=lambda batch: replace_text(batch, types_BxL=batch.text.ids_BxL))
    assert leaks(result), result


@pytest.mark.exhaustive
def test_a_causal_model_that_sees_the_next_word_is_caught(cache):
    """The rows reach the planted model one place to the left: each token's state has seen the one it predicts."""

    def sees(model):
        def encode(params, text, source=None, *, key_B=None):
            return model.encode(params, text._replace(ids_BxL=jnp.roll(text.ids_BxL, -1, 1)), source, key_B=key_B)

        return dataclasses.replace(model, encode=encode)

    result = trained(cache, change=sees, objective="causal")
    assert leaks(result), result
