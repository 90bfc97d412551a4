"""Regression: a number for each text or pair, by least squares (Devlin et al. 2019, section 4.1, on STS-B)."""
import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.objectives import features, heads, scores

NAMES = ("pearson", "spearman")  # what config.data.labelled.scores may ask for
WEIGHT = "regress_weight"
SCORES = {"pearson": scores.pearson(WEIGHT), "spearman": scores.spearman(WEIGHT)}


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on rows that bring value_B. In evaluation the sums hold "predicted" and "value", the right one;
    "score" is the prediction itself.
    """
    def init(key, model):
        return heads.row_init(key, features.width(cfg, model), 1, cfg.finetune.pooling) | features.init(cfg)

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        key_B = key_B if train else None
        h_BxLxD = features.read(cfg, params, model, batch, key_B)
        predicted_B = heads.row(params["objective"], h_BxLxD, batch.text, key_B, read=cfg.finetune.pooling,
                                rate=cfg.model.dropout)[:, 0]
        value_B, real_B = batch.labels["value_B"], heads.real(batch.text)
        sums = {"tokens": heads.tokens(batch.text)}
        if not train:
            sums |= {"predicted": predicted_B * real_B, "score": predicted_B * real_B, "value": value_B * real_B}
        return types.LossSums({"regress": (predicted_B - value_B) ** 2 * real_B}, {"regress": real_B}, sums)

    own = tuple(SCORES[name] for name in scores.names(cfg, NAMES))
    return types.Objective(
        init=init, loss=loss, asked=heads.asked, words=False, tally=tally,
        scores=(*own, scores.loss("regress", "squared error per example")),
        training=(Score("squared_error", "training error", ("regress_nats", WEIGHT)),))


def tally(columns, rows, examples):
    """Those that the correlations of real rows are sums of."""
    real_N = np.asarray(columns[WEIGHT]) > 0
    found = scores.correlations(columns["predicted"][real_N], columns["value"][real_N])
    return columns | {name: np.bincount(np.flatnonzero(real_N), column, len(real_N)) for name, column in found.items()}


def check(cfg: config.Config) -> None:
    """Raises ConfigError for scores that are not of numbers, and for what tells nothing of a row."""
    heads.check(cfg)
    scores.names(cfg, NAMES)


GOAL = types.ObjectiveSpec(build, check, predicted=lambda cfg: 1 / cfg.pack.seq_len, sees=heads.SEES, seen="row",
                  reads=("finetune.pooling", "finetune.layer_features", "data.labelled.scores"))
