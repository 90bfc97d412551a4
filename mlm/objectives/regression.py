"""Regression: a number for each text or pair, by least squares (Devlin et al. 2019, section 4.1, on STS-B)."""

import numpy as np

from mlm.base import types
from mlm.base.estimates import Score
from mlm.objectives import heads, labelled, scores

SCORE_NAMES = ("pearson", "spearman")  # allowed in config.data.labelled.scores
WEIGHT = "regression_weight"


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on examples with value_B; evaluation adds the sums "predicted", "score" (the same) and "value"."""

    def compute_loss(params, model, batch, key_B, train):
        h_BxLxD = heads.read_features(cfg, params, model, batch, key_B)
        predicted_B = heads.apply_pooled_head(cfg, params["objective"], h_BxLxD, batch.text, key_B)[:, 0]
        value_B, real_B = batch.labels["value_B"], heads.flag_real_examples(batch.text)
        columns = {"predicted": predicted_B * real_B, "score": predicted_B * real_B, "value": value_B * real_B}
        return (predicted_B - value_B) ** 2 * real_B, real_B, {} if train else columns

    return labelled.build_objective(
        cfg,
        "regression",
        lambda key, width: heads.init_pooled_head(cfg, key, width, 1),
        compute_loss,
        (
            *(scores.build_score(name, WEIGHT) for name in scores.parse_score_names(cfg, SCORE_NAMES)),
            scores.build_loss_score("regression", "squared error per example"),
        ),
        Score("squared_error", "training error", ("regression_nats", WEIGHT)),
        host_metrics=compute_correlations,
    )


def compute_correlations(columns, rows, examples):
    """The columns, extended by those of the correlations; examples of weight 0 do not count."""
    real_N = np.asarray(columns[WEIGHT]) > 0
    found = scores.compute_correlation_columns(columns["predicted"][real_N], columns["value"][real_N])
    places = np.flatnonzero(real_N)
    return columns | {name: np.bincount(places, column, len(real_N)) for name, column in found.items()}


SPEC = labelled.build_spec(build, SCORE_NAMES, labelled.POOLED_FIELDS, heads.check, labelled.PREDICT_ONCE)
