"""Denoising: what the encoder is shown, what the decoder is asked, and which rows and models it goes with."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import VOCAB, batch, get_refusal, make_dataset_info, small_config

from mlm.base import config, fields, types
from mlm.base.special import MASK, NUM_SPECIAL
from mlm.objectives import causal
from mlm.training.run import resolution
from mlm.training.step import program, update


@functools.cache
def compile_losses(train, **changes):
    """(rows) -> the losses of a model that knows nothing, the texts and keys that it was handed, and what is asked."""
    cfg = small_config("encoder_decoder", objective="denoising", eval__mask_rate=0.3, mask__rate=0.3, **changes)
    _, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    knobs = program.make_train_hparams(cfg) if train else program.make_eval_hparams(cfg)

    def judge(rows):
        handed = {}

        def encode(params, text, source, *, key_B=None):
            handed.update(text=text, source=source, key_B=key_B)
            return (jnp.zeros((*text.ids_BxL.shape, 2)),)

        spy = types.Model(("left",), 2, None, encode, lambda params, h: jnp.zeros((*h.shape[:-1], VOCAB)))
        key_B = update.make_example_keys(np.uint32(0), 0, rows.index_B)
        losses = objective.loss({"model": {}}, spy, rows, key_B, knobs, train=train)
        return losses, handed, objective.eval_mask(rows.text, key_B, knobs)

    return jax.jit(judge)


def test_the_encoder_sees_the_row_masked_and_the_decoder_writes_all_of_it():
    rows = batch(8)
    losses, handed, asked_BxL = compile_losses(False)(rows)
    text, source = handed["text"], handed["source"]
    for name in types.Tokens._fields:
        np.testing.assert_array_equal(getattr(text, name), getattr(rows.text, name))
        if name != "ids_BxL":
            np.testing.assert_array_equal(getattr(source, name), getattr(rows.text, name))
    masked_BxL = np.asarray(source.ids_BxL) == MASK
    first_BxL = rows.text.positions_BxL == 0  # of a segment: it is given, masked or not
    np.testing.assert_array_equal(masked_BxL & ~first_BxL, asked_BxL)
    np.testing.assert_array_equal(np.asarray(source.ids_BxL)[~masked_BxL], rows.text.ids_BxL[~masked_BxL])
    words_B = (rows.text.ids_BxL >= NUM_SPECIAL).sum(1)
    assert (np.abs(masked_BxL.sum(1) - 0.3 * words_B) < 1).all() and handed["key_B"] is None
    np.testing.assert_array_equal(losses.sums_B["masked_weight"], asked_BxL.sum(1))
    np.testing.assert_allclose(losses.sums_B["masked_nats"], asked_BxL.sum(1) * np.log(VOCAB), rtol=1e-5)
    assert all(np.isfinite(sum_B).all() for sum_B in losses.sums_B.values())
    every_B = np.asarray(causal.compute_eval_mask(rows.text, None, None)).sum(1)
    np.testing.assert_array_equal(losses.weight_B["denoising"], every_B)
    np.testing.assert_allclose(losses.loss_B["denoising"], every_B * np.log(VOCAB), rtol=1e-5)


def test_training_corrupts_as_the_mask_says_and_drops_out():
    rows, judge = batch(64), compile_losses(True, mask__mask_token_prob=0.5, mask__random_token_prob=0.5)
    losses, handed, _ = judge(rows)
    masked_BxL = np.asarray(handed["source"].ids_BxL) == MASK
    changed_BxL = np.asarray(handed["source"].ids_BxL) != rows.text.ids_BxL
    assert handed["key_B"] is not None and (changed_BxL & ~masked_BxL).sum() > 50
    corrupted = float(losses.sums_B["corrupted"].sum())
    assert abs(masked_BxL.sum() / corrupted - 0.5) < 4 * 0.5 / corrupted**0.5
    _, again, _ = judge(rows._replace(index_B=rows.index_B + 64))
    assert (np.asarray(again["source"].ids_BxL) != np.asarray(handed["source"].ids_BxL)).any()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": "denoising"}, r"config\.model\.family = 'transformer': expected one that reads a source"),
        (
            {"data.parallel_path": "a", "objective": "denoising", "model.family": "encoder_decoder"},
            r"config\.objective = 'denoising': expected one that makes no source",
        ),
        (
            {"objective": "denoising", "model.family": "encoder_decoder", "mask.masks_per_example": 2},
            r"mask\.masks_per_example = 2: expected 1",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes, said):
    assert re.search(said, get_refusal(resolution.resolve, fields.override(config.Config(), changes)))
