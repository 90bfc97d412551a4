"""Masking on the device: which tokens of an example are corrupted and predicted, and what replaces them.

Letters in array names: E edges between the masks of an example; others as in types.py.
"""

import enum
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score
from mlm.base.fields import DerivedField
from mlm.base.special import MASK, NUM_SPECIAL, UNK
from mlm.objectives import masking_units

NO_RANDOM_TOKENS = np.ones(1)  # as cdf_V: no token becomes a random one
CORRUPTED = Score("realised_rate", "share of tokens corrupted", ("corrupted", "eligible"), format=".4f", share=True)


class MaskSchedule(enum.StrEnum):
    """The masking rate over a training: the values of config.mask.schedule."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class MaskedBatch(NamedTuple):
    """Corrupted examples and their targets. Slots of weight 0 are unused: position and target mean nothing there."""

    ids_BxL: jax.Array
    positions_BxK: jax.Array
    targets_BxK: jax.Array
    weights_BxK: jax.Array  # float32, 1 where the token is predicted
    num_corrupted_B: jax.Array  # tokens chosen
    num_eligible_B: jax.Array  # tokens that could have been chosen


def _count_masks(cfg):
    min_rate = min(cfg.mask.rate, cfg.mask.final_rate or cfg.mask.rate)
    return max(1, math.ceil(cfg.mask.predict_rate / (min_rate or 1) - 1e-6))


DERIVED_FIELDS = (
    DerivedField(
        "mask.max_rate", ("mask.rate", "mask.final_rate"), lambda cfg: max(cfg.mask.rate, cfg.mask.final_rate)
    ),
    DerivedField("mask.masks_per_example", ("mask.predict_rate", "mask.rate", "mask.final_rate"), _count_masks),
)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.mask that no run could use."""
    mask, name = cfg.mask, "config.mask"
    for field in ("rate", "final_rate"):
        expected = f"at most {name}.max_rate = {mask.max_rate}, which sizes the compiled step"
        errors.require(getattr(mask, field) <= mask.max_rate, f"{name}.{field}", getattr(mask, field), expected)
    has_final = mask.schedule == MaskSchedule.CONSTANT or mask.final_rate > 0
    errors.require_field(cfg, "mask.final_rate", has_final, "a final rate", "mask.schedule")
    # Words cannot be split into masks of one size.
    is_possible = mask.unit == "token" or mask.masks_per_example == 1
    errors.require_field(cfg, "mask.masks_per_example", is_possible, "1", "mask.unit")
    rates = (mask.rate, mask.final_rate or mask.rate)
    has_enough = mask.predict_rate <= mask.masks_per_example * min(rates) + 1e-6
    expected = f"at most {name}.masks_per_example = {mask.masks_per_example} times what is corrupted, {min(rates)}"
    errors.require_field(cfg, "mask.predict_rate", has_enough, expected)
    expected = f"at most 1 / {max(rates)}, the share that each of an example's disjoint masks takes"
    errors.require_field(cfg, "mask.masks_per_example", mask.masks_per_example * max(rates) <= 1 + 1e-6, expected)
    share = mask.mask_token_prob + mask.random_token_prob
    errors.require(share <= 1 + 1e-6, f"{name}.mask_token_prob + {name}.random_token_prob", share, "at most 1")


def make_train_hparams(cfg: config.Config) -> dict[str, np.generic]:
    """The traced scalars that determine a run's masks.

    They are fields of config.mask. rate: in a step, that step's rate; final_rate: 0 keeps the rate constant; cosine: 1
    for half a cosine from rate to final_rate, 0 for a line; predict_rate: 0 predicts what is corrupted; static_masks: 0
    means dynamic masks.
    """
    names = ("rate", "final_rate", "predict_rate", "mask_token_prob", "random_token_prob")
    cosine, static_masks = np.float32(cfg.mask.schedule == MaskSchedule.COSINE), np.int32(cfg.mask.static_masks)
    scalars: dict[str, np.generic] = {name: np.float32(getattr(cfg.mask, name)) for name in names}
    return scalars | {"cosine": cosine, "static_masks": static_masks}


def make_eval_hparams(cfg: config.Config) -> dict[str, np.generic]:
    """Pure [MASK] at config.eval.mask_rate: the same masks for every model."""
    mask = config.Mask(rate=cfg.eval.mask_rate, mask_token_prob=1.0, random_token_prob=0.0)
    return make_train_hparams(config.Config(mask=mask))


def count_slots(max_rate: float, seq_len: int, unit: masking_units.MaskingUnit | None = None) -> int:
    """K, the most tokens of an example that rates up to max_rate can mask; the last word of a mask may exceed them."""
    max_excess = 0 if unit is None or unit.starts_V.all() else masking_units.MAX_EXCESS
    return min(seq_len, math.ceil(max_rate * seq_len - 1e-6) + max_excess)


def compute_random_token_cdf(unigram_V: np.ndarray, uniform: bool) -> np.ndarray:
    """cdf_V of the random tokens: unigram counts, or uniform, over all but the special tokens."""
    weight_V = np.where(np.arange(len(unigram_V)) >= NUM_SPECIAL, 1 if uniform else unigram_V, 0)
    # In float64, divided by its own last value: float32 ends below 1 for large counts, and a draw above that fits none.
    cdf_V = np.cumsum(weight_V, dtype=np.float64)
    return (cdf_V / cdf_V[-1]).astype(np.float32)


def schedule_rate(hparams: types.TracedHparams, progress) -> types.TracedHparams:
    """The hyperparameters with the rate of a step (Ankner et al. 2023); progress: share of the steps done, 0 to 1."""
    rate, final_rate = hparams.objective["rate"], hparams.objective["final_rate"]
    fraction = jnp.where(hparams.objective["cosine"] > 0, (1 - jnp.cos(jnp.pi * progress)) / 2, progress)
    rise = jnp.where(final_rate > 0, final_rate - rate, 0)
    return hparams._replace(objective=hparams.objective | {"rate": rate + fraction * rise})


def derive_static_keys(hparams: types.TracedHparams, batch: types.Batch):
    """key_B of static masks (Liu et al. 2019, section 4.1): of the seed, the index in the split, and the epoch."""
    assert batch.epoch_B is not None and batch.split_index_B is not None
    # 2^31 + 1 is the number of no step, nor that of initialisation.
    key = jax.random.fold_in(jax.random.key(hparams.seed), 2**31 + 1)
    number_B = batch.epoch_B % jnp.maximum(hparams.objective["static_masks"], 1)
    return jax.vmap(jax.random.fold_in)(jax.vmap(jax.random.fold_in, (None, 0))(key, batch.split_index_B), number_B)


def estimate_predict_rate(mask: config.Mask) -> float:
    """The share of the eligible tokens that a step predicts; of masks without a schedule."""
    return mask.predict_rate or mask.masks_per_example * mask.rate


def sample_masks(
    key_B,
    ids_BxL,
    hparams: types.TracedHparams,
    *,
    static_key_B=None,
    mask_index=0,
    num_masks: int = 1,
    **settings: Any,
) -> tuple[MaskedBatch, jax.Array]:
    """`corrupt_tokens` with the run's hyperparameters, and the keys left for the example's other draws.

    This alone decides how masks follow from keys: the floor of a loss is computed under the same masks as the loss.
    hparams without a "rate": any number of masked tokens is equally likely. static_key_B: the keys of static masks.
    """
    mask_key_B, rest_key_B = jax.vmap(jax.random.split, out_axes=1)(key_B)
    if static_key_B is not None:
        mask_key_B = jnp.where(hparams.objective["static_masks"] > 0, static_key_B, mask_key_B)
    if num_masks > 1:
        rest_key_B = jax.vmap(jax.random.fold_in, (0, None))(rest_key_B, mask_index)
    for name in ("rate", "predict_rate", "mask_token_prob", "random_token_prob"):
        settings[name] = hparams.objective.get(name)
    return corrupt_tokens(mask_key_B, ids_BxL, mask_index=mask_index, num_masks=num_masks, **settings), rest_key_B


def build_sampler(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> Callable:
    """(batch, key_B, hparams, *, train, mask_index=0) -> `sample_masks` as config.mask says, or in evaluation."""
    unigram_V = np.frombuffer(dataset.unigram_counts, np.int64)
    cdf_V = compute_random_token_cdf(unigram_V, cfg.mask.random_token_from == "uniform")
    unit, eval_unit = (masking_units.build_unit(cfg, dataset, train=train) for train in (True, False))

    def sample(batch, key_B, hparams, *, train, mask_index=0):
        max_rate, own_unit = (cfg.mask.max_rate, unit) if train else (cfg.eval.mask_rate, eval_unit)
        settings: dict[str, Any] = {"unit": own_unit, "cdf_V": cdf_V}
        settings["num_slots"] = count_slots(max_rate, dataset.seq_len, own_unit)
        if train:
            settings |= {"num_masks": cfg.mask.masks_per_example, "mask_unk": cfg.mask.mask_unk}
            settings["mask_index"] = mask_index
            settings["static_key_B"] = derive_static_keys(hparams, batch) if batch.split_index_B is not None else None
        return sample_masks(key_B, batch.text.ids_BxL, hparams, **settings)

    return sample


def drop_unpredicted(mask: config.Mask, masked: MaskedBatch) -> MaskedBatch:
    """The masks with the first slots alone, which all predictions fit into; words may exceed any number of slots."""
    if not mask.predict_rate or mask.unit != "token":
        return masked
    num_slots = count_slots(mask.predict_rate / mask.masks_per_example, masked.ids_BxL.shape[1])
    names = ("positions_BxK", "targets_BxK", "weights_BxK")
    return masked._replace(**{name: getattr(masked, name)[:, :num_slots] for name in names})


def count_tokens(masked: MaskedBatch, text: types.Tokens, mask_index=0) -> dict[str, jax.Array]:
    """Sums of each example, float32: "eligible" and "corrupted" tokens, and all "tokens"; 0 but for its first mask."""
    tokens_B = (text.segments_BxL > 0).sum(-1)
    counts = {"eligible": masked.num_eligible_B, "corrupted": masked.num_corrupted_B, "tokens": tokens_B}
    return {name: jnp.where(mask_index == 0, count_B, 0).astype(jnp.float32) for name, count_B in counts.items()}


def get_predicted_mask(masked: MaskedBatch):
    """predicted_BxL: whether each token is predicted."""
    number_Bx1 = jnp.arange(len(masked.ids_BxL))[:, None]
    return jnp.zeros(masked.ids_BxL.shape, bool).at[number_Bx1, masked.positions_BxK].max(masked.weights_BxK > 0)


def sample_uniforms(key, seq_len: int, num_slots: int, mask_index, num_masks: int):
    """(count, order_L, kind_K, token_K) of one mask of an example, from U(0,1).

    They round the number of chosen tokens; say in which order tokens are chosen, and whether a slot gets [MASK], a
    random token or keeps its token; and choose the random token. With more slots those of the first ones stay the same.
    """
    draws = jax.random.uniform(key, (1 + seq_len + 2 * num_masks * num_slots,))  # on CPU each call is ten kernels
    count, order_L, slot_draws = draws[0], draws[1 : 1 + seq_len], draws[1 + seq_len :]
    return count, order_L, *slot_draws.reshape(num_slots, num_masks, 2)[:, mask_index].T


def compute_mask_edges(rate, offset, num_eligible, num_masks: int):
    """(reached_E, edge_E): where in the random order of the eligible tokens each mask starts, and the last ends.

    reached_E is offset, a draw from U(0,1), plus multiples of rate * num_eligible; edge_E their integer parts. So each
    mask has exactly floor(rate * num_eligible + U) tokens, with U(0,1) the fraction of its own start.
    """
    reached_E = jnp.arange(num_masks + 1) * (rate * num_eligible) + offset
    edge_E = jnp.minimum(jnp.floor(reached_E).astype(jnp.int32), num_eligible)
    return reached_E, edge_E


def compute_any_count_edges(draw, num_eligible):
    """`compute_mask_edges` of one mask of 1 to all eligible tokens, each number equally likely; draw: from U(0,1)."""
    count = 1 + jnp.floor(draw * num_eligible).astype(jnp.int32)
    edge_E = jnp.minimum(jnp.stack([jnp.int32(0), count]), num_eligible)
    return edge_E.astype(jnp.float32), edge_E


def corrupt_tokens(
    key_B,
    ids_BxL,
    *,
    rate,
    mask_token_prob,
    random_token_prob,
    num_slots: int,
    cdf_V=NO_RANDOM_TOKENS,
    predict_rate=0.0,
    mask_index=0,
    num_masks: int = 1,
    mask_unk: bool = False,
    unit: masking_units.MaskingUnit | None = None,
) -> MaskedBatch:
    """Masks exactly floor(rate * eligible + U(0,1)) tokens of each example, drawn without replacement.

    A token is eligible unless it is special or padding. Of the chosen a share becomes [MASK], a share a random token,
    and the rest stay (BERT, Devlin et al. 2019, section 3.1; the count: Wettig et al. 2022). Rates and shares may be
    traced.

    An example has `num_masks` disjoint masks, of which this call makes one: each corrupts exactly
    floor(rate * eligible + U) tokens, of which the first floor(predict_rate / num_masks * eligible + U) are predicted,
    with the same U(0,1). One mask so predicts a random part of what it corrupts; several predict more than each
    corrupts, for a pass through the model each.

    Args:
        rate: share of the eligible tokens to corrupt; None: any number from 1 to all, each equally likely.
        mask_token_prob: share of the chosen tokens that [MASK] replaces.
        random_token_prob: share of the chosen tokens that a draw from cdf_V replaces.
        num_slots: K, at least the number of chosen tokens; `count_slots` gives it.
        predict_rate: share of the eligible tokens that all masks together predict (Wettig et al. 2022, on corruption
            and prediction); 0: all that are corrupted.
        mask_index: which of the `num_masks` masks of the same keys to make.
        mask_unk: whether [UNK] is eligible.
        unit: choose whole words or spans in their random order, as many as have the number of tokens above on average,
            both of corrupted and of predicted tokens; for one mask only. None: tokens.
    """

    def corrupt_example(key, ids_L):
        draw, order_L, kind_K, token_K = sample_uniforms(key, len(ids_L), num_slots, mask_index, num_masks)
        eligible_L = (ids_L >= NUM_SPECIAL) | (ids_L == UNK) if mask_unk else ids_L >= NUM_SPECIAL
        num_eligible = eligible_L.sum()
        if rate is None:
            reached_E, edge_E = compute_any_count_edges(draw, num_eligible)
        else:
            reached_E, edge_E = compute_mask_edges(rate, draw, num_eligible, num_masks)
        start, count = edge_E[mask_index], edge_E[mask_index + 1] - edge_E[mask_index]

        # The eligible tokens in their random order, of which this mask takes those from its start on.
        if unit is not None:
            order_L = masking_units.sample_unit_order(unit, key, ids_L, eligible_L, order_L, num_slots)
        order_L = jnp.where(eligible_L, order_L, -2.0)  # below words that no mask can hold
        num_ordered = num_masks * num_slots if unit is None else 2 * num_slots + 1
        _, ordered = jax.lax.top_k(order_L, min(num_ordered, len(order_L)))
        num_predicted = jnp.floor(predict_rate / num_masks * num_eligible + reached_E[mask_index] % 1).astype(jnp.int32)
        if unit is not None:
            counts = jnp.stack([count, num_predicted])
            start, ends = masking_units.select_words(unit, key, ids_L, ordered, num_eligible, counts, num_slots)
            count, num_predicted = ends - start
        positions_K = jnp.roll(ordered, -start)[:num_slots]
        corrupted_K = jnp.arange(num_slots) < count
        predicted_K = corrupted_K & (jnp.arange(num_slots) < jnp.where(predict_rate > 0, num_predicted, count))

        targets_K = ids_L[positions_K]
        random_K = jnp.searchsorted(cdf_V, token_K, side="right").astype(ids_L.dtype)
        unmasked_K = jnp.where(kind_K < mask_token_prob + random_token_prob, random_K, targets_K)
        replacement_K = jnp.where(kind_K < mask_token_prob, MASK, unmasked_K)
        ids_L = ids_L.at[positions_K].set(jnp.where(corrupted_K, replacement_K, targets_K))
        return MaskedBatch(ids_L, positions_K, targets_K, predicted_K.astype(jnp.float32), count, num_eligible)

    return jax.vmap(corrupt_example)(key_B, ids_BxL)
