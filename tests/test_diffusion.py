"""Masked diffusion: how many tokens are hidden, and by what their nats weigh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from small import VOCAB, batch, make_dataset_info, small_config

from mlm import objectives
from mlm.base import errors, types
from mlm.base.special import MASK, NUM_SPECIAL
from mlm.objectives import masking
from mlm.training.run import resolution
from mlm.training.step import program, update

KEYS = update.make_example_keys(np.uint32(0), 0, np.arange(400))
TELLS_V = np.log(np.arange(1, VOCAB + 1) / (VOCAB * (VOCAB + 1) / 2)).astype(np.float32)


@pytest.fixture(scope="module")
def cfg():
    return small_config("feedforward", "bag", objective="diffusion", model__dropout=0.0)


@pytest.fixture(scope="module")
def rows():
    return batch(400)


@functools.cache
def loss(cfg, train):
    """The loss by a model that gives each token TELLS_V whatever it sees, and what it was shown."""
    objective = objectives.OBJECTIVES["diffusion"].build(cfg, make_dataset_info(cfg))

    def compute_losses(rows, knobs):
        shown = []

        def encode(params, text, source=None, *, key_B=None):
            shown.append(text.ids_BxL)
            return (jnp.zeros((*text.ids_BxL.shape, 1)),)

        def logits(params, h):
            return jnp.broadcast_to(TELLS_V, (*h.shape[:-1], VOCAB))

        model = types.Model(("bidirectional",), 1, None, encode, logits)
        return objective.loss({"model": None}, model, rows, KEYS, knobs, train=train), shown[0]

    return jax.jit(compute_losses)


@jax.jit
def any_number(keys, ids_BxL):
    return masking.corrupt_tokens(
        keys,
        ids_BxL,
        rate=None,
        mask_token_prob=1.0,
        random_token_prob=0.0,
        num_slots=ids_BxL.shape[1],
        cdf_V=np.ones(1),
    )


def test_every_number_of_tokens_is_hidden_as_often(rows):
    masked = any_number(KEYS, rows.text.ids_BxL)
    hidden_BxL = np.asarray(masked.ids_BxL) == MASK
    eligible_BxL = rows.text.ids_BxL >= NUM_SPECIAL
    eligible = eligible_BxL.sum(1)[0]
    assert not (hidden_BxL & ~eligible_BxL).any() and (eligible_BxL.sum(1) == eligible).all()
    np.testing.assert_array_equal(hidden_BxL.sum(1), masked.num_corrupted_B)
    np.testing.assert_array_equal(hidden_BxL, masking.get_predicted_mask(masked))
    often = np.bincount(hidden_BxL.sum(1), minlength=eligible + 1)
    assert often[0] == 0 and stats.chisquare(often[1:]).pvalue > 0.01
    of_place = hidden_BxL[:, eligible_BxL[0]].mean(0)
    assert np.abs(of_place - (eligible + 1) / 2 / eligible).max() < 4 * 0.5 / 400**0.5


def test_a_row_without_tokens_to_hide_hides_none():
    ids_BxL = np.array([[2, 3, 0, 0], [2, 7, 3, 0]])
    masked = any_number(KEYS[:2], ids_BxL)
    assert masked.ids_BxL.tolist() == [[2, 3, 0, 0], [2, MASK, 3, 0]]
    assert masked.num_corrupted_B.tolist() == masked.num_eligible_B.tolist() == [0, 1]


@pytest.mark.parametrize("train", [True, False])
def test_nats_weigh_the_inverse_of_the_hidden_share_and_are_counted_by_the_rows_tokens(cfg, rows, train):
    knobs = program.make_train_hparams(cfg) if train else program.make_eval_hparams(cfg)
    losses, shown_BxL = jax.device_get(loss(cfg, train)(rows, knobs))
    hidden_BxL, eligible_B = shown_BxL == MASK, (rows.text.ids_BxL >= NUM_SPECIAL).sum(1)
    nats_BxL = -TELLS_V[rows.text.ids_BxL]
    expected_B = (nats_BxL * hidden_BxL).sum(1) * eligible_B / hidden_BxL.sum(1)
    np.testing.assert_allclose(losses.loss_B["diffusion"], expected_B, rtol=1e-5)
    np.testing.assert_array_equal(losses.weight_B["diffusion"], eligible_B)
    np.testing.assert_array_equal(losses.sums_B["diffusion_masked"], hidden_BxL.sum(1))
    # Of a model that is exact, as this one is of independent words, the loss is the row's nats in expectation.
    whole_B = (nats_BxL * (rows.text.ids_BxL >= NUM_SPECIAL)).sum(1)
    over_B = losses.loss_B["diffusion"] - whole_B
    assert abs(over_B.mean()) < 3 * stats.sem(over_B) < 0.05 * whole_B.mean()
    if not train:
        count_V = np.where(np.arange(VOCAB) >= NUM_SPECIAL, np.arange(VOCAB) + 1, VOCAB)  # as about() has it, and one
        nats_BxL = np.log(count_V[NUM_SPECIAL:].sum() / count_V)[rows.text.ids_BxL]
        np.testing.assert_allclose(
            losses.sums_B["unigram_nats"], (nats_BxL * hidden_BxL).sum(1) * eligible_B / hidden_BxL.sum(1), rtol=1e-4
        )
        asked_BxL = jax.jit(objectives.OBJECTIVES["diffusion"].build(cfg, make_dataset_info(cfg)).eval_mask)(
            rows.text, KEYS, knobs
        )
        np.testing.assert_array_equal(asked_BxL, hidden_BxL)


def test_no_field_of_masks_is_read_by_a_diffusion_run():
    with pytest.raises(errors.ConfigError, match=r"^config.mask.rate = 0.4: nothing reads it, since config.objective"):
        resolution.resolve(small_config(objective="diffusion"), {"mask.rate": 0.4})
