"""Causal language modelling: each token of a segment from those before it (Bengio et al. 2003; Radford et al. 2018)."""
import jax.numpy as jnp
import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.base.special import CLS, MASK, PAD
from mlm.objectives import tokens


def build(cfg: config.Config, about: types.About) -> types.Objective:
    """The objective on these rows: a segment's first token is given, [SEP] and unknown tokens are predicted too."""
    unigram_V = np.frombuffer(about.unigram, np.int64)
    log_unigram_V = tokens.log_unigram(unigram_V, ~np.isin(np.arange(len(unigram_V)), (PAD, CLS, MASK)))

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        text = batch.text
        h_BxLxD, = model.hidden(params["model"], text, batch.source, key_B=key_B if train else None)
        target_BxK, weight_BxK = text.ids_BxL[:, 1:], asked(text, key_B, knobs)[:, 1:].astype(jnp.float32)
        predict = tokens.predict_fast if train else tokens.predict
        nats_BxK, right_BxK = predict(params["model"], model, h_BxLxD[:, :-1], target_BxK)
        sums = {"correct": (right_BxK * weight_BxK).sum(-1),
                "tokens": (text.segments_BxL > 0).sum(-1).astype(jnp.float32)}
        if not train:
            sums |= tokens.baseline(log_unigram_V, target_BxK, weight_BxK)
        return types.Losses({"causal": (nats_BxK * weight_BxK).sum(-1)}, {"causal": weight_BxK.sum(-1)}, sums)

    return types.Objective(init=lambda key, model: {}, loss=loss, asked=asked,
                           scores=tokens.scores("causal", "nats per token"),
                           training=(Score("accuracy", "training accuracy", ("correct", "causal_weight"), share=True),))


def asked(text: types.Text, key_B, knobs):
    """asked_BxL: whether the token before belongs to the same segment."""
    same_BxK = (text.segments_BxL[:, 1:] == text.segments_BxL[:, :-1]) & (text.segments_BxL[:, 1:] > 0)
    return jnp.pad(same_BxK, ((0, 0), (1, 0)))


GOAL = types.Goal(build, check=lambda cfg: None, predicted=lambda cfg: 1.0, sees=("left",), seen="left")
