"""Masked language modelling: cross-entropy at the masked positions only (Devlin et al. 2019, section 3.1)."""
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, types
from mlm.base.special import NUM_SPECIAL
from mlm.objectives import masking
from mlm.objectives.cross_entropy import cross_entropy


def build(mask: config.Mask, slots: int, unigram_V) -> types.Objective:
    """The objective for rows with at most `slots` masked tokens; unigram_V: token counts of the train split."""
    forward = build_forward(mask, slots, unigram_V)
    return types.Objective(init=lambda key, width: {}, loss=lambda *args, **kwargs: forward(*args, **kwargs)[0])


def build_forward(mask: config.Mask, slots: int, unigram_V) -> Callable:
    """A function like Objective.loss that returns h_BxLxD beside the Losses, for objectives that add to it.

    In evaluation the sums hold the unigram baseline of the train split on the same masked tokens too.
    """
    cdf_V = masking.cumulative(unigram_V, mask.random_from == "uniform")
    # One is added to the count of every token that can be a target, so that an unseen one has a finite baseline.
    smooth_V = np.where(np.arange(len(unigram_V)) >= NUM_SPECIAL, unigram_V + 1, 0)
    with np.errstate(divide="ignore"):
        log_unigram_V = jnp.asarray(np.log(smooth_V / smooth_V.sum()), jnp.float32)

    def forward(params, model, batch, key_B, knobs, *, train, view=0):
        static_key_B = masking.static_keys(knobs, batch) if train and batch.row_B is not None else None
        masked, dropout_key_B = masking.draw(key_B, batch.ids_BxL, knobs, slots=slots, cdf_V=cdf_V, view=view,
                                             views=mask.views if train else 1, static_key_B=static_key_B)
        h_BxLxD = model.encode(params["model"], batch._replace(ids_BxL=masked.ids_BxL),
                               key_B=dropout_key_B if train else None)
        h_BxKxD = jnp.take_along_axis(h_BxLxD, masked.positions_BxK[..., None], axis=1)
        nats_BxK, right_BxK = (trained if train else judged)(params["model"], model, h_BxKxD, masked.targets_BxK)

        def over_row(x_BxK):
            return (x_BxK * masked.weights_BxK).sum(-1)

        sums = {"correct": over_row(right_BxK),
                # A row of several views counts once.
                **{name: jnp.where(view == 0, count_B, 0).astype(jnp.float32)
                   for name, count_B in (("eligible", masked.eligible_B), ("corrupted", masked.corrupted_B))},
                "tokens": (batch.segments_BxL > 0).sum(-1).astype(jnp.float32)}
        if not train:
            sums |= {"unigram_nats": over_row(-log_unigram_V[masked.targets_BxK]),
                     "unigram_correct": over_row(masked.targets_BxK == log_unigram_V.argmax())}
        return types.Losses({"mlm": over_row(nats_BxK)}, {"mlm": masked.weights_BxK.sum(-1)}, sums), h_BxLxD

    return forward


def judged(params, model, h_BxKxD, target_BxK):
    """nats_BxK of the targets, and whether each has the largest logit, of equal ones the first in the vocabulary."""
    logits_BxKxV = model.logits(params, h_BxKxD)
    label_BxK = jnp.take_along_axis(logits_BxKxV, target_BxK[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BxKxV, axis=-1) - label_BxK, logits_BxKxV.argmax(-1) == target_BxK


def trained(params, model, h_BxKxD, target_BxK):
    """As `judged`, but a tie counts as right, which spares a pass over the logits: their maximum is at hand already."""
    if model.head is not None:
        h_BxKxD, table_VxD, bias_V = model.head(params, h_BxKxD)
        found = cross_entropy(h_BxKxD.reshape(-1, h_BxKxD.shape[-1]), table_VxD, bias_V, target_BxK.reshape(-1))
        return (x_N.reshape(target_BxK.shape) for x_N in found)
    logits_BxKxV = model.logits(params, h_BxKxD)
    label_BxK = jnp.take_along_axis(logits_BxKxV, target_BxK[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BxKxV, axis=-1) - label_BxK, label_BxK >= logits_BxKxV.max(-1)
