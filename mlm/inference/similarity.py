"""Cosine similarity of vectors."""

import numpy as np


def l2_normalize(x_PxD) -> np.ndarray:
    """The vectors in float64, scaled to length 1. Zero vectors stay zero."""
    x_PxD = np.asarray(x_PxD, np.float64)
    return x_PxD / np.maximum(np.linalg.norm(x_PxD, axis=-1, keepdims=True), np.finfo(np.float64).tiny)


def compute_cosines(x_PxD, y_PxD) -> np.ndarray:
    """cosine_P, float64; 0 for zero vectors. It is rounded so that equal pairs of texts share a rank."""
    return (l2_normalize(x_PxD) * l2_normalize(y_PxD)).sum(-1).round(9)
