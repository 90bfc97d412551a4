"""No model can beat the floor of the built-in language: one that does has seen the words it is asked for."""
import functools

import jax
import jax.numpy as jnp
import pytest
from small import MEMBERS, drawn_config

from mlm.data.rows import loader, pack
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES, masking
from mlm.train.step import evaluation, parallel, program, references, update

# An easy language, so that some hundred steps bring a model near the floor, where a small leak shows.
EASY = {"data__language__topics": 1, "data__language__names": 2, "data__language__zipf": 2.5,
        "data__language__train_documents": 4000, "data__language__validation_documents": 400}
QUICK = {"model__layers": 1, "model__width": 32, "model__hidden": 64, "model__init_std": 0.08, "model__dropout": 0.0,
         "model__attention_dropout": 0.0, "model__positions": "sinusoidal", "mask__rate": 0.3, "mask__mask_share": 1.0,
         "mask__random_share": 0.0, "eval__rate": 0.3, "optim__learning_rate": 1e-2, "train__steps": 300,
         "train__batch_size": 16}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of packed rows, both splits, and what compares a model with their floor."""
    cache = tmp_path_factory.mktemp("cache")
    cfg = drawn_config(cache, **EASY, **QUICK)
    rows, held_out = pack.load(cfg, "train"), pack.load(cfg, "validation")
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time here goes into compiling
    yield cache, rows, held_out, references.measure(cfg, held_out)
    jax.config.update("jax_disable_most_optimizations", False)


def trained(data, family="transformer", cell="", change=lambda model: model, prepare=lambda batch: batch):
    """The evaluation of a member, changed, after its steps on batches, prepared."""
    cache, rows, held_out, beside = data
    cfg = drawn_config(cache, family, cell, **EASY, **QUICK)
    model = change(MODELS[cfg.model.family](cfg.model, rows.tokenizer.vocab_size))
    goal = OBJECTIVES[cfg.objective](cfg.mask, masking.slots(cfg.mask.rate, cfg.pack.length), rows.unigram_V)
    run = parallel.over_mesh(functools.partial(update.train_step, cfg, model, goal), jax.devices()[:1])
    knobs = program.training_knobs(cfg)
    state = run.put_state(jax.device_get(jax.jit(functools.partial(update.init_state, cfg, model, goal))(knobs)))
    batches = loader.train_batches(rows, seed=cfg.seed, batch_size=cfg.train.batch_size, start_step=0)
    for _, batch in zip(range(cfg.train.steps), batches, strict=False):
        state, _ = run.train_step(state, run.put_batch(prepare(batch)), knobs)
    lost = evaluation.collect(run.per_row(update.eval_step, model, goal), state,
                            map(prepare, loader.eval_batches(held_out, batch_size=80)), run.put_batch,
                            program.frozen_knobs(cfg))
    return evaluation.summarise(lost, program.frozen_knobs(cfg), beside)


def leaks(result) -> bool:
    """Whether the loss is below the floor by more than chance allows."""
    return result["gap"] < -3 * result["gap_se"]


@pytest.mark.parametrize(("family", "cell"), MEMBERS)
def test_no_member_beats_the_floor(data, family, cell):
    result = trained(data, family, cell)
    assert not leaks(result), result
    assert result["loss"] < result["unigram_loss"] - 0.05  # a model that has learnt nothing would use no leak


def test_a_model_that_sees_the_words_is_caught(data):
    """The words reach the planted model as sentence kinds, which no mask hides."""
    def sees(model):
        def encode(params, batch, *, key_B=None):
            true = batch._replace(ids_BxL=batch.types_BxL, types_BxL=jnp.zeros_like(batch.types_BxL))
            return model.encode(params, true, key_B=key_B)
        return model._replace(encode=encode)

    result = trained(data, change=sees, prepare=lambda batch: batch._replace(types_BxL=batch.ids_BxL))
    assert leaks(result), result
