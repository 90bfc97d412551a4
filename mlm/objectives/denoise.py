"""Denoising: a decoder writes a row whose words an encoder has seen in part (Lewis et al. 2020, Raffel et al. 2020).

The source is the row with tokens masked as config.mask says, BART's token masking; the target is all of the row, each
token told from those before it and from the source. What evaluation asks for are the masked tokens, so that the loss
stands beside that of masked language models on the same rows: here each is told with those before it known.
"""
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score
from mlm.base.special import MASK, NUM_SPECIAL
from mlm.objectives import causal, masking, mlm, tokens, units

SCORES = (*tokens.scores("hidden", "nats per masked token"),
          Score("row_loss", "held-out loss of the whole row", ("denoise_nats", "denoise_weight"),
                unit="nats per token", better=-1),
          Score("realised_rate", "share of tokens masked", ("hidden_weight", "eligible"), form=".4f", share=True))
TRAINING = (Score("accuracy", "training accuracy of [MASK]", ("correct", "hidden_weight"), share=True),
            Score("realised_rate", "share of tokens corrupted", ("corrupted", "eligible"), form=".4f", share=True))


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on these rows: [SEP] and what is not masked are predicted too, and a segment's first token is not.
    """
    unigram_V = np.frombuffer(about.unigram, np.int64)
    cdf_V = masking.cumulative(unigram_V, cfg.mask.random_token_from == "uniform")
    log_unigram_V = tokens.log_unigram(unigram_V, np.arange(len(unigram_V)) >= NUM_SPECIAL)
    unit = units.of(cfg, about)

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        text = batch.text
        static_key_B = masking.static_keys(knobs, batch) if train and batch.row_B is not None else None
        rate = cfg.mask.max_rate if train else cfg.eval.mask_rate
        masked, dropout_key_B = masking.draw(key_B, text.ids_BxL, knobs, slots=masking.slots(rate, about.length),
                                             cdf_V=cdf_V, static_key_B=static_key_B,
                                             unknown=cfg.mask.mask_unk and train, unit=unit if train else None)
        h_BxLxD, = model.encode(params["model"], text, text._replace(ids_BxL=masked.ids_BxL),
                                key_B=dropout_key_B if train else None)
        target_BxK, weight_BxK = text.ids_BxL[:, 1:], causal.asked(text, key_B, knobs)[:, 1:].astype(jnp.float32)
        hidden_BxK = weight_BxK * (masked.ids_BxL[:, 1:] == MASK)
        predict = tokens.predictor(train, cfg.optim.label_smoothing)
        nats_BxK, right_BxK = predict(params["model"], model, h_BxLxD[:, :-1], target_BxK)
        counts = {"eligible": masked.eligible_B, "corrupted": masked.corrupted_B,
                  "tokens": (text.segments_BxL > 0).sum(-1)}
        sums = {"hidden_nats": (nats_BxK * hidden_BxK).sum(-1), "hidden_weight": hidden_BxK.sum(-1),
                "correct": (right_BxK * hidden_BxK).sum(-1),
                **{name: count_B.astype(jnp.float32) for name, count_B in counts.items()}}
        if not train:
            word_BxK = jnp.where(hidden_BxK > 0, target_BxK, NUM_SPECIAL)  # special ones have no share
            sums |= tokens.baseline(log_unigram_V, word_BxK, hidden_BxK)
        return types.LossSums({"denoise": (nats_BxK * weight_BxK).sum(-1)}, {"denoise": weight_BxK.sum(-1)}, sums)

    def asked(text, key_B, knobs):
        return masked_places(text, key_B, knobs) & causal.asked(text, key_B, knobs)

    masked_places = mlm.build(cfg, about).asked
    return types.Objective(init=lambda key, model: {}, loss=loss, asked=asked, scores=SCORES, training=TRAINING,
                           counts=("tokens", "eligible", "corrupted"), now=masking.scheduled)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for masks that no source could have: one of each row, of which all tokens are predicted."""
    masking.check(cfg)
    for field, only in (("predict_rate", 0), ("masks_per_example", 1)):
        errors.require(getattr(cfg.mask, field) == only, f"config.mask.{field}", getattr(cfg.mask, field),
                      f"{only}, since config.objective is denoise, which predicts the whole row")


GOAL = types.ObjectiveSpec(build, check, predicted=lambda cfg: 1.0, sees=("left",), seen="filled", knobs=masking.knobs,
                  frozen=masking.frozen, traced=masking.TRACED,
                  reads=("mask", "eval.mask_rate", "optim.label_smoothing"), source=True)
