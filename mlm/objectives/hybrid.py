"""Causal and masked examples in one batch, or one after the other in one run.

GPT-BERT (Charpentier & Samuel 2024, arXiv 2410.24159): the state before a masked token predicts it, as the state before
the next token does ("masked next token prediction"), so that both kinds of example train the same output. With causal
examples alone for the first steps this is "causal then masked" (Gisserot-Boukhlef et al. 2025, arXiv 2507.00994).
"""

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import batch_warmup, config, types
from mlm.base.estimates import Score
from mlm.objectives import causal, heads, masking, mlm, token_prediction

CAUSAL_COLUMNS, EXAMPLE_COLUMNS = ("causal_nats", "causal_weight"), ("causal_examples", "examples")
SCORES = (
    *mlm.SCORES,
    Score("causal_loss", "held-out causal loss", CAUSAL_COLUMNS, unit="nats per token", better=-1, chart=True),
    Score("causal_accuracy", "held-out causal accuracy", ("causal_correct", "causal_weight"), better=1, share=True),
)
TRAIN_SCORES = (
    *mlm.TRAIN_SCORES,
    Score("causal_accuracy", "causal training accuracy", ("causal_correct", "causal_weight"), share=True),
    Score("realised_causal", "share of examples that are causal", EXAMPLE_COLUMNS, format=".4f", share=True),
)


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective. Evaluation scores every example twice: masked as by mlm, and causally."""
    masked_forward, causal_objective = mlm.build_forward(cfg, dataset), causal.build(cfg, dataset)
    sample_masks = masking.build_sampler(cfg, dataset)

    def evaluate(params, model, batch, key_B, hparams):
        masked_sums, _ = masked_forward(params, shift_states(model), batch, key_B, hparams, train=False)
        causal_sums = causal_objective.loss(params, read_causally(model), batch, key_B, hparams, train=False)
        real_B = heads.flag_real_examples(batch.text)
        sums = {"causal_correct": causal_sums.sums_B["correct"], "examples": real_B, "causal_examples": real_B}
        return types.LossSums(*map(operator.or_, masked_sums, causal_sums._replace(sums_B=sums)))

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        if not train:
            return evaluate(params, model, batch, key_B, hparams)
        text = batch.text
        values = hparams.objective
        causal_B = select_causal_examples(batch.index_B, values["causal_fraction"], values["causal_carry"])
        masked, dropout_key_B = sample_masks(batch, key_B, hparams, train=True)
        inputs = text._replace(ids_BxL=jnp.where(causal_B[:, None], text.ids_BxL, masked.ids_BxL))
        (h_BxLxD,) = model.encode(params["model"], inputs, batch.source, key_B=dropout_key_B, left_B=causal_B)
        nats_BxL, correct_BxL = token_prediction.select_token_loss(train, cfg.optim)(
            params["model"], model, take_previous_states(text, h_BxLxD), text.ids_BxL
        )
        weight_BxL = {
            "causal": causal.compute_eval_mask(text, key_B, hparams) & causal_B[:, None],
            "mlm": masking.get_predicted_mask(masked) * ~causal_B[:, None],
        }
        nats_B, correct_B, weight_B = (
            {term: (value_BxL * weight).sum(-1, dtype=jnp.float32) for term, weight in weight_BxL.items()}
            for value_BxL in (nats_BxL, correct_BxL, 1)
        )
        real_B = heads.flag_real_examples(batch.text)
        sums = {
            "correct": correct_B["mlm"],
            "causal_correct": correct_B["causal"],
            "eligible": masked.num_eligible_B * ~causal_B,
            "corrupted": masked.num_corrupted_B * ~causal_B,
            "causal_examples": causal_B * real_B,
            "examples": real_B,
            "tokens": (text.segments_BxL > 0).sum(-1),
        }
        return types.LossSums(nats_B, weight_B, {name: sum_B.astype(jnp.float32) for name, sum_B in sums.items()})

    return dataclasses.replace(
        mlm.build(cfg, dataset),
        loss=loss,
        scores=SCORES,
        train_scores=TRAIN_SCORES,
        loss_weights=compute_loss_weights,
        schedule_hparams=functools.partial(schedule_hparams, train=cfg.train),
    )


def select_causal_examples(index_B, fraction, carry: types.Array | float = 0.0):
    """causal_B: a fraction of a batch, spread evenly: floor(fraction * n + carry) of the first n are causal."""
    return count_causal_before(index_B + 1, fraction, carry) > count_causal_before(index_B, fraction, carry)


def count_causal_before(count, fraction, carry):
    """How many of the first `count` examples are causal; 1e-4 more, since float32 may fall just below an integer."""
    return jnp.floor(count * fraction + carry + 1e-4)


@functools.lru_cache(maxsize=8)
def shift_states(model: types.Model) -> types.Model:
    """The model with states shifted right by one, so that the state at each token predicts it."""

    def encode(params, text, source=None, **kwargs):
        return tuple(take_previous_states(text, h_BxLxD) for h_BxLxD in model.encode(params, text, source, **kwargs))

    return dataclasses.replace(model, encode=encode)


@functools.lru_cache(maxsize=8)
def read_causally(model: types.Model) -> types.Model:
    """The model as it reads causal examples, from left to right."""

    def encode(params, text, source=None, **kwargs):
        return model.encode(params, text, source, left_B=jnp.ones(len(text.ids_BxL), bool), **kwargs)

    return dataclasses.replace(model, directions=(types.Direction.LEFT,), encode=encode)


def take_previous_states(text: types.Tokens, h_BxLxD):
    """The state before each token, which predicts it; the first token of a segment keeps its own state."""
    return jnp.where((text.positions_BxL == 0)[..., None], h_BxLxD, jnp.roll(h_BxLxD, 1, axis=1))


def schedule_hparams(hparams: types.TracedHparams, progress: jax.Array, *, train: config.Train) -> types.TracedHparams:
    """The hyperparameters of a step: the masking rate's, and the causal fraction, 1 for the first share of the steps.

    causal_carry: the part of a causal example that earlier batches left over, so that batches of any size keep the
    fraction; batch_causal_fraction: the fraction of this batch, in a batch-size warm-up of the examples that it uses.
    """
    batch_size = train.batch_size
    values = masking.schedule_rate(hparams, progress).objective
    fraction = jnp.where(progress < values["causal_first_fraction"], 1.0, values["causal_fraction"])
    step = jnp.round(progress * train.steps)
    carry = step * (batch_size * fraction % 1) % 1
    in_batch = (count_causal_before(batch_size, fraction, carry) - count_causal_before(0, fraction, carry)) / batch_size
    if train.batch_warmup_fraction:
        is_used_B = batch_warmup.flag_used(train, step.astype(jnp.int32), batch_size)
        in_batch = select_causal_examples(jnp.arange(batch_size), fraction, carry).mean(where=is_used_B)
    new_values = {"causal_fraction": fraction, "causal_carry": carry, "batch_causal_fraction": in_batch}
    return hparams._replace(objective=values | new_values)


def compute_loss_weights(hparams: types.TracedHparams) -> dict:
    """Weights the terms by their numbers of examples, however many tokens an example of either kind predicts."""
    fraction = hparams.objective["batch_causal_fraction"]
    return {"mlm": 1 - fraction, "causal": fraction}


def make_train_hparams(cfg: config.Config) -> dict[str, np.generic]:
    """mlm's, those of config.hybrid, and those that `schedule_hparams` computes."""
    fraction = np.float32(cfg.hybrid.causal_fraction)
    return masking.make_train_hparams(cfg) | {
        "causal_fraction": fraction,
        "causal_first_fraction": np.float32(cfg.hybrid.causal_first_fraction),
        "causal_carry": np.float32(0),
        "batch_causal_fraction": fraction,
    }


def compute_prediction_rates(cfg: config.Config) -> types.PredictionRates:
    """All that follow in a causal example, and the masked words of the others."""
    fraction = cfg.hybrid.causal_first_fraction + (1 - cfg.hybrid.causal_first_fraction) * cfg.hybrid.causal_fraction
    words = (1 - fraction) * masking.estimate_predict_rate(cfg.mask)
    return types.PredictionRates(words=words, following=fraction)


SPEC = dataclasses.replace(
    mlm.MASKED_SPEC,
    build=build,
    required_fields={"mask.masks_per_example": 1},  # a causal example has no other mask
    prediction_rates=compute_prediction_rates,
    directionalities=(types.Directionality.MIXED,),
    train_hparams=make_train_hparams,
    conditional_fields=(*mlm.MASKED_SPEC.conditional_fields, "hybrid"),
    loss_visibility={"causal_loss": types.Visibility.CAUSAL},
    shift_states=shift_states,
)
