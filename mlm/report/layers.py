"""At which layer of a model a task is solved, by edge probes of each depth and by the mix of the deepest (Tenney et al.
2019, arXiv 1905.05950, section 3).

Letters in array names: S seeds of the probes, K layers, the embeddings the first, N held-out rows, C columns of a
score, R resamples.
"""
from collections.abc import Sequence

import numpy as np

from mlm.base.estimates import Estimate, OverRows, Score, estimate
from mlm.report import compare


def gravity(share_xK: np.ndarray) -> np.ndarray:
    """The centre of gravity of mixes: the mean of the layers' numbers by their shares, the embeddings' 0 included."""
    share_xK = np.asarray(share_xK, np.float64)
    return share_xK @ np.arange(share_xK.shape[-1])


def expected(score_xK: np.ndarray) -> np.ndarray:
    """The expected layer: the mean of the numbers of layers from 1 on, by how much higher the probe that may read one
    scores than that which may not. A layer that makes it worse counts against its number: nothing is clipped. Not a
    number where the last probe scores as the first does.

    score_xK: of probes that may read layers 0 to 0, 0 to 1, and so on.
    """
    step_xK = np.diff(np.asarray(score_xK, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        return step_xK @ np.arange(1, step_xK.shape[-1] + 1) / step_xK.sum(-1)


def gravity_over_seeds(gravity_S: Sequence[float], layers: int) -> Estimate:
    """Centres of gravity of probes that differ in their seed, of a model of so many layers."""
    return estimate(gravity_S, (0.0, float(layers)))


def expected_over_seeds(score_SxK: np.ndarray) -> Estimate:
    """The expected layer of each seed's probes, and their mean."""
    return estimate(expected(score_SxK))


def expected_over_rows(score: Score, given_KxNxC: np.ndarray, *, resamples: int = compare.RESAMPLES,
                       seed: int = 0) -> OverRows:
    """The expected layer of one probe of each depth, with the middle 95% of what it is on rows drawn with replacement,
    the same for every depth.

    given_KxNxC: what each row gives to each of the score's columns.
    """
    given_KxNxC = np.asarray(given_KxNxC, np.float64)
    rng, rows, found = np.random.default_rng(seed), given_KxNxC.shape[1], []
    for start in range(0, resamples, size := max(1, compare.CHUNK // rows)):
        row_RxN = compare.draws(rng, rows, min(size, resamples - start))
        found.append(expected(compare.of_sums(score, row_RxN @ given_KxNxC).T))
    low, high = np.quantile(np.concatenate(found), (0.025, 0.975))
    return OverRows(float(expected(compare.of_sums(score, given_KxNxC.sum(1)))), float(low), float(high))
