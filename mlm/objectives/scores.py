"""Scores of labelled rows by name: which a run asks for, and of which columns they are.

Letters in array names: C classes, N rows of a split, G groups of rows with one value.
"""
from collections.abc import Sequence

import jax
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score

FIELD = "config.data.labelled.scores"


def names(cfg: config.Config, known: Sequence[str]) -> tuple[str, ...]:
    """Those that config.data.labelled.scores asks for, the one that is judged by first; the first of `known` where it
    is empty. Raises ConfigError for a name that is not one of `known`, and for one that is said twice.
    """
    said = cfg.data.labelled.scores
    asked = tuple(name.strip() for name in said.split(",")) if said else tuple(known[:1])
    for name in asked:
        errors.require_one_of(FIELD, name, known)
    errors.require(len({*asked}) == len(asked), FIELD, said, "each name once")
    return asked


def loss(term: str, unit: str) -> Score:
    return Score("loss", "held-out loss", (f"{term}_nats", f"{term}_weight"), unit=unit, better=-1, chart=True)


def accuracy(weight: str) -> Score:
    return Score("accuracy", "held-out accuracy", ("correct", weight), better=1, share=True, chart=True)


def f1(classes: Sequence[str], weight: str) -> Score:
    """Of the second of two classes. Raises ConfigError for any other number of them."""
    errors.require(len(classes) == 2, FIELD, "f1", f"accuracy or matthews, since there are {len(classes)} classes")
    return Score("f1", f"held-out F1 of {classes[1]}", ("right", "found_1", "there_1", weight), "f1", better=1,
                 share=True, chart=True)


def matthews(classes: Sequence[str], weight: str) -> Score:
    counts = (f"{count}_{number}" for count in ("found", "there") for number in range(len(classes)))
    return Score("matthews", "held-out Matthews correlation", ("correct", *counts, weight), "matthews", better=1,
                 chart=True)


def pearson(weight: str) -> Score:
    return Score("pearson", "held-out Pearson correlation", ("x", "y", "xx", "yy", "xy", weight), "pearson", better=1,
                 chart=True)


def spearman(weight: str) -> Score:
    return Score("spearman", "held-out Spearman correlation", ("spearman", weight), better=1, chart=True)


def correlations(x_N: np.ndarray, y_N: np.ndarray) -> dict[str, np.ndarray]:
    """The columns that `pearson` and `spearman` are of, float64; each row's weight is 1.

    Values are taken from their medians, which changes no correlation, spares digits and leaves zeros of what does not
    vary. The mean of the column "spearman" is the coefficient, of average ranks, and its spread that of the
    coefficient's influence function (the infinitesimal jackknife: Jaeckel 1972), so that its mean's error is right.
    """
    x_N, y_N = (np.asarray(value_N, np.float64) for value_N in (x_N, y_N))
    x_N, y_N = x_N - np.median(x_N), y_N - np.median(y_N)
    return {"x": x_N, "y": y_N, "xx": x_N * x_N, "yy": y_N * y_N, "xy": x_N * y_N, "spearman": _spearman(x_N, y_N)}


def _spearman(x_N, y_N):
    """The coefficient and, added in each row, by how much it grows where that row's share of all rows does.

    A rank is itself a sum over rows: of 1 for each lower value and 1/2 for each equal one. So a row counts by its own
    ranks and by the ranks that it adds to.
    """
    from scipy import stats  # half a second, of which other runs have no need

    u_N, v_N = ((stats.rankdata(value_N) - 0.5) / len(value_N) for value_N in (x_N, y_N))
    together, one, other = (u_N * v_N).mean() - 0.25, (u_N * u_N).mean() - 0.25, (v_N * v_N).mean() - 0.25
    if min(one, other) < 1e-12:  # ranks that do not vary are all 1/2
        return np.zeros(len(x_N))
    together_N = u_N * v_N + _above(x_N, v_N) + _above(y_N, u_N) - 3 * (together + 0.25)
    one_N, other_N = (r_N * r_N + 2 * _above(value_N, r_N) - 3 * (spread + 0.25)
                      for value_N, r_N, spread in ((x_N, u_N, one), (y_N, v_N, other)))
    rho = together / np.sqrt(one * other)
    return rho + together_N / np.sqrt(one * other) - rho / 2 * (one_N / one + other_N / other)


def _above(value_N, of_N):
    """The mean over rows of what `of_N` is where their value is above each row's, half of it where it is the same."""
    _, group_N = np.unique(value_N, return_inverse=True)
    sum_G = np.bincount(group_N, of_N)
    return (of_N.sum() - np.cumsum(sum_G) + sum_G / 2)[group_N] / len(of_N)


def counts(predicted_B, label_B, weight_B, classes: int) -> dict:
    """The columns that `f1` and `matthews` are of, beside those of accuracy."""
    each = {f"{count}_{number}": (of_B == number) * weight_B for count, of_B in (("found", predicted_B),
                                                                               ("there", label_B))
            for number in range(classes)}
    return each | {"right": (predicted_B == 1) * (label_B == 1) * weight_B}


def log_shares(about: types.DatasetInfo):
    """log_share_C: the train split's shares of the classes, one added to the count of each."""
    classes = len(about.classes)
    errors.require(classes > 1, "classes of the train split", about.classes, "two or more")
    count_C = np.frombuffer(about.counts, np.int64) if about.counts else np.zeros(classes, np.int64)
    return jax.device_put(np.log((count_C + 1) / (count_C + 1).sum()).astype(np.float32))


def baseline(log_share_C, label, weight) -> dict:
    """What always answering by the train split's shares would lose and get right, by the shape of `label`."""
    most, right = log_share_C.argmax(), (label == log_share_C.argmax()) * weight
    return {"majority_nats": -log_share_C[label] * weight, "majority_correct": right,
            "majority_right": (most == 1) * right, "majority_found": (most == 1) * weight}


MAJORITY = {"loss": ("majority_nats",), "accuracy": ("majority_correct",),
            "f1": ("majority_right", "majority_found", "there_1")}


def references(scores: Sequence[Score], about: types.DatasetInfo) -> tuple[Score, ...]:
    """The majority class beside those scores of classes that it moves, where classes were counted; its correlations
    are 0.
    """
    return tuple(score._replace(name=f"majority_{score.name}", title=score.title.replace("held-out", "majority class"),
                                columns=(*MAJORITY[score.name], score.columns[-1]), better=0, chart=False,
                                reference="majority class", beside=score.name)
                 for score in scores if score.name in MAJORITY and about.counts)
