"""Choosing one of several endings of a text (Devlin et al. 2019, section 4.4): a softmax over the endings.

An example holds a stretch of tokens for each ending, all equally long. The model sees each stretch as an example.

Letters in array names: E endings; F stretches, which are B * E.
"""

import jax
import jax.numpy as jnp

from mlm.base import config, types
from mlm.base.static_config import StaticConfig
from mlm.objectives import classification, features, heads, labelled

SCORE_NAMES = ("accuracy",)  # allowed in config.data.labelled.scores


def build(cfg: StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on examples with label_B, the number of the right ending; see `build_classifier`."""

    def compute_example_logits(params, model, batch, key_B):
        return compute_logits(cfg, params, model, batch, key_B, num_choices=len(dataset.classes))

    return classification.build_classifier(cfg, dataset, "multiple_choice", SCORE_NAMES, 1, compute_example_logits)


def compute_logits(
    cfg: config.Config, params: types.Params, model: types.Model, batch: types.Batch, key_B, *, num_choices: int
):
    """logits_BxE: one number for each stretch, by `heads.apply_pooled_head`; -1e9 for an empty stretch."""
    text = types.Tokens(*(x_BxL.reshape(len(x_BxL) * num_choices, -1) for x_BxL in batch.text))
    choice_batch = batch._replace(text=text)
    key_F = None if key_B is None else jax.vmap(lambda key: jax.random.split(key, num_choices))(key_B).reshape(-1)
    h_FxLxD = features.read_features(cfg, params, model, choice_batch, key_F)
    logits_F = heads.apply_pooled_head(cfg, params["objective"], h_FxLxD, text, key_F)[:, 0]
    return jnp.where(heads.flag_real_examples(text) > 0, logits_F, -1e9).reshape(-1, num_choices)


SPEC = labelled.build_spec(
    build,
    SCORE_NAMES,
    labelled.POOLED_FIELDS,
    heads.check,
    lambda cfg: 1 / (cfg.pack.seq_len * (cfg.data.labelled.choice_columns.count(",") + 1)),
)
