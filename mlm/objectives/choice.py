"""The choice of one of several endings of a text (Devlin et al. 2019, section 4.4): a softmax over the endings.

A row holds a stretch of tokens for each, all equally long. To the model each is a row of its own.

Letters in array names: E endings; F stretches, which are B * E.
"""
import jax
import jax.numpy as jnp

from mlm.base import config, types
from mlm.objectives import classify, features, heads, scores

NAMES = ("accuracy",)  # what config.data.labelled.scores may ask for


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on rows that bring label_B, the number of the right ending, as `classify.told` makes it."""
    def logits_of(params, model, batch, key_B):
        return logits(cfg, params, model, batch, key_B, endings=len(about.classes))

    return classify.told(cfg, about, "choice", NAMES, 1, logits_of)


def logits(cfg: config.Config, params: types.Params, model: types.Model, batch: types.Batch, key_B, *, endings: int):
    """logits_BxE: a number for each stretch, told from it as `heads.row` tells a label. One that holds nothing is no
    ending.
    """
    parts = batch._replace(text=types.Tokens(*(x_BxL.reshape(len(x_BxL) * endings, -1) for x_BxL in batch.text)))
    key_F = None if key_B is None else jax.vmap(lambda key: jax.random.split(key, endings))(key_B).reshape(-1)
    h_FxLxD = features.read(cfg, params, model, parts, key_F)
    logits_F = heads.row(params["objective"], h_FxLxD, parts.text, key_F, read=cfg.finetune.pooling,
                         rate=cfg.model.dropout)[:, 0]
    return jnp.where(heads.real(parts.text) > 0, logits_F, -1e9).reshape(-1, endings)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for scores that are not of choices, and for what tells nothing of a stretch."""
    heads.check(cfg)
    scores.names(cfg, NAMES)


GOAL = types.ObjectiveSpec(build, check, sees=heads.SEES, seen="row",
                  predicted=lambda cfg: 1 / (cfg.pack.seq_len * (cfg.data.labelled.choice_columns.count(",") + 1)),
                  reads=("finetune.pooling", "finetune.layer_features", "data.labelled.scores"))
