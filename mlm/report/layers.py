"""The layer of a model at which a task is solved: two summaries of edge probes (Tenney et al. 2019, section 3).

The paper is arXiv 1905.05950. Letters in array names: S seeds, K layers, of which the first is the embeddings.
"""

from collections.abc import Sequence

import numpy as np

from mlm.base.estimates import Estimate, estimate_mean


def compute_expected_layer(score_xK: np.ndarray) -> np.ndarray:
    """The mean layer number from 1 on, weighted by the gain of the probe that may read the layer over the previous one.

    Negative gains are not clipped. NaN if the last probe scores as the first does.

    Args:
        score_xK: scores of the probes that may read layers 0 to 0, 0 to 1, and so on.
    """
    gain_xK = np.diff(np.asarray(score_xK, np.float64))
    total_x = gain_xK.sum(-1)
    return gain_xK @ np.arange(1, gain_xK.shape[-1] + 1) / np.where(total_x == 0, np.nan, total_x)


def estimate_center_of_gravity(gravity_S: Sequence[float], num_layers: int) -> Estimate:
    """The mean over seeds of the center of gravity in a model with num_layers layers."""
    return estimate_mean(gravity_S, (0.0, float(num_layers)))


def estimate_expected_layer(score_SxK: np.ndarray) -> Estimate:
    """The mean over seeds of the expected layer."""
    return estimate_mean(compute_expected_layer(score_SxK))
