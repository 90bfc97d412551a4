"""Classification of a text or a pair: the cross-entropy of one label a row (Devlin et al. 2019, section 4.1)."""
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.objectives import features, heads, scores

NAMES = ("accuracy", "f1", "matthews")  # what config.data.labelled.scores may ask for


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on rows that bring label_B, as `told` makes it."""
    def logits(params, model, batch, key_B):
        return heads.row(params["objective"], features.read(cfg, params, model, batch, key_B), batch.text, key_B,
                         read=cfg.finetune.pooling, rate=cfg.model.dropout)

    return told(cfg, about, "classify", NAMES, len(about.classes), logits)


def told(cfg: config.Config, about: types.DatasetInfo, term: str, names: Sequence[str], outputs: int, logits: Callable
         ) -> types.Objective:
    """The objective of a label a row, which is told by a head of `outputs` numbers.

    logits: (params, model, batch, key_B) -> logits_BxC. In evaluation the sums hold "predicted", the class, and its
    "score", a log-probability. Raises ConfigError for a score that is not of so many classes, or none of `names`.
    """
    log_share_C, classes, weight = scores.log_shares(about), len(about.classes), f"{term}_weight"
    made = {"accuracy": lambda: scores.accuracy(weight),
            "f1": lambda: scores.f1(about.classes, weight), "matthews": lambda: scores.matthews(about.classes, weight)}
    asked = scores.names(cfg, names)
    own = (*(made[name]() for name in asked), scores.loss(term, "nats per example"))

    def init(key, model):
        return heads.row_init(key, features.width(cfg, model), outputs, cfg.finetune.pooling) | features.init(cfg)

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        log_prob_BxC = jax.nn.log_softmax(logits(params, model, batch, key_B if train else None))
        label_B, real_B = batch.labels["label_B"], heads.real(batch.text)
        predicted_B = log_prob_BxC.argmax(-1)
        sums = {"correct": (predicted_B == label_B) * real_B, "tokens": heads.tokens(batch.text)}
        if not train:
            sums |= {"predicted": predicted_B * real_B, "score": log_prob_BxC.max(-1) * real_B}
            sums |= scores.baseline(log_share_C, label_B, real_B)
            sums |= scores.counts(predicted_B, label_B, real_B, classes) if {*asked} & {"f1", "matthews"} else {}
        nats_B = -jnp.take_along_axis(log_prob_BxC, label_B[:, None], axis=-1)[:, 0] * real_B
        return types.LossSums({term: nats_B}, {term: real_B}, sums)

    return types.Objective(init=init, loss=loss, asked=heads.asked, words=False,
                           scores=(*own, *scores.references(own, about)),
                           training=(Score("accuracy", "training accuracy", ("correct", weight), share=True),))


def check(cfg: config.Config) -> None:
    """Raises ConfigError for scores that are not of classes, and for what tells nothing of a row."""
    heads.check(cfg)
    scores.names(cfg, NAMES)


GOAL = types.ObjectiveSpec(build, check, predicted=lambda cfg: 1 / cfg.pack.seq_len, sees=heads.SEES, seen="row",
                  reads=("finetune.pooling", "finetune.layer_features", "data.labelled.scores"))
