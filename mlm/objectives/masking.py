"""Masking on the device: which tokens of a row are corrupted and predicted, and what stands there instead."""
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, types
from mlm.base.special import MASK, NUM_SPECIAL


class Masked(NamedTuple):
    """Corrupted rows and what is to be predicted. Slots of weight 0 are unused: position and target mean nothing."""

    ids_BxL: jax.Array
    positions_BxK: jax.Array
    targets_BxK: jax.Array
    weights_BxK: jax.Array   # float32, 1 where predicted
    corrupted_B: jax.Array   # tokens chosen, of which weights_BxK says the predicted ones
    eligible_B: jax.Array    # tokens that could have been chosen


def slots(max_rate: float, length: int) -> int:
    """K, the most tokens that a row of `length` can have masked at rates up to max_rate."""
    return math.ceil(max_rate * length - 1e-6)


def cumulative(unigram_V: np.ndarray, uniform: bool) -> np.ndarray:
    """The distribution function of the random tokens: unigram counts, or uniform, over all but the special tokens."""
    weight_V = np.where(np.arange(len(unigram_V)) >= NUM_SPECIAL, 1 if uniform else unigram_V, 0)
    # In float64, and over its own last value: float32 ends below 1 for large counts, and a draw above it has no token.
    cdf_V = np.cumsum(weight_V, dtype=np.float64)
    return (cdf_V / cdf_V[-1]).astype(np.float32)


def scheduled(knobs: types.Knobs, done) -> types.Knobs:
    """The knobs with the masking rate of the moment when a share `done` of training's steps is over (0 to 1).

    From mask_rate to mask_final_rate, along a line or half a cosine (Ankner et al. 2023); all of it may be traced.
    """
    way = jnp.where(knobs.mask_cosine > 0, (1 - jnp.cos(jnp.pi * done)) / 2, done)
    rise = jnp.where(knobs.mask_final_rate > 0, knobs.mask_final_rate - knobs.mask_rate, 0)
    return knobs._replace(mask_rate=knobs.mask_rate + way * rise)


def static_keys(knobs: types.Knobs, batch: types.Batch):
    """The keys of the rows' masks where those are static, as BERT's were (RoBERTa, Liu et al. 2019, section 4.1).

    They follow from the seed, a row's number in the split and its epoch modulo knobs.mask_copies, from nothing else.
    """
    key = jax.random.fold_in(jax.random.key(knobs.seed), 2**31 + 1)  # no step's number, nor that of initialisation
    copy_B = batch.epoch_B % jnp.maximum(knobs.mask_copies, 1)
    return jax.vmap(lambda row, copy: jax.random.fold_in(jax.random.fold_in(key, row), copy))(batch.row_B, copy_B)


def predicted(mask: config.Mask) -> float:
    """The share of the eligible tokens that a run predicts in a step, on average: any schedule's is halfway."""
    return mask.predict or mask.views * (mask.rate + (mask.final_rate or mask.rate)) / 2


def draw(key_B, ids_BxL, knobs: types.Knobs, *, slots: int, cdf_V, static_key_B=None, view=0, views: int = 1
         ) -> tuple[Masked, jax.Array]:
    """`corrupt` as a run's knobs say, under each row's key; and the keys left for what else is drawn for a row.

    The one place that says how masks follow from keys: the floor of a loss is computed under the loss's own masks.
    static_key_B: of the masks alone, taken where knobs.mask_copies is not 0.
    """
    mask_key_B, rest_key_B = jax.vmap(jax.random.split, out_axes=1)(key_B)
    if static_key_B is not None:
        mask_key_B = jnp.where(knobs.mask_copies > 0, static_key_B, mask_key_B)
    if views > 1:
        rest_key_B = jax.vmap(jax.random.fold_in, (0, None))(rest_key_B, view)
    return corrupt(mask_key_B, ids_BxL, rate=knobs.mask_rate, predict=knobs.mask_predict, mask_share=knobs.mask_share,
                   random_share=knobs.random_share, slots=slots, cdf_V=cdf_V, view=view, views=views), rest_key_B


def corrupt(key_B, ids_BxL, *, rate, mask_share, random_share, slots: int, cdf_V, predict=0.0, view=0, views: int = 1
            ) -> Masked:
    """Masks exactly floor(rate * eligible + U(0,1)) tokens of each row, drawn without replacement.

    A token is eligible unless it is special or padding. Of those chosen a mask_share becomes [MASK], a random_share a
    draw from cdf_V, and the rest stay (BERT, Devlin et al. 2019, section 3.1; the count: Wettig et al. 2022). The rate
    and the shares may be traced; at most `slots` tokens of a row are chosen, which `slots()` makes enough.

    predict: the share of the eligible tokens that is predicted, apart from the rate at which they are corrupted (Wettig
    et al. 2022, on corruption and prediction); 0: all that are corrupted. A row has `views` masks, of which this call
    draws number `view` from the keys of them all: each takes exactly floor(rate * eligible + U) tokens that no other
    takes, of which exactly floor(predict / views * eligible + U) are predicted, with the same U(0,1). One view so
    predicts a random part of what is corrupted, several predict more than any of them corrupts. It costs a pass through
    the model for each view, and the output layer works on all `slots`, whether predicted or not.
    """

    def row(key, ids_L):
        # One draw: on CPU each is a loop of ten kernels.
        shared, of_views = jnp.split(jax.random.uniform(key, (1 + len(ids_L) + 2 * views * slots,)), [1 + len(ids_L)])
        kind_K, token_K = of_views.reshape(slots, views, 2)[:, view].T  # slots added change none before
        eligible_L = ids_L >= NUM_SPECIAL
        eligible = eligible_L.sum()
        # Where in the row's random order each view's tokens start: its own count is floor(rate * eligible + U) too.
        reached_E = jnp.arange(views + 1) * (rate * eligible) + shared[0]
        edge_E = jnp.minimum(jnp.floor(reached_E).astype(jnp.int32), eligible)
        start, count = edge_E[view], edge_E[view + 1] - edge_E[view]
        part = jnp.floor(predict / views * eligible + reached_E[view] % 1).astype(jnp.int32)
        order_L = jnp.where(eligible_L, shared[1:], -1.0)
        _, ordered = jax.lax.top_k(order_L, min(views * slots, len(order_L)))
        positions_K = jnp.roll(ordered, -start)[:slots]
        used_K = jnp.arange(slots) < count
        predicted_K = used_K & (jnp.arange(slots) < jnp.where(predict > 0, part, count))
        targets_K = ids_L[positions_K]
        random_K = jnp.searchsorted(cdf_V, token_K, side="right").astype(ids_L.dtype)
        shown_K = jnp.where(kind_K < mask_share, MASK,
                            jnp.where(kind_K < mask_share + random_share, random_K, targets_K))
        ids_L = ids_L.at[positions_K].set(jnp.where(used_K, shown_K, targets_K))
        return Masked(ids_L, positions_K, targets_K, predicted_K.astype(jnp.float32), count, eligible)

    return jax.vmap(row)(key_B, ids_BxL)
