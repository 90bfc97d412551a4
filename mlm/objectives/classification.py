"""Classification of a text or a pair: the cross-entropy of one label an example (Devlin et al. 2019, section 4.1)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from mlm.base import types
from mlm.base.static_config import StaticConfig
from mlm.objectives import features, heads, labelled, scores

SCORE_NAMES = ("accuracy", "f1", "matthews")  # allowed in config.data.labelled.scores


def build(cfg: StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on examples with label_B, a class id; see `build_classifier`."""

    def compute_logits(params, model, batch, key_B):
        h_BxLxD = features.read_features(cfg, params, model, batch, key_B)
        return heads.apply_pooled_head(cfg, params["objective"], h_BxLxD, batch.text, key_B)

    return build_classifier(cfg, dataset, "classification", SCORE_NAMES, len(dataset.classes), compute_logits)


def build_classifier(
    cfg: StaticConfig,
    dataset: types.DatasetInfo,
    term: str,
    known_scores: Sequence[str],
    outputs: int,
    compute_logits: Callable,
) -> types.Objective:
    """The objective of one label an example, by a pooled head of so many outputs.

    In evaluation the sums include "predicted", the class id, and "score", its log-probability. compute_logits: (params,
    model, batch, key_B) -> logits_BxC. Raises ConfigError for a score that does not suit the number of classes.
    """
    log_share_C, weight = scores.compute_log_class_shares(dataset), f"{term}_weight"
    builders = {
        "accuracy": lambda: scores.build_accuracy_score(weight),
        "f1": lambda: scores.build_f1_score(dataset.classes, weight),
        "matthews": lambda: scores.build_matthews_score(dataset.classes, weight),
    }
    score_names = scores.parse_score_names(cfg, known_scores)
    model_scores = (*(builders[name]() for name in score_names), scores.build_loss_score(term, "nats per example"))

    def compute_loss(params, model, batch, key_B, train):
        log_prob_BxC = jax.nn.log_softmax(compute_logits(params, model, batch, key_B))
        label_B, real_B = batch.labels["label_B"], heads.flag_real_examples(batch.text)
        predicted_B = log_prob_BxC.argmax(-1)
        sums = {"correct": (predicted_B == label_B) * real_B}
        if not train:
            sums |= {"predicted": predicted_B * real_B, "score": log_prob_BxC.max(-1) * real_B}
            sums |= scores.compute_majority_baseline(log_share_C, label_B, real_B)
            if {*score_names} & {"f1", "matthews"}:
                sums |= scores.count_classes(predicted_B, label_B, real_B, len(dataset.classes))
        return -jnp.take_along_axis(log_prob_BxC, label_B[:, None], axis=-1)[:, 0] * real_B, real_B, sums

    return labelled.build_objective(
        cfg,
        term,
        lambda key, width: heads.init_pooled_head(cfg, key, width, outputs),
        compute_loss,
        (*model_scores, *scores.build_majority_scores(model_scores, dataset)),
    )


SPEC = labelled.build_spec(build, SCORE_NAMES, labelled.POOLED_FIELDS, heads.check, labelled.predict_once)
