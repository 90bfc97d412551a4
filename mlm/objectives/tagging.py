"""Tagging: the cross-entropy of a label of each word, at its first piece (Devlin et al. 2019, section 5.3)."""

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score
from mlm.base.static_config import StaticConfig
from mlm.objectives import bilstm, entity_tags, features, heads, scores

SCORE_NAMES = ("f1", "accuracy")  # allowed in config.data.labelled.scores; only the second where tags mark no entities
WEIGHT = "tagging_weight"


def build(cfg: StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on examples with tag_BxL, a class id, or -1 where no tag is predicted.

    The windows of a long sentence are examples in training, and one example in evaluation.

    In evaluation the sums include "predicted", the class id of each token, and "score", its log-probability.

    Raises:
        ConfigError: for F1 where tags mark no entities.
    """
    log_share_C, classes = scores.compute_log_class_shares(dataset), dataset.classes
    no_entity_tag = next((name for name in classes if not entity_tags.TAG.fullmatch(name)), None)
    score_names = scores.parse_score_names(cfg, SCORE_NAMES if no_entity_tag is None else SCORE_NAMES[::-1])
    errors.require(
        no_entity_tag is None or "f1" not in score_names,
        scores.FIELD,
        cfg.data.labelled.scores,
        f"accuracy, since {no_entity_tag!r} is no tag of entities (O, B-TYPE or I-TYPE)",
    )
    scores_by_name = {"f1": entity_tags.build_entity_scores(WEIGHT), "accuracy": (scores.build_accuracy_score(WEIGHT),)}
    model_scores = (
        *(score for name in score_names for score in scores_by_name[name]),
        scores.build_loss_score("tagging", "nats per word"),
    )

    def init(key, model):
        width = features.compute_width(cfg, model)
        if cfg.finetune.head == "linear":
            return heads.init_word_head(cfg, key, width, len(classes)) | features.init_features(cfg)
        key_label, key_bilstm = jax.random.split(key)
        dense = heads.init_dense(key_label, 2 * cfg.finetune.head_dim, len(classes))
        return (
            dense
            | features.init_features(cfg)
            | {"below": bilstm.init_bilstm(key_bilstm, width, cfg.finetune.head_dim)}
        )

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        key_B = key_B if train else None
        h_BxLxD, head = features.read_features(cfg, params, model, batch, key_B), params["objective"]
        if cfg.finetune.head == "bilstm":
            h_BxLxD = bilstm.apply_bilstm(head["below"], h_BxLxD, batch.text.segments_BxL, unroll=cfg.model.rnn_unroll)
        log_prob_BxLxC = jax.nn.log_softmax(heads.apply_word_head(cfg, head, h_BxLxD, key_B))
        tag_BxL = jnp.maximum(batch.labels["tag_BxL"], 0)
        real_BxL = batch.text.segments_BxL > 0
        word_BxL = ((batch.labels["tag_BxL"] >= 0) & real_BxL).astype(jnp.float32)
        predicted_BxL = log_prob_BxLxC.argmax(-1)
        sums = {"correct": ((predicted_BxL == tag_BxL) * word_BxL).sum(-1), "tokens": heads.count_tokens(batch.text)}
        if not train:
            baseline = scores.compute_majority_baseline(log_share_C, tag_BxL, word_BxL)
            sums |= {"predicted": predicted_BxL * real_BxL, "score": log_prob_BxLxC.max(-1) * real_BxL}
            sums |= {name: x_BxL.sum(-1) for name, x_BxL in baseline.items()}
        nats_BxL = -jnp.take_along_axis(log_prob_BxLxC, tag_BxL[..., None], axis=-1)[..., 0] * word_BxL
        return types.LossSums({"tagging": nats_BxL.sum(-1)}, {"tagging": word_BxL.sum(-1)}, sums)

    def merge_sentences(columns, rows, examples):
        if "f1" in score_names:
            count = len(columns["predicted"])
            sentence_N = np.arange(count)
            for example in examples:
                sentence_N[example["row"] : example["row"] + example["rows"]] = example["row"]
            columns = columns | entity_tags.count_entities(
                columns["predicted"], rows["tag"][:count], rows["segments"][:count], classes, sentence_N
            )
        return scores.merge_windows(columns, WEIGHT, examples)

    mean_scores = [score for score in model_scores if score.function == "mean"]
    return types.Objective(
        init=init,
        loss=loss,
        eval_mask=heads.make_empty_eval_mask,
        predicts_tokens=False,
        host_metrics=merge_sentences,
        scores=(*model_scores, *scores.build_majority_scores(mean_scores, dataset)),
        train_scores=(Score("accuracy", "training accuracy", ("correct", WEIGHT), share=True),),
    )


def check(cfg: config.Config) -> None:
    """Raises ConfigError for unknown scores and bad features."""
    features.check(cfg)
    scores.parse_score_names(cfg, SCORE_NAMES)


SPEC = types.ObjectiveSpec(
    build,
    check,
    predictions_per_token=lambda cfg: 1.0,
    directionalities=heads.DIRECTIONALITIES,
    visibility=types.Visibility.FULL,
    conditional_fields=("finetune.pooler", "finetune.layer_features", "finetune.head", "data.labelled.scores"),
)
