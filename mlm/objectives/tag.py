"""Tagging: the cross-entropy of a label of each word, at its first piece (Devlin et al. 2019, section 5.3)."""
import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.base.conditional_fields import FieldCondition
from mlm.base.estimates import Score
from mlm.objectives import bilstm, features, heads, scores, tags

NAMES = ("f1", "accuracy")  # what config.data.labelled.scores may ask for; of tags that are no entities' the second
WEIGHT = "tag_weight"
HEADS = ("linear", "bilstm")
READ = (FieldCondition(("finetune.head_dim",), "finetune.head", ("bilstm",)),)


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on rows that bring tag_BxL, -1 where nothing is asked. In evaluation the sums hold "predicted",
    the class, and its "score", a log-probability, of each token. Raises ConfigError for F1 of tags of no entities.
    """
    log_share_C, classes = scores.log_shares(about), about.classes
    other = next((name for name in classes if not tags.TAG.fullmatch(name)), None)
    asked = scores.names(cfg, NAMES if other is None else NAMES[::-1])
    errors.require(other is None or "f1" not in asked, scores.FIELD, cfg.data.labelled.scores,
                  f"accuracy, since {other!r} is no tag of entities (O, B-TYPE or I-TYPE)")
    made = {"f1": tags.scores(WEIGHT), "accuracy": (scores.accuracy(WEIGHT),)}
    own = (*(score for name in asked for score in made[name]), scores.loss("tag", "nats per word"))

    def init(key, model):
        width = features.width(cfg, model)
        if cfg.finetune.head == "linear":
            return heads.dense_init(key, width, len(classes)) | features.init(cfg)
        key_label, key_below = jax.random.split(key)
        return (heads.dense_init(key_label, 2 * cfg.finetune.head_dim, len(classes)) | features.init(cfg)
                | {"below": bilstm.init(key_below, width, cfg.finetune.head_dim)})

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        key_B = key_B if train else None
        h_BxLxD, head = features.read(cfg, params, model, batch, key_B), params["objective"]
        if cfg.finetune.head == "bilstm":
            h_BxLxD = bilstm.run(head["below"], h_BxLxD, batch.text.segments_BxL, unroll=cfg.model.rnn_unroll)
        h_BxLxD = heads.dropout(h_BxLxD, key_B, cfg.model.dropout)
        log_prob_BxLxC = jax.nn.log_softmax(heads.dense(head, h_BxLxD))
        tag_BxL = jnp.maximum(batch.labels["tag_BxL"], 0)
        real_BxL = batch.text.segments_BxL > 0
        word_BxL = ((batch.labels["tag_BxL"] >= 0) & real_BxL).astype(jnp.float32)
        predicted_BxL = log_prob_BxLxC.argmax(-1)
        sums = {"correct": ((predicted_BxL == tag_BxL) * word_BxL).sum(-1), "tokens": heads.tokens(batch.text)}
        if not train:
            sums |= {"predicted": predicted_BxL * real_BxL, "score": log_prob_BxLxC.max(-1) * real_BxL}
            sums |= {name: x_BxL.sum(-1) for name, x_BxL in scores.baseline(log_share_C, tag_BxL, word_BxL).items()}
        nats_BxL = -jnp.take_along_axis(log_prob_BxLxC, tag_BxL[..., None], axis=-1)[..., 0] * word_BxL
        return types.LossSums({"tag": nats_BxL.sum(-1)}, {"tag": word_BxL.sum(-1)}, sums)

    def tally(columns, rows, examples):
        if "f1" not in asked:
            return columns
        count = len(columns["predicted"])
        return columns | tags.counts(columns["predicted"], rows["tag"][:count], rows["segments"][:count], classes)

    return types.Objective(
        init=init, loss=loss, asked=heads.asked, words=False, tally=tally,
        scores=(*own, *scores.references([score for score in own if score.of == "mean"], about)),
        training=(Score("accuracy", "training accuracy", ("correct", WEIGHT), share=True),))


def check(cfg: config.Config) -> None:
    """Raises ConfigError for scores that are not of tags, and for a head and features that there are not."""
    features.check(cfg)
    errors.require_one_of("config.finetune.head", cfg.finetune.head, HEADS)
    errors.require_at_least(1, "config.finetune.head_dim", cfg.finetune.head_dim)
    scores.names(cfg, NAMES)


GOAL = types.ObjectiveSpec(build, check, predicted=lambda cfg: 1.0, sees=heads.SEES, seen="row",
                  reads=("finetune.layer_features", "finetune.head", "data.labelled.scores"))
