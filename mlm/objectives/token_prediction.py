"""Loss, unigram baseline and scores that objectives share which predict tokens."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score, make_reference
from mlm.base.special import NUM_SPECIAL
from mlm.objectives import cross_entropy, scores


def compute_log_unigram(unigram_V: np.ndarray, possible_V: np.ndarray):
    """log_share_V of the train split's tokens, plus one each, among the possible targets; -inf for all others."""
    smooth_V = np.where(possible_V, unigram_V + 1, 0)
    with np.errstate(divide="ignore"):
        return jax.device_put(np.log(smooth_V / smooth_V.sum()).astype(np.float32))


def compute_word_log_unigram(dataset: types.DatasetInfo):
    """`compute_log_unigram` where all tokens but the special ones are targets."""
    unigram_V = np.frombuffer(dataset.unigram_counts, np.int64)
    return compute_log_unigram(unigram_V, np.arange(len(unigram_V)) >= NUM_SPECIAL)


def compute_token_loss(params, model, h_BxKxD, target_BxK):
    """(nats_BxK, correct_BxK): correct where the target is the first entry of the vocabulary with the largest logit."""
    if model.vocab_block:
        h_NxD, table_VxD, bias_V = model.lm_head(params, h_BxKxD.reshape(-1, h_BxKxD.shape[-1]))
        target_N = target_BxK.reshape(-1)
        values = cross_entropy.measure_blocked_cross_entropy(model.vocab_block, h_NxD, table_VxD, bias_V, target_N)
        return tuple(x_N.reshape(target_BxK.shape) for x_N in values)
    logits_BxKxV = model.logits(params, h_BxKxD)
    label_BxK = jnp.take_along_axis(logits_BxKxV, target_BxK[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BxKxV, axis=-1) - label_BxK, logits_BxKxV.argmax(-1) == target_BxK


def compute_token_loss_fast(params, model, h_BxKxD, target_BxK, smoothing: float = 0.0, z_loss: float = 0.0):
    """`compute_token_loss`, where ties count as correct: that saves a pass over the logits.

    smoothing: share of a target's probability that is spread evenly over the vocabulary, itself included (Szegedy et
    al. 2016, section 7). z_loss: weight of the squared log-sum-exp of the logits, which is added (Chowdhery et al.
    2022, section 5).
    """
    if model.lm_head is not None:
        h_BxKxD, table_VxD, bias_V = model.lm_head(params, h_BxKxD)
        h_NxD, target_N = h_BxKxD.reshape(-1, h_BxKxD.shape[-1]), target_BxK.reshape(-1)
        blocked = functools.partial(cross_entropy.blocked_cross_entropy, model.vocab_block)
        compute_nats = blocked if model.vocab_block else cross_entropy.cross_entropy
        nats_N, correct_N = compute_nats(h_NxD, table_VxD, bias_V, target_N)
        cross_entropy_N = nats_N
        if smoothing:
            nats_N += smoothing * cross_entropy.compute_logit_margin(h_NxD, table_VxD, bias_V, target_N)
        if z_loss:
            nats_N += z_loss * (cross_entropy_N + cross_entropy.compute_logit(h_NxD, table_VxD, bias_V, target_N)) ** 2
        return nats_N.reshape(target_BxK.shape), correct_N.reshape(target_BxK.shape)
    logits_BxKxV = model.logits(params, h_BxKxD)
    label_BxK = jnp.take_along_axis(logits_BxKxV, target_BxK[..., None], axis=-1)[..., 0]
    smooth_BxK = label_BxK + smoothing * (logits_BxKxV.mean(-1) - label_BxK) if smoothing else label_BxK
    log_sum_BxK = jax.nn.logsumexp(logits_BxKxV, axis=-1)
    nats_BxK = log_sum_BxK - smooth_BxK
    return nats_BxK + z_loss * log_sum_BxK**2 if z_loss else nats_BxK, label_BxK >= logits_BxKxV.max(-1)


def select_token_loss(train: bool, optim: config.Optim) -> Callable:
    """The fast loss with what config.optim adds to it in training, the exact one without that in evaluation."""
    if not train:
        return compute_token_loss
    return functools.partial(compute_token_loss_fast, smoothing=optim.label_smoothing, z_loss=optim.z_loss)


def predict_tokens(
    optim: config.Optim, log_unigram_V, params, model, h_BxKxD, target_BxK, weight_BxK, *, train: bool
) -> tuple[jax.Array, dict]:
    """(nats_B, sums): of the weighted predictions; sums: "correct", and in evaluation the unigram baseline's."""
    nats_BxK, correct_BxK = select_token_loss(train, optim)(params["model"], model, h_BxKxD, target_BxK)
    sums = {"correct": (correct_BxK * weight_BxK).sum(-1)}
    if not train:
        sums |= compute_unigram_baseline(log_unigram_V, target_BxK, weight_BxK)
    return (nats_BxK * weight_BxK).sum(-1), sums


def predict_distribution(params, model, h_BxKxD, prob_BxKxV, target_BxK, weight_BxK) -> tuple[jax.Array, dict]:
    """(nats_B, sums) as of `predict_tokens` in training, of the cross-entropy with a teacher's probabilities (Hinton et
    al. 2015, arXiv 1503.02531, section 2, at temperature 1): at its least, their entropy.
    """
    logits_BxKxV = model.logits(params["model"], h_BxKxD)
    prob_BxKxV = jnp.where(weight_BxK[..., None] > 0, prob_BxKxV, 0)  # of an unused slot it may be NaN
    nats_BxK = -(prob_BxKxV * jax.nn.log_softmax(logits_BxKxV)).sum(-1)
    correct_BxK = logits_BxKxV.argmax(-1) == target_BxK
    return (nats_BxK * weight_BxK).sum(-1), {"correct": (correct_BxK * weight_BxK).sum(-1)}


def compute_unigram_baseline(log_unigram_V, target_BxK, weight_BxK) -> dict:
    """Sums over each example of the nats and the correct predictions of the train split's token frequencies."""
    correct_BxK = target_BxK == log_unigram_V.argmax()
    nats_BxK = jnp.where(weight_BxK > 0, -log_unigram_V[target_BxK], 0)  # infinite where no target is possible
    return {"unigram_nats": (nats_BxK * weight_BxK).sum(-1), "unigram_correct": (correct_BxK * weight_BxK).sum(-1)}


def build_scores(term: str, unit: str) -> tuple[Score, ...]:
    """Loss, perplexity and accuracy of a term's predictions and of the unigram baseline."""
    loss, accuracy = scores.build_loss_score(term, unit), scores.build_score("accuracy", f"{term}_weight")
    perplexity = Score("perplexity", "held-out perplexity", loss.columns, "exp_mean", format=".2f", better=-1)
    model_scores = (loss, perplexity, accuracy)
    unigram_columns = ("unigram_nats", "unigram_nats", "unigram_correct")
    return *model_scores, *(
        make_reference(score, f"unigram_{score.name}", f"unigram {score.name}", (column,), "unigram")
        for score, column in zip(model_scores, unigram_columns, strict=True)
    )
