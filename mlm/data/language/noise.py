"""Corruption other than by [MASK] alone, as a noisy channel, and the least loss under it.

Letters in array names: N rows, L places, K chosen words, B rows of a batch, S states, C classes, W words, T topics,
M names, Z pairs of a topic and a name.
"""
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.data.language.hmm import HMM
from mlm.data.language.posterior import batched, on_device, sweep

ROWS = 8        # of a batch: bounds memory, changes no result
HIGH = jax.lax.Precision.HIGHEST


class Channel(NamedTuple):
    """Each word is chosen with probability `rate`, on its own; a chosen word is then masked, replaced or kept."""

    rate: float
    mask_share: float       # of the chosen: shown as [MASK]
    random_share: float     # of the chosen: shown as a word drawn from random_W; the rest are shown as they are
    random_W: np.ndarray    # distribution of the random words


def corrupt(channel: Channel, words_NxL: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What the channel shows of rows of words: seen_NxL, -1 where that is [MASK] or no word, and chosen_NxL."""
    stream = np.random.default_rng(seed)
    chosen_NxL = (stream.random(words_NxL.shape) < channel.rate) & (words_NxL >= 0)
    fate_NxL = stream.random(words_NxL.shape)
    random_NxL = stream.choice(len(channel.random_W), words_NxL.shape, p=channel.random_W)
    shown_NxL = np.where(fate_NxL < channel.mask_share, -1,
                         np.where(fate_NxL < channel.mask_share + channel.random_share, random_NxL, words_NxL))
    return np.where(chosen_NxL, shown_NxL, words_NxL), chosen_NxL


@jax.jit
def _guess(hmm, channel, words_BxL, seen_BxL):
    topics, names, states = len(hmm.topic_T), len(hmm.name_M), len(hmm.trans_SxS)
    pairs, classes, vocabulary = topics * names, hmm.class_SxC.shape[1], len(hmm.class_W)
    shown_BxL = seen_BxL >= 0
    by_WxZ = (hmm.by_topic_TxW[:, None] * hmm.by_name_MxW).reshape(pairs, -1).T
    prior_Z = (hmm.topic_T[:, None] * hmm.name_M).ravel()
    keep_share = 1 - channel.mask_share - channel.random_share
    intact = 1 - channel.rate + channel.rate * keep_share  # P(a word is shown as it is, and not by a random draw)
    noise_BxL = channel.rate * channel.random_share * channel.random_W[seen_BxL]
    mean_BxL = intact * (by_WxZ @ prior_Z)[seen_BxL] + noise_BxL  # taken out of the evidence to keep scales near 1
    gain_LxBxZ = jnp.where(shown_BxL, intact / mean_BxL, 0).T[:, :, None] * by_WxZ[seen_BxL].swapaxes(0, 1)
    evidence = (hmm.class_SxC.T[hmm.class_W[seen_BxL]].swapaxes(0, 1), gain_LxBxZ,
                jnp.where(shown_BxL, noise_BxL / mean_BxL, 1).T)
    valid_LxB, shape = (words_BxL >= 0).T, (len(words_BxL), pairs, states)
    first_BxZxS = jnp.broadcast_to(hmm.trans_SxS[hmm.end], shape)
    last_BxZxS = jnp.broadcast_to(jnp.eye(states)[hmm.end], shape)
    ahead_LxBxZxS, scale_LxBxZ = sweep(hmm.trans_SxS, evidence, valid_LxB, first_BxZxS)
    back_LxBxZxS, back_scale_LxBxZ = sweep(hmm.trans_SxS.T, evidence, valid_LxB, last_BxZxS, reverse=True)
    # All but a word's own evidence: what its place would hold if it were hidden, jointly with the latents.
    class_LxBxZxC = jnp.matmul(ahead_LxBxZxS * back_LxBxZxS, hmm.class_SxC, precision=HIGH)
    odds_LxBxZ = scale_LxBxZ + back_scale_LxBxZ
    class_LxBxZxC *= (prior_Z * jnp.exp(odds_LxBxZ - odds_LxBxZ.max(-1, keepdims=True)))[..., None]
    class_LxBxZxC /= class_LxBxZxC.sum((-2, -1), keepdims=True)
    joint_LxBxTxMxC = class_LxBxZxC.reshape(*class_LxBxZxC.shape[:2], topics, names, classes)
    # A class's words depend on one of the latents, the other's table being 1: sum over that one first.
    member_CxW = hmm.class_W == jnp.arange(classes)[:, None]
    by_name_C = (member_CxW & (hmm.by_name_MxW != 1).any(0)).any(1)
    topic_LxBxX = jnp.where(by_name_C, 0, joint_LxBxTxMxC.sum(3)).reshape(*words_BxL.T.shape, -1)
    name_LxBxX = jnp.where(by_name_C, joint_LxBxTxMxC.sum(2), 0).reshape(*words_BxL.T.shape, -1)
    pure_LxBxW = sum(jnp.matmul(latent_LxBxX, (by_ZxW[:, None] * member_CxW).reshape(-1, vocabulary), precision=HIGH)
                     for latent_LxBxX, by_ZxW in ((topic_LxBxX, hmm.by_topic_TxW), (name_LxBxX, hmm.by_name_MxW)))
    # The word's own evidence, given that it was chosen: the [MASK] tells nothing, a word that it may have been kept.
    kept_LxBxW = keep_share * (jnp.arange(vocabulary) == seen_BxL.T[:, :, None])
    own_LxBxW = kept_LxBxW + channel.random_share * channel.random_W[seen_BxL.T][:, :, None]
    share_LxBxW = pure_LxBxW * jnp.where(shown_BxL.T[:, :, None], own_LxBxW, 1)
    share_LxBxW /= share_LxBxW.sum(-1, keepdims=True)
    log_prob_LxB = jnp.log(jnp.take_along_axis(share_LxBxW, words_BxL.T[:, :, None], 2))[:, :, 0]
    return log_prob_LxB.T, share_LxBxW.argmax(-1).T


def guess_corrupted(hmm: HMM, channel: Channel, words_NxL: np.ndarray, seen_NxL: np.ndarray, chosen_NxL: np.ndarray
                    ) -> tuple[np.ndarray, np.ndarray]:
    """log_prob_K of the true words at the chosen places, in nats, and best_K, the likeliest words.

    The distribution is that of the word given all that is seen, its own place included, and that it was chosen. It is
    exact where words are chosen independently (`corrupt`), as a seen word is then noisy evidence that stands alone.
    Where an exact count of each row is chosen, as in training, it is an approximation, since the number of [MASK] seen
    then tells how many other words were chosen; for [MASK] alone that tells nothing, and `posterior` is exact for
    either. A seen word may be noise, so its class is uncertain and the latents no longer independent of the state:
    forward-backward runs for every pair of topic and name.
    words_NxL, seen_NxL: word indices; words -1 where there is no word, seen -1 there and where [MASK] is seen.
    """
    channel = jax.tree.map(jnp.float32, channel)
    log_prob_NxL, best_NxL = batched(functools.partial(_guess, on_device(hmm), channel), ROWS, words_NxL, seen_NxL)
    return log_prob_NxL[chosen_NxL], best_NxL[chosen_NxL]
