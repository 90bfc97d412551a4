"""Corruption other than by [MASK] alone, as a noisy channel, and the least loss under it.

Letters in array names: N rows, L places, K chosen words, B rows of a batch, S states, C classes, W words, T topics, M
names, Z pairs of a topic and a name (in `_compute_word_probs` values of one of the two), X pairs of such a Z and a
class.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.data.language.hmm import HMM
from mlm.data.language.posterior import map_batches, put_on_device, scan_messages

EXAMPLE_BATCH = 8  # of a batch: bounds memory, changes no result
HIGH = jax.lax.Precision.HIGHEST


class Channel(NamedTuple):
    """Each word is chosen with probability `rate`, on its own; a chosen word is then masked, replaced or left as it
    is.
    """

    rate: float
    mask_token_prob: float  # of the chosen: shown as [MASK]
    random_token_prob: float  # of the chosen: replaced by a word sampled from random_W; the rest stay as they are
    random_W: np.ndarray  # distribution of the random words


def corrupt_words(channel: Channel, words_NxL: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What the channel shows of rows of words: seen_NxL, -1 where that is [MASK] or no word, and chosen_NxL."""
    stream = np.random.default_rng(seed)
    chosen_NxL = (stream.random(words_NxL.shape) < channel.rate) & (words_NxL >= 0)
    fate_NxL = stream.random(words_NxL.shape)
    random_NxL = stream.choice(len(channel.random_W), words_NxL.shape, p=channel.random_W)
    shown_NxL = np.where(
        fate_NxL < channel.mask_token_prob,
        -1,
        np.where(fate_NxL < channel.mask_token_prob + channel.random_token_prob, random_NxL, words_NxL),
    )
    return np.where(chosen_NxL, shown_NxL, words_NxL), chosen_NxL


def _compute_keep_prob(channel):
    """P(a word is shown as it is | it was chosen), a random draw of the same word not counted."""
    return 1 - channel.mask_token_prob - channel.random_token_prob


def _compute_evidence(hmm, channel, by_ZxW, prior_Z, seen_BxL):
    """What is seen as evidence on state and latents, for `scan_messages`: a shown word is the original, or noise."""
    shown_BxL = seen_BxL >= 0
    intact = 1 - channel.rate + channel.rate * _compute_keep_prob(channel)
    by_WxZ = by_ZxW.T
    noise_BxL = channel.rate * channel.random_token_prob * channel.random_W[seen_BxL]
    mean_BxL = intact * (by_WxZ @ prior_Z)[seen_BxL] + noise_BxL  # divided out of the evidence to keep scales near 1

    class_LxBxS = hmm.class_SxC.T[hmm.class_W[seen_BxL]].swapaxes(0, 1)
    intact_BxL = jnp.where(shown_BxL, intact / mean_BxL, 0)  # a [MASK] tells nothing: 0 for the word, 1 for noise
    gain_LxBxZ = intact_BxL.T[:, :, None] * by_WxZ[seen_BxL].swapaxes(0, 1)
    noise_LxB = jnp.where(shown_BxL, noise_BxL / mean_BxL, 1).T
    return class_LxBxS, gain_LxBxZ, noise_LxB


def _infer_latents_and_classes(hmm, prior_Z, evidence, valid_LxB):
    """P(latents, class of the word | what is seen in all places but its own): class_LxBxZxC."""
    states = len(hmm.trans_SxS)
    shape_BxZxS = valid_LxB.shape[1], len(prior_Z), states
    first_BxZxS = jnp.broadcast_to(hmm.trans_SxS[hmm.end], shape_BxZxS)
    last_BxZxS = jnp.broadcast_to(jnp.eye(states)[hmm.end], shape_BxZxS)
    ahead_LxBxZxS, scale_LxBxZ = scan_messages(hmm.trans_SxS, evidence, valid_LxB, first_BxZxS)
    back_LxBxZxS, back_scale_LxBxZ = scan_messages(hmm.trans_SxS.T, evidence, valid_LxB, last_BxZxS, reverse=True)

    class_LxBxZxC = jnp.matmul(ahead_LxBxZxS * back_LxBxZxS, hmm.class_SxC, precision=HIGH)
    odds_LxBxZ = scale_LxBxZ + back_scale_LxBxZ
    weight_LxBxZ = prior_Z * jnp.exp(odds_LxBxZ - odds_LxBxZ.max(-1, keepdims=True))
    class_LxBxZxC *= weight_LxBxZ[..., None]
    return class_LxBxZxC / class_LxBxZxC.sum((-2, -1), keepdims=True)


def _compute_word_probs(hmm, class_LxBxZxC):
    """P(word), from the joint distribution of the latents and its class.

    A class's words depend on one of the latents, the other's table being 1: sum over that one first.
    """
    length, batch, _, classes = class_LxBxZxC.shape
    joint_LxBxTxMxC = class_LxBxZxC.reshape(length, batch, len(hmm.topic_T), len(hmm.name_M), classes)
    member_CxW = hmm.class_W == jnp.arange(classes)[:, None]
    by_name_C = (member_CxW & (hmm.name_emission_MxW != 1).any(0)).any(1)
    topic_LxBxTxC = jnp.where(by_name_C, 0, joint_LxBxTxMxC.sum(3))
    name_LxBxMxC = jnp.where(by_name_C, joint_LxBxTxMxC.sum(2), 0)

    def given(latent_LxBxZxC, by_ZxW):
        word_ZxCxW = by_ZxW[:, None] * member_CxW
        latent_LxBxX, word_XxW = latent_LxBxZxC.reshape(length, batch, -1), word_ZxCxW.reshape(-1, len(hmm.class_W))
        return jnp.matmul(latent_LxBxX, word_XxW, precision=HIGH)

    return given(topic_LxBxTxC, hmm.topic_emission_TxW) + given(name_LxBxMxC, hmm.name_emission_MxW)


def _compute_own_likelihood(channel, seen_LxB):
    """What a chosen word's own place tells of it, own_LxBxW: a [MASK] nothing, a word that it may be the original."""
    words = jnp.arange(len(channel.random_W))
    kept_LxBxW = _compute_keep_prob(channel) * (words == seen_LxB[:, :, None])
    random_LxB = channel.random_token_prob * channel.random_W[seen_LxB]
    return jnp.where(seen_LxB[:, :, None] >= 0, kept_LxBxW + random_LxB[:, :, None], 1)


@jax.jit
def _predict_words(hmm, channel, words_BxL, seen_BxL):
    """log_prob_BxL of each word if it was chosen, and the likeliest word."""
    pairs = len(hmm.topic_T) * len(hmm.name_M)
    by_ZxW = (hmm.topic_emission_TxW[:, None] * hmm.name_emission_MxW).reshape(pairs, -1)
    prior_Z = (hmm.topic_T[:, None] * hmm.name_M).ravel()

    evidence = _compute_evidence(hmm, channel, by_ZxW, prior_Z, seen_BxL)
    class_LxBxZxC = _infer_latents_and_classes(hmm, prior_Z, evidence, (words_BxL >= 0).T)
    weight_LxBxW = _compute_word_probs(hmm, class_LxBxZxC) * _compute_own_likelihood(channel, seen_BxL.T)
    share_LxBxW = weight_LxBxW / weight_LxBxW.sum(-1, keepdims=True)
    true_LxBx1 = jnp.take_along_axis(share_LxBxW, words_BxL.T[:, :, None], 2)
    return jnp.log(true_LxBx1)[:, :, 0].T, share_LxBxW.argmax(-1).T


def predict_corrupted_words(
    hmm: HMM, channel: Channel, words_NxL: np.ndarray, seen_NxL: np.ndarray, chosen_NxL: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """log_prob_K of the true words at the chosen places, in nats, and best_K, the likeliest words.

    The distribution is that of the word given all that is seen, its own place included, and that it was chosen. It is
    exact where words are chosen independently (`corrupt_words`), as a seen word is then noisy evidence that stands
    alone. Where an exact count of each row is chosen, as in training, it is an approximation, since the number of
    [MASK] seen then tells how many other words were chosen; for [MASK] alone that tells nothing, and `posterior` is
    exact for either. A seen word may be noise, so its class is uncertain and the latents no longer independent of the
    state: forward-backward runs for every pair of topic and name. words_NxL, seen_NxL: word indices; words -1 where
    there is no word, seen -1 there and where [MASK] is seen.
    """
    channel = jax.tree.map(jnp.float32, channel)
    log_prob_NxL, best_NxL = map_batches(
        functools.partial(_predict_words, put_on_device(hmm), channel), EXAMPLE_BATCH, words_NxL, seen_NxL
    )
    return log_prob_NxL[chosen_NxL], best_NxL[chosen_NxL]
