"""Means with honest errors, the same masks for every model, and every held-out row once."""

import functools

import jax
import numpy as np
import pytest
from small import batch, small_config, small_program

from mlm.base import errors, estimates
from mlm.objectives import mlm
from mlm.training.step import program
from mlm.training.validation import split_scores


@functools.cache
def run(batch_size, rows=10, seed=0):
    """The columns and scores of an evaluation, the split cut into batches."""
    cfg = small_config("feedforward", "bag", eval__batch_size=batch_size, model__num_layers=1, seed=seed)
    made, text = small_program(cfg), batch(rows).text
    columns = {"ids": text.ids_BxL, "segments": text.segments_BxL, "positions": text.positions_BxL}
    state = made.partitioner.put_state(jax.device_get(made.init_state(program.make_train_hparams(cfg))))
    found = split_scores.collect_columns(cfg, made, state, columns)
    return found, split_scores.summarize(found, made.objective.scores)


def test_result_does_not_depend_on_the_batch_size():
    (columns, whole), (_, parts) = run(10), run(4)
    assert whole["rows"] == parts["rows"] == 10 == len(columns["mlm_nats"])
    assert whole["predictions"] == parts["predictions"] == columns["mlm_weight"].sum()
    for name in whole:
        assert parts[name] == pytest.approx(whole[name], rel=1e-5), name


def test_masks_are_the_same_for_every_model_and_pure():
    """Whatever the seed of its run."""
    (_, one), (_, other) = run(4), run(4, seed=1)
    assert one["unigram_loss"] == other["unigram_loss"] and one["predictions"] == other["predictions"]
    assert one["loss"] != other["loss"]
    assert one["perplexity"] == pytest.approx(np.exp(one["loss"]))
    assert one["perplexity_se"] == pytest.approx(one["perplexity"] * one["loss_se"])
    knobs = program.make_eval_hparams(small_config()).objective
    assert knobs["mask_token_prob"] == 1 and knobs["random_token_prob"] == 0


def test_nothing_to_predict_is_an_error():
    with pytest.raises(errors.ConfigError, match="held-out predictions = 0: expected some"):
        split_scores.summarize({"mlm_nats": np.zeros(3), "mlm_weight": np.zeros(3)}, mlm.SCORES[:1])


@pytest.mark.parametrize("of", ["mean", "exp_mean"])  # the others, of more columns: test_scores.py
def test_a_score_s_error_is_its_bootstrap_s(of):
    """The delta method's slopes, against resampled rows; a number that only moves with its scale has no slope."""
    rng = np.random.default_rng(1)
    weight_N = rng.integers(1, 20, 400).astype(float)
    columns = {"total": weight_N * rng.gamma(4, 0.3, 400), "weight": weight_N}
    score = estimates.Score("x", "x", ("total", "weight"), of)
    value, error = estimates.compute_score(score, columns)
    drawn = rng.integers(400, size=(4000, 400))
    values = estimates.SCORE_FUNCTIONS[of](*(columns[name][drawn].sum(1) for name in score.columns))
    assert value == pytest.approx(estimates.SCORE_FUNCTIONS[of](*(columns[name].sum() for name in score.columns)))
    assert error == pytest.approx(values.std(), rel=0.06)
    twice = estimates.compute_score(score, {name: 2 * column for name, column in columns.items()})
    assert twice == pytest.approx((value, error))
