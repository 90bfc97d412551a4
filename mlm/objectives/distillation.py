"""Distillation: a student predicts what a trained teacher predicts of the same masked examples.

The soft loss is the cross-entropy of the two distributions, both softened by a temperature (Hinton et al. 2015, arXiv
1503.02531, section 2). DistilBERT (Sanh et al. 2019, arXiv 1910.01108, section 3) adds the loss of the masked tokens
and one minus the cosine of the last states.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.objectives import masking

TRAIN_SCORES = (
    Score("soft_loss", "cross-entropy with the teacher", ("soft_nats", "soft_weight"), unit="nats per masked token"),
)


def compute_losses(
    teacher: types.Model, params, model: types.Model, text: types.Tokens, masked: masking.MaskedBatch, h_BxLxD, hparams
) -> types.LossSums:
    """The terms mlm, soft, and where the widths are equal hidden.

    The teacher reads the masked examples without dropout, with the parameters params[types.TEACHER]; h_BxLxD has the
    student's states.
    """
    temperature, weight_BxK = hparams.objective["temperature"], masked.weights_BxK
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
    if teacher.width == model.width:
        real_BxL = (text.segments_BxL > 0).astype(jnp.float32)
        states = (x_BxLxD.astype(jnp.float32) for x_BxLxD in (h_BxLxD, teacher_BxLxE))
        losses["hidden"] = (optax.losses.cosine_distance(*states, epsilon=1e-6) * real_BxL).sum(-1)
        weights["hidden"] = real_BxL.sum(-1)
    return types.LossSums(losses, weights, {"correct": (correct_BxK * weight_BxK).sum(-1)})


def make_hparams(cfg: config.Config) -> dict[str, np.generic]:
    """The traced values of the losses."""
    names = ("temperature", "soft_weight", "hard_weight", "hidden_weight")
    return {name: np.float32(getattr(cfg.distillation, name)) for name in names}


def compute_loss_weights(hparams: types.TracedHparams) -> dict[str, types.Array]:
    """The weight of each term; that of the soft one holds its gradient's size at any temperature."""
    values = hparams.objective
    soft_weight = values["soft_weight"] * values["temperature"] ** 2
    return {"mlm": values["hard_weight"], "soft": soft_weight, "hidden": values["hidden_weight"]}


def has_model(cfg: config.Config) -> bool:
    """Whether the teacher is a trained model, whose path config.distillation.teacher is."""
    return cfg.distillation.teacher not in ("", "posterior")
