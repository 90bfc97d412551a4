"""The exact distribution of hidden words that are filled in from left to right, each seen once it is filled in.

So a decoder writes a row of which its encoder has seen the words that are not hidden (`objectives/denoising.py`): the
words to the left are all known, of those to the right the visible ones. By the chain rule a row's nats add up to
-log P(hidden words | visible words). Rows are as in `posterior`.

Letters in array names: N rows, L places, K hidden words of all rows, B rows of a batch, S states, W words, Z latent
values.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from mlm.data.language.hmm import HMM
from mlm.data.language.posterior import (
    MIN_PROB,
    Posterior,
    compute_class_evidence,
    compute_class_probs,
    make_posterior,
    map_batches,
    put_on_device,
    scan_messages,
)

EXAMPLE_BATCH = 128  # of a batch: bounds memory, changes no result


def _compute_latent_log_odds(by_ZxW, prior_Z, words_BxL, visible_BxL):
    """Log-odds of each latent value given the visible words, and those before each place."""
    odds_BxLxZ = jnp.log(jnp.maximum(by_ZxW, MIN_PROB)).T[words_BxL]
    visible_BxZ = jnp.where(visible_BxL[..., None], odds_BxLxZ, 0).sum(1)
    filled_BxLxZ = jnp.where((visible_BxL | (words_BxL < 0))[..., None], 0, odds_BxLxZ)
    return jnp.log(prior_Z) + visible_BxZ[:, None] + jnp.cumsum(filled_BxLxZ, 1) - filled_BxLxZ


@jax.jit
def _infer_examples(hmm, words_BxL, visible_BxL):
    valid_LxB, shape_BxS = (words_BxL >= 0).T, (len(words_BxL), len(hmm.trans_SxS))
    first_BxS = jnp.broadcast_to(hmm.trans_SxS[hmm.end], shape_BxS)
    last_BxS = jnp.broadcast_to(jnp.eye(shape_BxS[1])[hmm.end], shape_BxS)
    known, seen = (compute_class_evidence(hmm, words_BxL, at_BxL) for at_BxL in (words_BxL >= 0, visible_BxL))
    ahead_LxBxS = scan_messages(hmm.trans_SxS, known, valid_LxB, first_BxS)
    back_LxBxS = scan_messages(hmm.trans_SxS.T, seen, valid_LxB, last_BxS, reverse=True)
    return (
        compute_class_probs(hmm, ahead_LxBxS * back_LxBxS).swapaxes(0, 1),
        _compute_latent_log_odds(hmm.topic_emission_TxW, hmm.topic_T, words_BxL, visible_BxL),
        _compute_latent_log_odds(hmm.name_emission_MxW, hmm.name_M, words_BxL, visible_BxL),
    )


def compute_infilling_posterior(hmm: HMM, words_NxL: np.ndarray, hidden_NxL: np.ndarray) -> Posterior:
    """The exact distribution of each hidden word given the visible words of its row and the hidden ones to its left.

    Raises ValueError for a row that the language cannot write.
    """
    row_K, column_K = queried = np.nonzero(hidden_NxL)
    visible_NxL = ~hidden_NxL & (words_NxL >= 0)
    class_NxLxC, topic_NxLxT, name_NxLxM = map_batches(
        functools.partial(_infer_examples, put_on_device(hmm)), EXAMPLE_BATCH, words_NxL, visible_NxL
    )
    return make_posterior(row_K, column_K, class_NxLxC[queried], topic_NxLxT[queried], name_NxLxM[queried])
