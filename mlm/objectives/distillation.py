"""Distillation: a student predicts what a trained teacher predicts of the same masked examples.

The soft loss is the cross-entropy of the two distributions, both softened by a temperature (Hinton et al. 2015, arXiv
1503.02531, section 2). DistilBERT (Sanh et al. 2019, arXiv 1910.01108, section 3) adds the loss of the masked tokens
and one minus the cosine of the last states. MiniLMv2 (Wang et al. 2021, arXiv 2012.15828, section 3) compares the
relations of the tokens in self-attention, by heads whose number does not depend on those of the two models.

Letters in array names: E is D of the teacher, R heads of the relations.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mlm.base import config, types
from mlm.base.estimates import Score

TRAIN_SCORES = (
    Score("soft_loss", "cross-entropy with the teacher", ("soft_nats", "soft_weight"), unit="nats per masked token"),
    Score("relation_loss", "divergence of relations", ("relation_nats", "relation_weight"), unit="nats per token"),
)


def list_train_scores(fields: config.Distillation) -> tuple[Score, ...]:
    """The scores of the terms that a trained teacher adds."""
    return TRAIN_SCORES if fields.relation_heads else TRAIN_SCORES[:1]


def compute_losses(
    fields: config.Distillation, teacher: types.Model, params, model: types.Model, batch, masked, key_B, hparams
) -> tuple[types.LossSums, types.Array]:
    """The terms mlm, soft, hidden where the widths are equal, and relation if it has heads; and the student's h_BxLxD.

    Both models read the batch as `masked` has it, a masking.MaskedBatch; the teacher does so without dropout, with the
    parameters params[types.TEACHER].
    """
    temperature, weight_BxK = hparams.objective["temperature"], masked.weights_BxK
    text, qkv, teacher_qkv = batch.text._replace(ids_BxL=masked.ids_BxL), (), ()
    if fields.relation_heads:
        assert model.encode_projections is not None and teacher.encode_projections is not None
        (h_BxLxD,), qkv = model.encode_projections(params["model"], text, 0, key_B)
        (teacher_BxLxE,), teacher_qkv = teacher.encode_projections(params[types.TEACHER], text, fields.relation_layer)
    else:
        (h_BxLxD,) = model.encode(params["model"], text, batch.source, key_B=key_B)
        (teacher_BxLxE,) = teacher.encode(params[types.TEACHER], text)
    gather = lambda h_BxLxD: jnp.take_along_axis(h_BxLxD, masked.positions_BxK[..., None], axis=1)
    logits_BxKxV = model.logits(params["model"], gather(h_BxLxD))
    prob_BxKxV = jax.nn.softmax(teacher.logits(params[types.TEACHER], gather(teacher_BxLxE)) / temperature)
    label_BxK = jnp.take_along_axis(logits_BxKxV, masked.targets_BxK[..., None], axis=-1)[..., 0]
    nats_BxK = {
        "mlm": jax.nn.logsumexp(logits_BxKxV, axis=-1) - label_BxK,
        "soft": optax.losses.softmax_cross_entropy(logits_BxKxV / temperature, prob_BxKxV),
    }
    losses = {term: (nats_BxK * weight_BxK).sum(-1) for term, nats_BxK in nats_BxK.items()}
    weights = dict.fromkeys(losses, weight_BxK.sum(-1))
    correct_BxK = label_BxK >= logits_BxKxV.max(-1)
    real_BxL = (text.segments_BxL > 0).astype(jnp.float32)
    if teacher.width == model.width:
        states = (x_BxLxD.astype(jnp.float32) for x_BxLxD in (h_BxLxD, teacher_BxLxE))
        losses["hidden"] = (optax.losses.cosine_distance(*states, epsilon=1e-6) * real_BxL).sum(-1)
        weights["hidden"] = real_BxL.sum(-1)
    if fields.relation_heads:
        pairs = [*zip(qkv, teacher_qkv, strict=True)]
        losses["relation"] = compute_divergence(fields.relation_heads, pairs, text.segments_BxL)
        weights["relation"] = real_BxL.sum(-1)
    return types.LossSums(losses, weights, {"correct": (correct_BxK * weight_BxK).sum(-1)}), h_BxLxD


def compute_divergence(num_heads: int, pairs, segments_BxL):
    """nats_B, summed over tokens and pairs: how far the relations of (x_BxLxD, y_BxLxE) are from those of the latter.

    Those of a token in a head are the softmax, over its segment's tokens, of their scaled products with it; their KL
    divergence is averaged over the heads.
    """
    same_Bx1xLxL = (segments_BxL[:, :, None] == segments_BxL[:, None, :])[:, None]

    def compute_relations(x_BxLxD):
        x_BxLxRxd = x_BxLxD.reshape(*segments_BxL.shape, num_heads, -1)
        score_BxRxLxL = jnp.einsum("bqrd,bkrd->brqk", x_BxLxRxd, x_BxLxRxd, preferred_element_type=jnp.float32)
        return jax.nn.log_softmax(jnp.where(same_Bx1xLxL, score_BxRxLxL / x_BxLxRxd.shape[-1] ** 0.5, -1e9))

    @jax.checkpoint  # else the backward pass would store four arrays of BxRxLxL for each pair
    def compute_nats(x_BxLxD, y_BxLxE):
        nats_BxRxL = optax.losses.kl_divergence_with_log_targets(compute_relations(x_BxLxD), compute_relations(y_BxLxE))
        return jnp.where(segments_BxL > 0, nats_BxRxL.mean(1), 0).sum(-1)

    return sum(compute_nats(*pair) for pair in pairs)


def make_hparams(fields: config.Distillation) -> dict[str, np.generic]:
    """The traced values of the losses."""
    names = ("temperature", "soft_weight", "hard_weight", "hidden_weight", "relation_weight")
    return {name: np.float32(getattr(fields, name)) for name in names}


def compute_loss_weights(hparams: types.TracedHparams) -> dict[str, types.Array]:
    """The weight of each term; that of the soft one holds its gradient's size at any temperature."""
    values = hparams.objective
    soft_weight = values["soft_weight"] * values["temperature"] ** 2
    others = {term: values[f"{term}_weight"] for term in ("hidden", "relation")}
    return {"mlm": values["hard_weight"], "soft": soft_weight, **others}


def has_model(fields: config.Distillation) -> bool:
    """Whether the teacher is a trained model, whose path config.distillation.teacher is."""
    return fields.teacher not in ("", "posterior")
