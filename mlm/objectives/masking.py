"""Masking on the device: which tokens of a row are corrupted and predicted, and what stands there instead.

Letters in array names: E edges between the views of a row; others as in types.py.
"""
import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.conditional_fields import FieldCondition
from mlm.base.special import MASK, NUM_SPECIAL, UNK
from mlm.objectives import units

SCHEDULES = ("constant", "linear", "cosine")
READ = (FieldCondition(("mask.final_rate",), "mask.schedule", ("linear", "cosine")),)
TRACED = (
    "mask.rate",
    "mask.final_rate",
    "mask.schedule",
    "mask.predict_rate",
    "mask.static_masks",
    "mask.mask_token_prob",
    "mask.random_token_prob",
)  # fields that reach the compiled step as `knobs` alone


class Masked(NamedTuple):
    """Corrupted rows and what is to be predicted. Slots of weight 0 are unused: position and target mean nothing."""

    ids_BxL: jax.Array
    positions_BxK: jax.Array
    targets_BxK: jax.Array
    weights_BxK: jax.Array   # float32, 1 where predicted
    corrupted_B: jax.Array   # tokens chosen, of which weights_BxK says the predicted ones
    eligible_B: jax.Array    # tokens that could have been chosen


def resolve(mask: config.Mask) -> config.Mask:
    """With the zeros filled that follow from other fields: room for the highest rate, views for all predictions."""
    lowest = min(mask.rate, mask.final_rate or mask.rate)
    return dataclasses.replace(mask, max_rate=mask.max_rate or max(mask.rate, mask.final_rate),
                               masks_per_example=mask.masks_per_example or max(1,
                                                                               math.ceil(mask.predict_rate / (lowest or
                                                                                                              1) - 1e-6)))


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.mask that no run could use."""
    mask, name = cfg.mask, "config.mask"
    errors.require_one_of(f"{name}.schedule", mask.schedule, SCHEDULES)
    errors.require_one_of(f"{name}.random_token_from", mask.random_token_from, ("unigram", "uniform"))
    for field in ("rate", "max_rate"):
        errors.require_number(f"{name}.{field}", getattr(mask, field), 0, 1, low_open=True, high_open=True)
    errors.require_number(f"{name}.final_rate", mask.final_rate, 0, 1, high_open=True)
    for field in ("rate", "final_rate"):
        errors.require(getattr(mask, field) <= mask.max_rate, f"{name}.{field}", getattr(mask, field),
                      f"at most {name}.max_rate = {mask.max_rate}, which sizes the compiled step")
    if mask.schedule != "constant":
        errors.require(mask.final_rate > 0, f"{name}.final_rate", mask.final_rate,
                      f"a rate to end at, since {name}.schedule is {mask.schedule}")
    for field in ("predict_rate", "mask_token_prob", "random_token_prob"):
        errors.require_number(f"{name}.{field}", getattr(mask, field), 0, 1)
    errors.require_at_least(1, f"{name}.masks_per_example", mask.masks_per_example)
    units.check(mask)
    errors.require_at_least(0, f"{name}.static_masks", mask.static_masks)
    rates = (mask.rate, mask.final_rate or mask.rate)
    errors.require(mask.predict_rate <= mask.masks_per_example * min(rates) + 1e-6, f"{name}.predict_rate",
                  mask.predict_rate,
                  f"at most {name}.masks_per_example = {mask.masks_per_example} times what is corrupted, {min(rates)}")
    errors.require(mask.masks_per_example * max(rates) <= 1 + 1e-6, f"{name}.masks_per_example", mask.masks_per_example,
                  f"at most 1 / {max(rates)}, the share that each of a row's disjoint masks takes")
    share = mask.mask_token_prob + mask.random_token_prob
    errors.require(share <= 1 + 1e-6, f"{name}.mask_token_prob + {name}.random_token_prob", share, "at most 1")


def knobs(cfg: config.Config) -> dict[str, np.generic]:
    """What a run's masks follow from, as scalars that are traced.

    rate: share of a row's eligible tokens that is corrupted, within a step that step's; final_rate: what it comes to by
    the end of training, 0: it stays; cosine: 1 where it goes there along half a cosine, 0 along a line; predict: share
    that is predicted, over all masks of a row, 0: what is corrupted; copies: static masks of a row, 0: dynamic;
    mask_share, random_share: of the corrupted.
    """
    mask = cfg.mask
    return {"rate": np.float32(mask.rate), "final_rate": np.float32(mask.final_rate),
            "cosine": np.float32(mask.schedule == "cosine"), "predict": np.float32(mask.predict_rate),
            "copies": np.int32(mask.static_masks), "mask_share": np.float32(mask.mask_token_prob),
            "random_share": np.float32(mask.random_token_prob)}


def frozen(cfg: config.Config) -> dict[str, np.generic]:
    """Pure [MASK] at config.eval.mask_rate: the same masks for every model."""
    return knobs(config.Config(mask=config.Mask(rate=cfg.eval.mask_rate, mask_token_prob=1.0, random_token_prob=0.0)))


def slots(max_rate: float, length: int) -> int:
    """K, the most tokens that a row of `length` can have masked at rates up to max_rate."""
    return math.ceil(max_rate * length - 1e-6)


def cumulative(unigram_V: np.ndarray, uniform: bool) -> np.ndarray:
    """The distribution function of the random tokens: unigram counts, or uniform, over all but the special tokens."""
    weight_V = np.where(np.arange(len(unigram_V)) >= NUM_SPECIAL, 1 if uniform else unigram_V, 0)
    # In float64, and over its own last value: float32 ends below 1 for large counts, and a draw above it has no token.
    cdf_V = np.cumsum(weight_V, dtype=np.float64)
    return (cdf_V / cdf_V[-1]).astype(np.float32)


def scheduled(knobs: types.TracedHparams, done) -> types.TracedHparams:
    """The knobs with the masking rate of the moment when a share `done` of training's steps is over (0 to 1).

    From rate to final_rate, along a line or half a cosine (Ankner et al. 2023); all of it may be traced.
    """
    rate, final_rate = knobs.objective["rate"], knobs.objective["final_rate"]
    way = jnp.where(knobs.objective["cosine"] > 0, (1 - jnp.cos(jnp.pi * done)) / 2, done)
    rise = jnp.where(final_rate > 0, final_rate - rate, 0)
    return knobs._replace(objective=knobs.objective | {"rate": rate + way * rise})


def static_keys(knobs: types.TracedHparams, batch: types.Batch):
    """The keys of the rows' masks where those are static, as BERT's were (RoBERTa, Liu et al. 2019, section 4.1).

    They follow from the seed, a row's number in the split and its epoch modulo the copies, from nothing else.
    """
    key = jax.random.fold_in(jax.random.key(knobs.seed), 2**31 + 1)  # no step's number, nor that of initialisation
    copy_B = batch.epoch_B % jnp.maximum(knobs.objective["copies"], 1)
    return jax.vmap(lambda row, copy: jax.random.fold_in(jax.random.fold_in(key, row), copy))(batch.row_B, copy_B)


def predicted(mask: config.Mask) -> float:
    """The share of the eligible tokens that a run predicts in a step, on average: any schedule's is halfway."""
    return mask.predict_rate or mask.masks_per_example * (mask.rate + (mask.final_rate or mask.rate)) / 2


def draw(key_B, ids_BxL, knobs: types.TracedHparams, *, slots: int, cdf_V, static_key_B=None, view=0, views: int = 1,
         unknown: bool = False, unit: units.Unit | None = None) -> tuple[Masked, jax.Array]:
    """`corrupt` as a run's knobs say, under each row's key; and the keys left for what else is drawn for a row.

    Without a "rate" among them every number of tokens is as likely.

    The one place that says how masks follow from keys: the floor of a loss is computed under the loss's own masks.
    static_key_B: of the masks alone, taken where the run's masks are static.
    """
    mask_key_B, rest_key_B = jax.vmap(jax.random.split, out_axes=1)(key_B)
    if static_key_B is not None:
        mask_key_B = jnp.where(knobs.objective["copies"] > 0, static_key_B, mask_key_B)
    if views > 1:
        rest_key_B = jax.vmap(jax.random.fold_in, (0, None))(rest_key_B, view)
    said = {name: knobs.objective.get(name) for name in ("rate", "predict", "mask_share", "random_share")}
    return corrupt(mask_key_B, ids_BxL, **said, slots=slots, cdf_V=cdf_V, view=view, views=views,
                   unknown=unknown, unit=unit), rest_key_B


def predicted_places(masked: Masked):
    """predicted_BxL: whether each token of a row is among those that are predicted."""
    rows_Bx1 = jnp.arange(len(masked.ids_BxL))[:, None]
    return jnp.zeros(masked.ids_BxL.shape, bool).at[rows_Bx1, masked.positions_BxK].max(masked.weights_BxK > 0)


class Draws(NamedTuple):
    """The uniform numbers of a row, all of one draw: on CPU each draw is a loop of ten kernels."""

    count: jax.Array     # rounds the number of tokens that are chosen, up or down
    order_L: jax.Array   # the random order in which they are
    kind_K: jax.Array    # of each slot of this view: whether [MASK], a random token or the token itself stands there
    token_K: jax.Array   # and which random token it would be


def uniform(key, length: int, slots: int, view, views: int) -> Draws:
    """The draws of one view of a row. More slots leave those of the first as they were."""
    every = jax.random.uniform(key, (1 + length + 2 * views * slots,))
    count, order_L, of_slots = every[0], every[1:1 + length], every[1 + length:]
    kind_K, token_K = of_slots.reshape(slots, views, 2)[:, view].T
    return Draws(count, order_L, kind_K, token_K)


def edges(rate, count, eligible, views: int):
    """Where in the random order of a row's eligible tokens each of its disjoint views starts and the last one ends.

    reached_E: strides of rate * eligible from `count`, a draw from U(0,1); edge_E: their whole parts, so that each view
    holds exactly floor(rate * eligible + U) tokens with a U(0,1) of its own, the fraction of its start.
    """
    reached_E = jnp.arange(views + 1) * (rate * eligible) + count
    edge_E = jnp.minimum(jnp.floor(reached_E).astype(jnp.int32), eligible)
    return reached_E, edge_E


def any_number(count, eligible):
    """`edges` of one view of 1 to all of a row's eligible tokens, each number as likely; count: a draw from U(0,1)."""
    edge_E = jnp.minimum(jnp.stack([jnp.int32(0), 1 + jnp.floor(count * eligible).astype(jnp.int32)]), eligible)
    return edge_E.astype(jnp.float32), edge_E


def corrupt(key_B, ids_BxL, *, rate, mask_share, random_share, slots: int, cdf_V, predict=0.0, view=0, views: int = 1,
            unknown: bool = False, unit: units.Unit | None = None) -> Masked:
    """Masks exactly floor(rate * eligible + U(0,1)) tokens of each row, drawn without replacement.

    A token is eligible unless it is special or padding; `unknown`: [UNK] is, too. Of those chosen a mask_share becomes
    [MASK], a random_share a draw from cdf_V, and the rest stay (BERT, Devlin et al. 2019, section 3.1; the count:
    Wettig et al. 2022). The rate and the shares may be traced; at most `slots` tokens of a row are chosen, which
    `slots()` makes enough. rate None: any number of tokens from 1 to all that are eligible, each as likely.

    predict: the share of the eligible tokens that is predicted, apart from the rate at which they are corrupted (Wettig
    et al. 2022, on corruption and prediction); 0: all that are corrupted. A row has `views` masks, of which this call
    draws number `view` from the keys of them all: each takes exactly floor(rate * eligible + U) tokens that no other
    takes, of which exactly floor(predict / views * eligible + U) are predicted, with the same U(0,1). One view so
    predicts a random part of what is corrupted, several predict more than any of them corrupts. It costs a pass through
    the model for each view, and the output layer works on all `slots`, whether predicted or not.

    unit: words or spans are chosen whole, in their random order until the next word would pass the number of tokens
    above. So that is never passed, and missed by less than a word; what is predicted, too, is whole words. One view.
    """

    def row(key, ids_L):
        draws = uniform(key, len(ids_L), slots, view, views)
        eligible_L = (ids_L >= NUM_SPECIAL) | (ids_L == UNK) if unknown else ids_L >= NUM_SPECIAL
        eligible = eligible_L.sum()
        reached_E, edge_E = any_number(draws.count, eligible) if rate is None else edges(
            rate, draws.count, eligible, views)
        start, count = edge_E[view], edge_E[view + 1] - edge_E[view]

        # The eligible tokens in their random order, of which this view takes those from its start on.
        order_L = draws.order_L if unit is None else units.order(unit, key, ids_L, draws.order_L)
        order_L = jnp.where(eligible_L, order_L, -1.0)
        _, ordered = jax.lax.top_k(order_L, min(views * slots + (unit is not None), len(order_L)))
        if unit is not None:
            count = units.whole(unit, ids_L, ordered, eligible, count)
        positions_K = jnp.roll(ordered, -start)[:slots]
        corrupted_K = jnp.arange(slots) < count
        part = jnp.floor(predict / views * eligible + reached_E[view] % 1).astype(jnp.int32)
        if unit is not None:
            part = units.whole(unit, ids_L, ordered, eligible, part)
        predicted_K = corrupted_K & (jnp.arange(slots) < jnp.where(predict > 0, part, count))

        targets_K = ids_L[positions_K]
        random_K = jnp.searchsorted(cdf_V, draws.token_K, side="right").astype(ids_L.dtype)
        kept_or_random_K = jnp.where(draws.kind_K < mask_share + random_share, random_K, targets_K)
        shown_K = jnp.where(draws.kind_K < mask_share, MASK, kept_or_random_K)
        ids_L = ids_L.at[positions_K].set(jnp.where(corrupted_K, shown_K, targets_K))
        return Masked(ids_L, positions_K, targets_K, predicted_K.astype(jnp.float32), count, eligible)

    return jax.vmap(row)(key_B, ids_BxL)
