"""What objectives that predict tokens share: the nats of each, the unigram baseline beside them, and their scores."""
import functools

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base.estimates import Score
from mlm.objectives.cross_entropy import above_mean, cross_entropy


def log_unigram(unigram_V: np.ndarray, possible_V: np.ndarray):
    """log_share_V: the train split's shares of the tokens that can be asked for, -inf elsewhere.

    One is added to the count of each, so that an unseen one has a finite baseline.
    """
    smooth_V = np.where(possible_V, unigram_V + 1, 0)
    with np.errstate(divide="ignore"):
        return jax.device_put(np.log(smooth_V / smooth_V.sum()).astype(np.float32))


def predict(params, model, h_BxKxD, target_BxK):
    """nats_BxK of the targets, and whether each has the largest logit, of equal ones the first in the vocabulary."""
    logits_BxKxV = model.logits(params, h_BxKxD)
    label_BxK = jnp.take_along_axis(logits_BxKxV, target_BxK[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BxKxV, axis=-1) - label_BxK, logits_BxKxV.argmax(-1) == target_BxK


def predict_fast(params, model, h_BxKxD, target_BxK, smoothing: float = 0.0):
    """As `predict`, but a tie counts as right, which spares a pass over the logits: their maximum is at hand.

    smoothing: share of a target's probability that is spread evenly over the vocabulary, itself included (Szegedy et
    al. 2016, section 7).
    """
    if model.head is not None:
        h_BxKxD, table_VxD, bias_V = model.head(params, h_BxKxD)
        h_NxD, target_N = h_BxKxD.reshape(-1, h_BxKxD.shape[-1]), target_BxK.reshape(-1)
        nats_N, right_N = cross_entropy(h_NxD, table_VxD, bias_V, target_N)
        if smoothing:
            nats_N += smoothing * above_mean(h_NxD, table_VxD, bias_V, target_N)
        return nats_N.reshape(target_BxK.shape), right_N.reshape(target_BxK.shape)
    logits_BxKxV = model.logits(params, h_BxKxD)
    label_BxK = jnp.take_along_axis(logits_BxKxV, target_BxK[..., None], axis=-1)[..., 0]
    aim_BxK = label_BxK + smoothing * (logits_BxKxV.mean(-1) - label_BxK) if smoothing else label_BxK
    return jax.nn.logsumexp(logits_BxKxV, axis=-1) - aim_BxK, label_BxK >= logits_BxKxV.max(-1)


def predictor(train: bool, smoothing: float):
    """What gives the nats: in training, of targets that are smoothed so, the quick way; in evaluation the true ones."""
    return functools.partial(predict_fast, smoothing=smoothing) if train else predict


def baseline(log_unigram_V, target_BxK, weight_BxK) -> dict:
    """Sums over each row of what always predicting the train split's frequencies would lose and get right."""
    right_BxK = target_BxK == log_unigram_V.argmax()
    nats_BxK = jnp.where(weight_BxK > 0, -log_unigram_V[target_BxK], 0)  # infinite of what is never asked for
    return {"unigram_nats": (nats_BxK * weight_BxK).sum(-1),
            "unigram_correct": (right_BxK * weight_BxK).sum(-1)}


def scores(term: str, unit: str) -> tuple[Score, ...]:
    """Loss, perplexity and accuracy of the predictions of a term, and the unigram baseline's."""
    nats, correct, weight = f"{term}_nats", "correct", f"{term}_weight"
    return (Score("loss", "held-out loss", (nats, weight), unit=unit, better=-1, chart=True),
            Score("perplexity", "held-out perplexity", (nats, weight), "exp_mean", form=".2f", better=-1),
            Score("accuracy", "held-out accuracy", (correct, weight), better=1, share=True, chart=True),
            Score("unigram_loss", "unigram loss", ("unigram_nats", weight), unit=unit, reference="unigram",
                  beside="loss"),
            Score("unigram_perplexity", "unigram perplexity", ("unigram_nats", weight), "exp_mean", form=".2f",
                  reference="unigram", beside="perplexity"),
            Score("unigram_accuracy", "unigram accuracy", ("unigram_correct", weight), share=True, reference="unigram",
                  beside="accuracy"))
