"""Causal language modelling: each token of a segment from those before it (Bengio et al. 2003; Radford et al. 2018).

A model that sees both sides apart also tells each token from those behind it, by the same output layer (Peters et al.
2018, section 3.1).
"""
import jax.numpy as jnp
import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.base.special import CLS, MASK, PAD
from mlm.objectives import tokens


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on these rows: a segment's first token is given, [SEP] and unknown tokens are predicted too.

    From the right its last token is given, and the first one is predicted.
    """
    unigram_V = np.frombuffer(about.unigram, np.int64)
    never = (PAD, MASK) if cfg.model.context == "apart" else (PAD, CLS, MASK)  # is asked for
    log_unigram_V = tokens.log_unigram(unigram_V, ~np.isin(np.arange(len(unigram_V)), never))

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        text = batch.text
        states = model.encode(params["model"], text, batch.source, key_B=key_B if train else None)
        pairs = [facing(way, h_BxLxD, text.ids_BxL) for way, h_BxLxD in zip(model.directions, states, strict=True)]
        h_BxKxD, target_BxK = (jnp.concatenate(parts, 1) for parts in zip(*pairs, strict=True))
        weight_BxK = jnp.tile(asked(text, key_B, knobs)[:, 1:].astype(jnp.float32), len(pairs))
        predict = tokens.predictor(train, cfg.optim.label_smoothing)
        nats_BxK, right_BxK = predict(params["model"], model, h_BxKxD, target_BxK)
        sums = {"correct": (right_BxK * weight_BxK).sum(-1),
                "tokens": (text.segments_BxL > 0).sum(-1).astype(jnp.float32)}
        if not train:
            sums |= tokens.baseline(log_unigram_V, target_BxK, weight_BxK)
        return types.LossSums({"causal": (nats_BxK * weight_BxK).sum(-1)}, {"causal": weight_BxK.sum(-1)}, sums)

    return types.Objective(init=lambda key, model: {}, loss=loss, asked=asked,
                           scores=tokens.scores("causal", "nats per token"),
                           training=(Score("accuracy", "training accuracy", ("correct", "causal_weight"), share=True),))


def facing(way: str, h_BxLxD, ids_BxL):
    """(h_BxKxD, target_BxK): the states of a way with the token that each has next before it."""
    return (h_BxLxD[:, 1:], ids_BxL[:, :-1]) if way == "right" else (h_BxLxD[:, :-1], ids_BxL[:, 1:])


def asked(text: types.Tokens, key_B, knobs):
    """asked_BxL: whether the token before belongs to the same segment."""
    same_BxK = (text.segments_BxL[:, 1:] == text.segments_BxL[:, :-1]) & (text.segments_BxL[:, 1:] > 0)
    return jnp.pad(same_BxK, ((0, 0), (1, 0)))


def predicted(cfg: config.Config) -> float:
    """Each token once, or from either side."""
    return 2.0 if cfg.model.context == "apart" else 1.0


GOAL = types.ObjectiveSpec(build, check=lambda cfg: None, predicted=predicted, sees=("left", "apart"), seen="left",
                  reads=("eval.context_range", "eval.ngram_order", "optim.label_smoothing"))
