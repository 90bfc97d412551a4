"""Means with honest errors, the same masks for every model, and every held-out row once."""
import functools

import jax
import numpy as np
import pytest
from small import VOCAB, batch, small_config

from mlm.base import estimates
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES, masking
from mlm.train.step import evaluation, program, update


def test_standard_error_is_that_of_repeated_samples_of_rows():
    rng = np.random.default_rng(0)
    effect, weight = rng.normal(0, 1, (400, 300)), rng.integers(1, 20, (400, 300))
    total = weight * (3 + effect) + rng.normal(0, 1, (400, 300)) * weight**0.5
    means, errors = zip(*(estimates.ratio(t, w) for t, w in zip(total, weight, strict=True)), strict=True)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)
    assert np.mean(means) == pytest.approx(3, abs=0.02)


def run(batch_size, rows=10, params_seed=0):
    cfg = small_config()
    model = MODELS["transformer"](cfg.model, VOCAB)
    goal = OBJECTIVES["mlm"](cfg.mask, masking.slots(0.15, 16), np.arange(VOCAB))
    params = {"model": jax.jit(model.init)(jax.random.key(params_seed)), "objective": {}}
    all_rows = batch(rows)

    def batches():
        for first in range(0, rows, batch_size):
            part = slice(first, first + batch_size)
            yield jax.tree.map(lambda x, part=part: np.concatenate([x[part], 0 * x])[:batch_size], all_rows)

    compiled = jax.jit(functools.partial(update.eval_step, model, goal))
    knobs = program.frozen_knobs(cfg)
    lost = evaluation.collect(lambda *arguments: jax.device_get(compiled(*arguments)), params, batches(),
                            lambda batch: batch, knobs)
    return evaluation.summarise(lost, knobs)


def test_result_does_not_depend_on_the_batch_size():
    whole, parts = run(10), run(4)
    assert whole["rows"] == parts["rows"] == 10
    assert whole["masked_tokens"] == parts["masked_tokens"]
    for name in whole:
        assert parts[name] == pytest.approx(whole[name], rel=1e-5), name


def test_masks_are_the_same_for_every_model_and_pure():
    one, other = run(5), run(5, params_seed=1)
    assert one["unigram_loss"] == other["unigram_loss"] and one["masked_tokens"] == other["masked_tokens"]
    assert one["loss"] != other["loss"]
    assert one["perplexity"] == pytest.approx(np.exp(one["loss"]))
    knobs = program.frozen_knobs(small_config())
    assert knobs.mask_share == 1 and knobs.random_share == 0
