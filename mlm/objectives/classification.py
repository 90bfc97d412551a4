"""Classification and multiple choice: the cross-entropy of an example's label (Devlin et al. 2019, sections 4.1, 4.4).

An example of multiple choice holds a stretch of tokens for each ending, all equally long; the model sees each stretch
as an example, and a softmax over the endings chooses.

Letters in array names: C classes; E endings; F stretches, which are B * E.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, types
from mlm.objectives import heads, labelled, scores

# Allowed in config.data.labelled.scores; the first of multiple choice. ALWAYS are those that are computed unasked.
SCORE_NAMES, ALWAYS = ("accuracy", "f1", "matthews", "macro_f1"), ("accuracy", "macro_f1")


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on examples with label_B, a class id; see `build_classifier`."""

    def compute_logits(params, model, batch, key_B):
        h_BxLxD = heads.read_features(cfg, params, model, batch, key_B)
        return heads.apply_pooled_head(cfg, params["objective"], h_BxLxD, batch.text, key_B)

    return build_classifier(cfg, dataset, "classification", SCORE_NAMES, len(dataset.classes), compute_logits)


def build_multiple_choice(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on examples with label_B, the number of the right ending; see `build_classifier`."""
    compute_logits = functools.partial(compute_choice_logits, cfg, num_choices=len(dataset.classes))
    return build_classifier(cfg, dataset, "multiple_choice", SCORE_NAMES[:1], 1, compute_logits)


def build_classifier(
    cfg: types.StaticConfig,
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
    score_names = scores.parse_score_names(cfg, known_scores)
    score_names += tuple(name for name in ALWAYS if name in known_scores and name not in score_names)

    def add_macro_f1(columns, rows, examples):
        label_N = np.asarray(rows["label"][: len(columns["predicted"])]).astype(int)
        return columns | {"macro_f1": scores.compute_macro_f1_column(columns["predicted"].astype(int), label_N)}

    model_scores = (
        *(scores.build_score(name, weight, dataset.classes) for name in score_names),
        scores.build_loss_score(term, "nats per example"),
    )

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
        host_metrics=add_macro_f1 if "macro_f1" in score_names else lambda columns, rows, examples: columns,
    )


def compute_choice_logits(
    cfg: config.Config, params: types.Params, model: types.Model, batch: types.Batch, key_B, *, num_choices: int
):
    """logits_BxE: one number for each stretch, by `heads.apply_pooled_head`; -1e9 for an empty stretch."""
    choices, key_F = heads.split_sequences(batch, key_B, num_choices)
    h_FxLxD = heads.read_features(cfg, params, model, choices, key_F)
    logits_F = heads.apply_pooled_head(cfg, params["objective"], h_FxLxD, choices.text, key_F)[:, 0]
    return jnp.where(heads.flag_real_examples(choices.text) > 0, logits_F, -1e9).reshape(-1, num_choices)


SPEC = labelled.build_spec(build, SCORE_NAMES, labelled.POOLED_FIELDS, heads.check, labelled.PREDICT_ONCE)
MULTIPLE_CHOICE_SPEC = labelled.build_spec(
    build_multiple_choice, SCORE_NAMES[:1], labelled.POOLED_FIELDS, heads.check, labelled.PREDICT_ONCE
)
