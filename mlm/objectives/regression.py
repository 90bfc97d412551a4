"""Regression: a number for each text or pair, by least squares (Devlin et al. 2019, section 4.1, on STS-B)."""

import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.base.static_config import StaticConfig
from mlm.objectives import features, heads, scores

SCORE_NAMES = ("pearson", "spearman")  # allowed in config.data.labelled.scores
WEIGHT = "regression_weight"
SCORES = {"pearson": scores.build_pearson_score(WEIGHT), "spearman": scores.build_spearman_score(WEIGHT)}


def build(cfg: StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on examples with value_B.

    In evaluation the sums include "predicted", "score" (the same) and "value", the right number.
    """

    def init(key, model):
        width = features.compute_width(cfg, model)
        return heads.init_pooled_head(cfg, key, width, 1) | features.init_features(cfg)

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        key_B = key_B if train else None
        h_BxLxD = features.read_features(cfg, params, model, batch, key_B)
        predicted_B = heads.apply_pooled_head(cfg, params["objective"], h_BxLxD, batch.text, key_B)[:, 0]
        value_B, real_B = batch.labels["value_B"], heads.flag_real_examples(batch.text)
        sums = {"tokens": heads.count_tokens(batch.text)}
        if not train:
            sums |= {"predicted": predicted_B * real_B, "score": predicted_B * real_B, "value": value_B * real_B}
        return types.LossSums({"regression": (predicted_B - value_B) ** 2 * real_B}, {"regression": real_B}, sums)

    model_scores = tuple(SCORES[name] for name in scores.parse_score_names(cfg, SCORE_NAMES))
    return types.Objective(
        init=init,
        loss=loss,
        eval_mask=heads.make_empty_eval_mask,
        predicts_tokens=False,
        host_metrics=compute_correlations,
        scores=(*model_scores, scores.build_loss_score("regression", "squared error per example")),
        train_scores=(Score("squared_error", "training error", ("regression_nats", WEIGHT)),),
    )


def compute_correlations(columns, rows, examples):
    """The columns, extended by those of the correlations; examples of weight 0 do not count."""
    real_N = np.asarray(columns[WEIGHT]) > 0
    correlation_columns = scores.compute_correlation_columns(columns["predicted"][real_N], columns["value"][real_N])
    return columns | {
        name: np.bincount(np.flatnonzero(real_N), column, len(real_N)) for name, column in correlation_columns.items()
    }


def check(cfg: config.Config) -> None:
    """Raises ConfigError for unknown scores and bad pooling or features."""
    heads.check(cfg)
    scores.parse_score_names(cfg, SCORE_NAMES)


SPEC = types.ObjectiveSpec(
    build,
    check,
    predictions_per_token=lambda cfg: 1 / cfg.pack.seq_len,
    directionalities=heads.DIRECTIONALITIES,
    visibility=types.Visibility.FULL,
    conditional_fields=("finetune.pooling", "finetune.pooler", "finetune.layer_features", "data.labelled.scores"),
)
