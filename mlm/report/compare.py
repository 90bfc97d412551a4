"""Is A better than B? Differences in held-out loss over seeds, and over seeds and held-out rows at once.

Letters in array names: S seeds, N held-out rows, R resamples.
"""
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from mlm.base.estimates import Estimate
from mlm.report.series import folder
from mlm.report.table import Column

RESAMPLES = 10_000
CHUNK = 2**24  # weights drawn at a time


class Difference(NamedTuple):
    """A's loss less B's (nats per masked token), its 95% interval, and the one-sided p-value of "A is better".

    p is the chance of what was seen, or of more, if A were no better than B.
    """

    mean: float
    low: float
    high: float
    p: float


class Comparison(NamedTuple):
    """Two groups of runs: how many seeds of each were used, whether they are paired, and the difference both ways.

    over_seeds: Student's, of the paired seeds; None where fewer than two are shared.
    """

    seeds: tuple[int, int]
    paired: bool
    over_seeds_and_rows: Difference
    over_seeds: Difference | None


COLUMNS = (
    Column("better", "better"), Column("worse", "than"), Column("seeds", "seeds"),
    Column("difference", "difference (nats)", "+.4f"), Column("over_seeds", "over paired seeds (Student)", "+.4f"),
    Column("over_seeds_p", "its p", ".2g"), Column("low", "multi-bootstrap: 95% from", "+.4f"),
    Column("high", "to", "+.4f"), Column("p", "its p", ".2g"),
)


def claims(root: Path, groups: Mapping[str, Sequence[dict]],
           pairs: Iterable[tuple[str, str]] | None = None) -> tuple[list[dict], Sequence[Column]]:
    """A table of claims "the first is better than the second", as an experiment's `table` gives it.

    groups: runs by name. pairs: names, of which those that cannot be compared are left out; without pairs the group of
    least loss is held against each other one that was judged on the same rows and masks.
    """
    rows = []
    for better, worse in best_against_others(root, groups) if pairs is None else pairs:
        if better in groups and worse in groups and (found := compare(root, groups[better], groups[worse])):
            mean, low, high, p = found.over_seeds_and_rows
            row = {"better": better, "worse": worse, "difference": mean, "low": low, "high": high, "p": p,
                   "seeds": f"{found.seeds[0]} paired" if found.paired else "{} and {}".format(*found.seeds)}
            if found.over_seeds:
                row |= {"over_seeds": Estimate(*found.over_seeds[:3]), "over_seeds_p": found.over_seeds.p}
            rows.append(row)
    return rows, COLUMNS


def best_against_others(root: Path, groups: Mapping[str, Sequence[dict]]) -> list[tuple[str, str]]:
    alike = {}
    for name, runs in groups.items():
        if found := held_out(root, runs[0]):
            loss = float(np.mean([run["evaluation"]["loss"] for run in runs]))
            alike.setdefault(found[1].tobytes(), []).append((loss, name))
    return [(min(those)[1], name) for those in alike.values() for _, name in sorted(those)[1:]]


def paired_seeds(loss_a_S: np.ndarray, loss_b_S: np.ndarray) -> Difference:
    """Student's interval and test of the differences between runs that share their seed."""
    both = stats.ttest_rel(loss_a_S, loss_b_S)
    low, high = both.confidence_interval(0.95)
    less = stats.ttest_rel(loss_a_S, loss_b_S, alternative="less")
    return Difference(float(np.mean(loss_a_S) - np.mean(loss_b_S)), float(low), float(high), float(less.pvalue))


def multi_bootstrap(nats_a_SxN: np.ndarray, nats_b_SxN: np.ndarray, predictions_N: np.ndarray, *, paired: bool,
                    resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """The Multi-Bootstrap (Sellam et al. 2022, arXiv 2106.16163): seeds and held-out rows are both resampled.

    Each resample draws rows, the same for A and B, and seeds: the same for both if `paired`, else each its own. A
    group's loss is the mean over its seeds of nats by predictions. The interval holds the middle 95% of the
    differences, p is the share of them that are not below zero, at least 1/resamples. Few seeds understate what seeds
    add: with S of them the variance over seeds comes out (S-1)/S of what it is, and with one it is left out.

    nats_?_SxN: loss summed over each row; predictions_N: the masked tokens there, the same for every run.
    """
    nats_a_SxN, nats_b_SxN, predictions_N = (np.asarray(x, np.float64) for x in (nats_a_SxN, nats_b_SxN, predictions_N))
    if paired and len(nats_a_SxN) != len(nats_b_SxN):
        raise ValueError(f"paired seeds, yet {len(nats_a_SxN)} of A and {len(nats_b_SxN)} of B")
    rng = np.random.default_rng(seed)
    rows = len(predictions_N)
    differences = []
    for start in range(0, resamples, size := max(1, CHUNK // rows)):
        count = min(size, resamples - start)
        row_RxN, a_RxS = draws(rng, rows, count), draws(rng, len(nats_a_SxN), count) / len(nats_a_SxN)
        b_RxS = a_RxS if paired else draws(rng, len(nats_b_SxN), count) / len(nats_b_SxN)
        nats_R = (a_RxS * (row_RxN @ nats_a_SxN.T)).sum(1) - (b_RxS * (row_RxN @ nats_b_SxN.T)).sum(1)
        differences.append(nats_R / (row_RxN @ predictions_N))
    difference_R = np.concatenate(differences)
    low, high = np.quantile(difference_R, (0.025, 0.975))
    mean = (nats_a_SxN.mean(0) - nats_b_SxN.mean(0)).sum() / predictions_N.sum()
    return Difference(float(mean), float(low), float(high), max(float((difference_R >= 0).mean()), 1 / resamples))


def draws(rng: np.random.Generator, n: int, resamples: int) -> np.ndarray:
    """How often each of n is drawn, in n draws with replacement: resamples x n."""
    place_RxN = rng.integers(n, size=(resamples, n)) + n * np.arange(resamples)[:, None]
    return np.bincount(place_RxN.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)


def compare(root: Path, a: Sequence[dict], b: Sequence[dict]) -> Comparison | None:
    """Compares two groups of runs by their held_out.npz; None where those are missing, or of other rows or masks.

    Runs are paired where two seeds or more are shared, or where each group has the same one seed.
    """
    nats_a, nats_b = ({run["config"]["seed"]: held_out(root, run) for run in runs} for runs in (a, b))
    every = [*nats_a.values(), *nats_b.values()]
    if not every or any(run is None or not np.array_equal(run[1], every[0][1]) for run in every):
        return None
    shared = sorted(nats_a.keys() & nats_b.keys())
    paired = len(shared) > 1 or nats_a.keys() == nats_b.keys()
    nats_a_SxN, nats_b_SxN = (np.array([of[seed][0] for seed in (shared if paired else of)]) for of in (nats_a, nats_b))
    predictions_N = every[0][1]
    over_seeds = None
    if paired and len(shared) > 1:
        over_seeds = paired_seeds(*(nats_SxN.sum(1) / predictions_N.sum() for nats_SxN in (nats_a_SxN, nats_b_SxN)))
    return Comparison((len(nats_a_SxN), len(nats_b_SxN)), paired,
                      multi_bootstrap(nats_a_SxN, nats_b_SxN, predictions_N, paired=paired), over_seeds)


def held_out(root: Path, result: dict) -> tuple[np.ndarray, np.ndarray] | None:
    """nats_N and predictions_N of a run."""
    path = folder(root, result) / "held_out.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        return file["nats_N"], file["predictions_N"]
