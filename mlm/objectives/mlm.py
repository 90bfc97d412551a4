"""Masked language modelling, and BERT's pretraining with next sentences (Devlin et al. 2019, section 3.1)."""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score
from mlm.base.special import MASK
from mlm.objectives import distillation, heads, masking, masking_units, token_prediction

SCORES = (
    *token_prediction.build_scores("mlm", "nats per masked token"),
    Score("realised_rate", "share of tokens masked", ("mlm_weight", "eligible"), format=".4f", share=True),
)
TRAIN_SCORES = (
    Score("accuracy", "training accuracy", ("correct", "mlm_weight"), share=True),
    masking.CORRUPTED,
    Score("realised_predict", "share of tokens predicted", ("mlm_weight", "eligible"), format=".4f", share=True),
)

NSP_SCORES = (
    *SCORES,
    Score("nsp_loss", "next-sentence loss", ("nsp_nats", "nsp_weight"), unit="nats per example", better=-1, chart=True),
    Score("nsp_accuracy", "next-sentence accuracy", ("nsp_correct", "nsp_weight"), better=1, share=True, chart=True),
)


Teacher = types.TeacherFn | types.Model | None


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo, teacher: Teacher = None) -> types.Objective:
    """The objective; it holds rates up to mask.max_rate in training and eval.mask_rate in evaluation.

    With a teacher, training predicts its probabilities of the masked tokens, and evaluation the tokens. A teacher that
    is a model adds the terms of distillation.py.
    """
    has_model = isinstance(teacher, types.Model)
    forward, unit = build_forward(cfg, dataset, teacher), masking_units.build_unit(cfg, dataset, train=False)
    num_slots = masking.count_slots(cfg.eval.mask_rate, dataset.seq_len, unit)

    def compute_eval_mask(text, key_B, hparams):
        masked, _ = masking.sample_masks(key_B, text.ids_BxL, hparams, num_slots=num_slots, unit=unit)
        return masked.ids_BxL == MASK

    return types.Objective(
        loss=lambda *args, **kwargs: forward(*args, **kwargs)[0],
        eval_mask=compute_eval_mask,
        scores=SCORES,
        train_scores=TRAIN_SCORES + (distillation.list_train_scores(cfg.distillation) if has_model else ()),
        totals=("tokens", "eligible", "corrupted"),
        masks_per_example=cfg.mask.masks_per_example,
        schedule_hparams=masking.schedule_rate,
        loss_weights=distillation.compute_loss_weights if has_model else lambda hparams: {},
    )


def build_forward(cfg: types.StaticConfig, dataset: types.DatasetInfo, teacher: Teacher = None) -> Callable:
    """As Objective.loss, but it returns (LossSums, h_BxLxD), for objectives that add a term."""
    sample_masks = masking.build_sampler(cfg, dataset)
    log_unigram_V = token_prediction.compute_word_log_unigram(dataset)

    def forward(params, model, batch, key_B, hparams, *, train, mask_index=0):
        text = batch.text
        masked, dropout_key_B = sample_masks(batch, key_B, hparams, train=train, mask_index=mask_index)
        masked = masking.drop_unpredicted(cfg.mask, masked) if train else masked
        masked_text, key_B = text._replace(ids_BxL=masked.ids_BxL), dropout_key_B if train else None
        if train and isinstance(teacher, types.Model):
            losses, h_BxLxD = distillation.compute_losses(
                cfg.distillation, teacher, params, model, batch, masked, key_B, hparams
            )
            return losses._replace(sums_B=losses.sums_B | masking.count_tokens(masked, text, mask_index)), h_BxLxD
        (h_BxLxD,) = model.encode(params["model"], masked_text, batch.source, key_B=key_B)
        h_BxKxD = jnp.take_along_axis(h_BxLxD, masked.positions_BxK[..., None], axis=1)
        slots = masked.targets_BxK, masked.weights_BxK
        if train and callable(teacher):
            prob_BxKxV = teacher(masked.ids_BxL, masked.positions_BxK)
            nats_B, sums = token_prediction.predict_distribution(params, model, h_BxKxD, prob_BxKxV, *slots)
        else:
            nats_B, sums = token_prediction.predict_tokens(
                cfg.optim, log_unigram_V, params, model, h_BxKxD, *slots, train=train
            )
        sums |= masking.count_tokens(masked, text, mask_index)
        return types.LossSums({"mlm": nats_B}, {"mlm": masked.weights_BxK.sum(-1)}, sums), h_BxLxD

    return forward


def build_nsp(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The loss of `build` plus that of classifying, by the first token's state, whether segment B follows segment A."""
    forward = build_forward(cfg, dataset)

    def init(key, model):
        key_pool, key_label = jax.random.split(key)
        width = model.width
        return {"pool": heads.init_dense(key_pool, width, width), "label": heads.init_dense(key_label, width, 2)}

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        mlm_sums, h_BxLxD = forward(params, model, batch, key_B, hparams, train=train, mask_index=mask_index)
        head, next_B = params["objective"], batch.labels["next_B"]
        pooled_BxD = jnp.tanh(heads.apply_dense(head["pool"], h_BxLxD[:, 0].astype(jnp.float32)))
        logits_Bx2 = heads.apply_dense(head["label"], pooled_BxD)
        real_B = (batch.text.segments_BxL[:, 0] > 0).astype(jnp.float32)
        nats_B = -jnp.take_along_axis(jax.nn.log_softmax(logits_Bx2), next_B[:, None], axis=-1)[:, 0] * real_B
        correct_B = (logits_Bx2.argmax(-1) == next_B) * real_B
        nsp_sums = {"nsp": nats_B}, {"nsp": real_B}, {"nsp_correct": correct_B}
        return types.LossSums(*map(operator.or_, mlm_sums, nsp_sums))

    return dataclasses.replace(build(cfg, dataset), init=init, loss=loss, scores=NSP_SCORES)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for bad masks, and for a teacher that cannot know the masked tokens."""
    masking.check(cfg)
    if cfg.distillation.teacher:
        required: dict[str, Any] = {"optim.z_loss": 0.0}
        if not distillation.has_model(cfg.distillation):
            required |= {"data.corpus": "language", "pack.mode": "doc_sentences", "mask.mask_token_prob": 1.0}
        for name, value in required.items():
            is_met = operator.attrgetter(name)(cfg) == value
            errors.require_field(cfg, name, is_met, str(value), "distillation.teacher")
        divides = cfg.model.width % (cfg.distillation.relation_heads or 1) == 0
        expected = f"a divisor of config.model.width = {cfg.model.width}"
        errors.require_field(cfg, "distillation.relation_heads", divides, expected)


def make_train_hparams(cfg: config.Config) -> dict[str, np.generic]:
    """The traced values: those of the masks, and with a model as teacher those of its losses."""
    teacher = cfg.distillation
    traced = distillation.make_hparams(teacher) if distillation.has_model(teacher) else {}
    return masking.make_train_hparams(cfg) | traced


MASKED_SPEC = types.ObjectiveSpec(  # of all objectives that predict masked tokens
    build,
    prediction_rates=lambda cfg: types.PredictionRates(words=masking.estimate_predict_rate(cfg.mask)),
    directionalities=(types.Directionality.BIDIRECTIONAL, types.Directionality.CAUSAL, types.Directionality.MIXED),
    visibility=types.Visibility.UNMASKED,
    check=masking.check,
    train_hparams=masking.make_train_hparams,
    eval_hparams=masking.make_eval_hparams,
    conditional_fields=("mask", "eval.mask_rate", "eval.mask_rates", "eval.mask_unit", "optim.z_loss"),
)
SPEC = dataclasses.replace(
    MASKED_SPEC,
    check=check,
    train_hparams=make_train_hparams,
    conditional_fields=(*MASKED_SPEC.conditional_fields, "distillation"),
)
NSP_SPEC = dataclasses.replace(
    MASKED_SPEC,
    build=build_nsp,
    required_fields={"pack.mode": "segment_pair"},
    directionalities=(types.Directionality.BIDIRECTIONAL,),
)
