"""Masked language modelling: cross-entropy at the masked positions only (Devlin et al. 2019, section 3.1)."""
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.base.special import MASK, NUM_SPECIAL
from mlm.objectives import masking, tokens, units

SCORES = (*tokens.scores("mlm", "nats per masked token"),
          Score("realised_rate", "share of tokens masked", ("mlm_weight", "eligible"), form=".4f", share=True))
TRAINING = (Score("accuracy", "training accuracy", ("correct", "mlm_weight"), share=True),
            Score("realised_rate", "share of tokens corrupted", ("corrupted", "eligible"), form=".4f", share=True),
            Score("realised_predict", "share of tokens predicted", ("mlm_weight", "eligible"), form=".4f", share=True))


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on these rows: room for rates up to mask.max_rate in training, for eval.mask_rate in evaluation."""
    forward = build_forward(cfg, about)

    def asked(text, key_B, knobs):
        masked, _ = masking.draw(key_B, text.ids_BxL, knobs, cdf_V=np.ones(1),  # no random tokens are drawn
                                 slots=masking.slots(cfg.eval.mask_rate, about.length))
        return masked.ids_BxL == MASK

    return types.Objective(
        init=lambda key, model: {}, loss=lambda *args, **kwargs: forward(*args, **kwargs)[0], asked=asked,
        scores=SCORES, training=TRAINING, counts=("tokens", "eligible", "corrupted"), views=cfg.mask.masks_per_example,
        now=masking.scheduled)


def build_forward(cfg: config.Config, about: types.DatasetInfo) -> Callable:
    """A function like Objective.loss that returns h_BxLxD beside the Losses, for objectives that add to it.

    In evaluation the sums hold the unigram baseline of the train split on the same masked tokens too.
    """
    unigram_V = np.frombuffer(about.unigram, np.int64)
    cdf_V = masking.cumulative(unigram_V, cfg.mask.random_token_from == "uniform")
    log_unigram_V = tokens.log_unigram(unigram_V, np.arange(len(unigram_V)) >= NUM_SPECIAL)
    unit = units.of(cfg, about)

    def forward(params, model, batch, key_B, knobs, *, train, view=0):
        text = batch.text
        static_key_B = masking.static_keys(knobs, batch) if train and batch.row_B is not None else None
        rate, views = (cfg.mask.max_rate, cfg.mask.masks_per_example) if train else (cfg.eval.mask_rate, 1)
        masked, dropout_key_B = masking.draw(key_B, text.ids_BxL, knobs, slots=masking.slots(rate, about.length),
                                             cdf_V=cdf_V, view=view, views=views, static_key_B=static_key_B,
                                             unknown=cfg.mask.mask_unk and train, unit=unit if train else None)
        h_BxLxD, = model.encode(params["model"], text._replace(ids_BxL=masked.ids_BxL), batch.source,
                                key_B=dropout_key_B if train else None)
        h_BxKxD = jnp.take_along_axis(h_BxLxD, masked.positions_BxK[..., None], axis=1)
        predict = tokens.predict_fast if train else tokens.predict
        nats_BxK, right_BxK = predict(params["model"], model, h_BxKxD, masked.targets_BxK)

        def over_row(x_BxK):
            return (x_BxK * masked.weights_BxK).sum(-1)

        sums = {"correct": over_row(right_BxK),
                # A row of several views counts once.
                **{name: jnp.where(view == 0, count_B, 0).astype(jnp.float32)
                   for name, count_B in (("eligible", masked.eligible_B), ("corrupted", masked.corrupted_B))},
                "tokens": (text.segments_BxL > 0).sum(-1).astype(jnp.float32)}
        if not train:
            sums |= tokens.baseline(log_unigram_V, masked.targets_BxK, masked.weights_BxK)
        return types.LossSums({"mlm": over_row(nats_BxK)}, {"mlm": masked.weights_BxK.sum(-1)}, sums), h_BxLxD

    return forward


GOAL = types.ObjectiveSpec(build, masking.check, lambda cfg: masking.predicted(cfg.mask), ("both", "left", "row"),
                           "rest", masking.knobs, masking.frozen, masking.TRACED, ("mask", "eval.mask_rate",
                                                                                   "eval.mask_rates"))
