"""Denoising: a decoder writes the example that its encoder sees masked (Lewis et al. 2020, Raffel et al. 2020).

The source is the example with tokens masked as config.mask says, BART's token masking. The target is the whole example,
each token predicted from those before it and from the source. Evaluation scores the masked tokens, so that the loss
compares with that of masked language models on the same examples: here each is predicted with those before it known.
"""

import dataclasses

import jax.numpy as jnp

from mlm.base import types
from mlm.base.estimates import Score
from mlm.base.special import MASK, NUM_SPECIAL
from mlm.objectives import causal, masking, mlm, token_prediction

SEQUENCE_COLUMNS = ("denoising_nats", "denoising_weight")
SCORES = (
    *token_prediction.build_scores("masked", "nats per masked token"),
    Score("sequence_loss", "held-out loss of the whole sequence", SEQUENCE_COLUMNS, unit="nats per token", better=-1),
    Score("realised_rate", "share of tokens masked", ("masked_weight", "eligible"), format=".4f", share=True),
)
TRAIN_SCORES = (
    Score("accuracy", "training accuracy of [MASK]", ("correct", "masked_weight"), share=True),
    masking.CORRUPTED,
)


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective: it predicts [SEP] and unmasked tokens too, but not the first token of a segment."""
    sample_masks = masking.build_sampler(cfg, dataset)
    log_unigram_V = token_prediction.compute_word_log_unigram(dataset)

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        text = batch.text
        masked, dropout_key_B = sample_masks(batch, key_B, hparams, train=train)
        source = text._replace(ids_BxL=masked.ids_BxL)
        (h_BxLxD,) = model.encode(params["model"], text, source, key_B=dropout_key_B if train else None)
        target_BxK = text.ids_BxL[:, 1:]
        weight_BxK = causal.compute_eval_mask(text, key_B, hparams)[:, 1:].astype(jnp.float32)
        masked_BxK = weight_BxK * (masked.ids_BxL[:, 1:] == MASK)
        compute_loss = token_prediction.select_token_loss(train, cfg.optim)
        nats_BxK, correct_BxK = compute_loss(params["model"], model, h_BxLxD[:, :-1], target_BxK)
        sums = {
            "masked_nats": (nats_BxK * masked_BxK).sum(-1),
            "masked_weight": masked_BxK.sum(-1),
            "correct": (correct_BxK * masked_BxK).sum(-1),
            **masking.count_tokens(masked, text),
        }
        if not train:
            word_BxK = jnp.where(masked_BxK > 0, target_BxK, NUM_SPECIAL)  # special tokens have no unigram share
            sums |= token_prediction.compute_unigram_baseline(log_unigram_V, word_BxK, masked_BxK)
        return types.LossSums({"denoising": (nats_BxK * weight_BxK).sum(-1)}, {"denoising": weight_BxK.sum(-1)}, sums)

    def compute_eval_mask(text, key_B, hparams):
        return masked_lm.eval_mask(text, key_B, hparams) & causal.compute_eval_mask(text, key_B, hparams)

    masked_lm = mlm.build(cfg, dataset)
    parts = {"loss": loss, "eval_mask": compute_eval_mask, "scores": SCORES, "train_scores": TRAIN_SCORES}
    return dataclasses.replace(masked_lm, **parts)


SPEC = dataclasses.replace(
    mlm.MASKED_SPEC,
    build=build,
    prediction_rates=lambda cfg: types.PredictionRates(following=1.0),
    directionalities=(types.Directionality.CAUSAL,),
    visibility=types.Visibility.UNMASKED_OR_LEFT,
    required_fields={"mask.predict_rate": 0.0, "mask.masks_per_example": 1},  # it predicts all tokens
    conditional_fields=("mask", "eval.mask_rate", "eval.mask_unit", "optim.label_smoothing", "optim.z_loss"),
    makes_source=True,
)
