"""At which layer of a model a task is solved, by edge probes of each depth and by the mix of the deepest (Tenney et al.
2019, arXiv 1905.05950, section 3).

Letters in array names: S seeds, K layers, the embeddings the first.
"""
from collections.abc import Sequence

import numpy as np

from mlm.base.estimates import Estimate, estimate


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
    total_x = step_xK.sum(-1)
    return step_xK @ np.arange(1, step_xK.shape[-1] + 1) / np.where(total_x == 0, np.nan, total_x)


def gravity_over_seeds(gravity_S: Sequence[float], layers: int) -> Estimate:
    """Centres of gravity of probes that differ in their seed, of a model of so many layers."""
    return estimate(gravity_S, (0.0, float(layers)))


def expected_over_seeds(score_SxK: np.ndarray) -> Estimate:
    """The expected layer of each seed's probes, and their mean."""
    return estimate(expected(score_SxK))
