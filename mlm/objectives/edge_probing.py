"""Edge probing: what a small classifier reads about words, and pairs of words, from a frozen model's layers (Tenney et
al. 2019, arXiv 1905.06316 and 1905.05950).

Letters in array names: S spans of an example, at most L; P width of a span's vector; C classes; K layers.
"""

import functools

import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.base.estimates import Score
from mlm.objectives import heads, labelled, scores

UNIFORM = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # within 1/sqrt(inputs)
init_dense = functools.partial(heads.init_dense, init=UNIFORM)
SCORE_NAMES = ("f1", "accuracy")  # allowed in config.data.labelled.scores
WEIGHT = "edge_probing_weight"
PROJECTION_DIM, DROPOUT = 256, 0.3  # of the projection and the hidden layer; of the hidden layer
F1_COLUMNS = ("true_positives", "predicted_positives", WEIGHT, WEIGHT)
F1_SCORE = Score("f1", "held-out micro-F1", F1_COLUMNS, "f1", better=1, share=True, chart=True)
# With one prediction for each label, F1 is accuracy.
MAJORITY_COLUMNS = {"f1": ("majority_correct", WEIGHT, WEIGHT), "accuracy": ("majority_correct",)}
CENTER_OF_GRAVITY = Score("gravity", "centre of gravity of the mix", ("gravity", WEIGHT), unit="layers", format=".2f")


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on examples with edge_BxL, a class id, or -1 where a slot is empty.

    Beside it stand two spans, the first and last token of each: from_BxL and to_BxL, other_from_BxL and other_to_BxL
    (S = L). The probe reads a learned mix of layers 0 (the embeddings) to config.finetune.max_layer, pools each span's
    tokens by attention, and decides for each class on its own (nats are summed over classes). In evaluation the sums
    include "gravity", the mean layer of the mix.
    """
    log_share_C, num_classes = scores.compute_log_class_shares(dataset), len(dataset.classes)
    scores_by_name = {"f1": F1_SCORE, "accuracy": scores.build_score("accuracy", WEIGHT)}
    model_scores = (
        *(scores_by_name[name] for name in scores.parse_score_names(cfg, SCORE_NAMES)),
        scores.build_loss_score("edge_probing", "nats per label"),
    )
    num_layers = (cfg.model.num_layers if cfg.finetune.max_layer < 0 else cfg.finetune.max_layer) + 1

    def init_head(key, width):
        key_one, key_other, key_hidden, key_label = jax.random.split(key, 4)
        return {
            "mix": heads.init_layer_mix(num_layers),
            "one": init_span_pooler(key_one, width),
            "other": init_span_pooler(key_other, width),
            "hidden": init_dense(key_hidden, 2 * PROJECTION_DIM, PROJECTION_DIM),
            "label": init_dense(key_label, PROJECTION_DIM, num_classes),
        }

    def compute_loss(params, model, batch, key_B, train):
        head, labels = params["objective"], batch.labels
        h_BxLxD = heads.mix_layers(head["mix"], heads.encode_all_layers(cfg, params, model, batch, key_B)[:num_layers])
        one_BxSxP = pool_spans(head["one"], h_BxLxD, labels["from_BxL"], labels["to_BxL"])
        other_BxSxP = pool_spans(head["other"], h_BxLxD, labels["other_from_BxL"], labels["other_to_BxL"])
        spans_BxSx2P = jnp.concatenate([one_BxSxP, other_BxSxP], -1)
        hidden_BxSxP = jnp.tanh(heads.apply_dense(head["hidden"], spans_BxSx2P))
        logits_BxSxC = heads.apply_dense(head["label"], heads.apply_dropout(hidden_BxSxP, key_B, DROPOUT))
        label_BxS = jnp.maximum(labels["edge_BxL"], 0)
        real_Bx1 = heads.flag_real_examples(batch.text)[:, None]
        weight_BxS = (labels["edge_BxL"] >= 0) * real_Bx1
        label_logit_BxS = jnp.take_along_axis(logits_BxSxC, label_BxS[..., None], axis=-1)[..., 0]
        predicted_BxS = logits_BxSxC.argmax(-1)
        weight_B = weight_BxS.sum(-1)
        sums = {"correct": ((predicted_BxS == label_BxS) * weight_BxS).sum(-1)}
        if not train:
            share_K = jax.nn.softmax(head["mix"]["logits"])
            sums |= {
                "gravity": (share_K @ jnp.arange(num_layers)) * weight_B,
                "true_positives": ((label_logit_BxS > 0) * weight_BxS).sum(-1),
                "predicted_positives": ((logits_BxSxC > 0).sum(-1) * weight_BxS).sum(-1),
                "majority_correct": ((label_BxS == log_share_C.argmax()) * weight_BxS).sum(-1),
                "predicted": predicted_BxS * real_Bx1,
                "score": jax.nn.log_sigmoid(logits_BxSxC.max(-1)) * real_Bx1,
            }
        nats_BxS = jax.nn.softplus(logits_BxSxC).sum(-1) - label_logit_BxS
        return (nats_BxS * weight_BxS).sum(-1), weight_B, sums

    majority_scores = scores.build_majority_scores(model_scores, dataset, MAJORITY_COLUMNS)
    return labelled.build_objective(
        cfg,
        "edge_probing",
        init_head,
        compute_loss,
        (*model_scores, *majority_scores, CENTER_OF_GRAVITY),
        host_metrics=lambda columns, rows, examples: scores.merge_windows(columns, WEIGHT, examples),
    )


def init_span_pooler(key, width: int) -> types.Params:
    """The parameters of `pool_spans`."""
    key_project, key_attend = jax.random.split(key)
    return {
        "project": init_dense(key_project, width, PROJECTION_DIM),
        "attend": init_dense(key_attend, PROJECTION_DIM, 1)["kernel"],
    }


def pool_spans(params: types.Params, h_BxLxD, first_BxS, last_BxS):
    """span_BxSxP: the projected tokens from first to last, averaged by attention weights of the tokens themselves."""
    x_BxLxP = heads.apply_dense(params["project"], h_BxLxD)
    place_L = jnp.arange(x_BxLxP.shape[1])
    inside_BxSxL = (first_BxS[..., None] <= place_L) & (place_L <= last_BxS[..., None])
    attention_logit_BxL = (x_BxLxP @ params["attend"])[..., 0]
    share_BxSxL = jax.nn.softmax(jnp.where(inside_BxSxL, attention_logit_BxL[:, None], -jnp.inf))
    return jnp.einsum("bsl,blp->bsp", share_BxSxL, x_BxLxP)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a model that is not frozen, and a layer that it does not have."""
    errors.require_field(cfg, "finetune.trainable_layers", cfg.finetune.trainable_layers == 0, "0", "objective")
    errors.require_number("config.finetune.max_layer", cfg.finetune.max_layer, -1, cfg.model.num_layers)


SPEC = labelled.build_spec(build, SCORE_NAMES, ("max_layer",), check)
