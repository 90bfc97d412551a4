"""Is A better than B? Differences of a held-out score over seeds, and over seeds and held-out rows at once.

Letters in array names: S seeds, N held-out rows, C columns of the score, R resamples.
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from mlm.base.estimates import FUNCTIONS, Estimate, Score, scores_of
from mlm.report.table import Column

RESAMPLES = 10_000
CHUNK = 2**24  # weights drawn at a time


class Difference(NamedTuple):
    """A's score less B's (in the score's unit), its 95% interval, and the one-sided p-value of "A is better".

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


def columns(score: Score) -> list[Column]:
    """The columns of a table of claims about a score."""
    unit = f" ({score.unit.split()[0]})" if score.unit else ""
    return [Column("better", "better"), Column("worse", "than"), Column("seeds", "seeds"),
            Column("difference", f"difference{unit}", "+.4f"),
            Column("over_seeds", "over paired seeds (Student)", "+.4f"), Column("over_seeds_p", "its p", ".2g"),
            Column("low", "multi-bootstrap: 95% from", "+.4f"), Column("high", "to", "+.4f"),
            Column("p", "its p", ".2g")]


def judged(run: Mapping) -> Score:
    """What runs are compared by: the first of their scores."""
    return scores_of(run)[0]


def claims(groups: Mapping[str, Sequence[dict]],
           pairs: Iterable[tuple[str, str]] | None = None) -> tuple[list[dict], Sequence[Column]]:
    """A table of claims "the first is better than the second", as an experiment's `table` gives it.

    groups: runs by name. pairs: names, of which those that cannot be compared are left out; without pairs the best
    group is held against each other one that was judged on the same rows and masks.
    """
    rows = []
    for better, worse in best_against_others(groups) if pairs is None else pairs:
        if better in groups and worse in groups and (found := compare(groups[better], groups[worse])):
            mean, low, high, p = found.over_seeds_and_rows
            row = {"better": better, "worse": worse, "difference": mean, "low": low, "high": high, "p": p,
                   "seeds": f"{found.seeds[0]} paired" if found.paired else "{} and {}".format(*found.seeds)}
            if found.over_seeds:
                row |= {"over_seeds": Estimate(*found.over_seeds[:3]), "over_seeds_p": found.over_seeds.p}
            rows.append(row)
    return rows, columns(judged(next(iter(groups.values()))[0]))


def best_against_others(groups: Mapping[str, Sequence[dict]]) -> list[tuple[str, str]]:
    alike = {}
    for name, runs in groups.items():
        score, found = judged(runs[0]), held_out(runs[0])
        if found is not None:
            value = float(np.mean([run["evaluation"][score.name] for run in runs]))
            alike.setdefault((score.name, found[:, -1].tobytes()), []).append((-score.better * value, name))
    return [(min(those)[1], name) for those in alike.values() for _, name in sorted(those)[1:]]


def paired_seeds(value_a_S: np.ndarray, value_b_S: np.ndarray, better: int = -1) -> Difference:
    """Student's interval and test of the differences between runs that share their seed; better: as of a Score."""
    low, high = stats.ttest_rel(value_a_S, value_b_S).confidence_interval(0.95)
    side = "less" if better < 0 else "greater"
    test = stats.ttest_rel(value_a_S, value_b_S, alternative=side)
    return Difference(float(np.mean(value_a_S) - np.mean(value_b_S)), float(low), float(high), float(test.pvalue))


def multi_bootstrap(a_SxNxC: np.ndarray, b_SxNxC: np.ndarray, score: Score, *, paired: bool,
                    resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """The Multi-Bootstrap (Sellam et al. 2022, arXiv 2106.16163): seeds and held-out rows are both resampled.

    Each resample draws rows, the same for A and B, and seeds: the same for both if `paired`, else each its own. A
    group's value is the mean over its seeds of the score of the drawn rows. The interval holds the middle 95% of the
    differences, p is the share of them in which A is not better, at least 1/resamples. Few seeds understate what seeds
    add: with S of them the variance over seeds comes out (S-1)/S of what it is, and with one it is left out.

    ?_SxNxC: what each row gives to each of the score's columns, the last of which is the same for every run.
    """
    a_SxNxC, b_SxNxC = np.asarray(a_SxNxC, np.float64), np.asarray(b_SxNxC, np.float64)
    if paired and len(a_SxNxC) != len(b_SxNxC):
        raise ValueError(f"paired seeds, yet {len(a_SxNxC)} of A and {len(b_SxNxC)} of B")
    rng, rows, differences = np.random.default_rng(seed), a_SxNxC.shape[1], []
    for start in range(0, resamples, size := max(1, CHUNK // rows)):
        count = min(size, resamples - start)
        row_RxN, a_RxS = draws(rng, rows, count), draws(rng, len(a_SxNxC), count) / len(a_SxNxC)
        b_RxS = a_RxS if paired else draws(rng, len(b_SxNxC), count) / len(b_SxNxC)
        value_a_SxR, value_b_SxR = of_sums(score, row_RxN @ a_SxNxC), of_sums(score, row_RxN @ b_SxNxC)
        differences.append((a_RxS * value_a_SxR.T).sum(1) - (b_RxS * value_b_SxR.T).sum(1))
    difference_R = np.concatenate(differences)
    low, high = np.quantile(difference_R, (0.025, 0.975))
    mean = of_sums(score, a_SxNxC.sum(1)).mean() - of_sums(score, b_SxNxC.sum(1)).mean()
    p = max(float((score.better * difference_R <= 0).mean()), 1 / resamples)
    return Difference(float(mean), float(low), float(high), p)


def of_sums(score: Score, sums_xC: np.ndarray) -> np.ndarray:
    """The score of sums whose last axis are its columns."""
    return FUNCTIONS[score.of](*np.moveaxis(sums_xC, -1, 0))


def draws(rng: np.random.Generator, n: int, resamples: int) -> np.ndarray:
    """How often each of n is drawn, in n draws with replacement: resamples x n."""
    place_RxN = rng.integers(n, size=(resamples, n)) + n * np.arange(resamples)[:, None]
    return np.bincount(place_RxN.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)


def compare(a: Sequence[dict], b: Sequence[dict]) -> Comparison | None:
    """Compares two groups of runs by the columns of what they are judged by.

    None where those are missing, or of other rows or masks, or where the groups are judged by different scores. Runs
    are paired where two seeds or more are shared, or where each group has the same one seed.
    """
    score, every = judged(a[0]), [held_out(run) for run in (*a, *b)]
    if any(judged(run).name != score.name for run in (*a, *b)) or any(
            found is None or not np.array_equal(found[:, -1], every[0][:, -1]) for found in every):
        return None
    of_a, of_b = ({run["config"]["seed"]: held_out(run) for run in runs} for runs in (a, b))
    shared = sorted(of_a.keys() & of_b.keys())
    paired = len(shared) > 1 or of_a.keys() == of_b.keys()
    a_SxNxC, b_SxNxC = (np.array([of[seed] for seed in (shared if paired else of)]) for of in (of_a, of_b))
    over_seeds = None
    if paired and len(shared) > 1:
        values = [of_sums(score, found_SxNxC.sum(1)) for found_SxNxC in (a_SxNxC, b_SxNxC)]
        over_seeds = paired_seeds(*values, score.better)
    return Comparison((len(a_SxNxC), len(b_SxNxC)), paired,
                      multi_bootstrap(a_SxNxC, b_SxNxC, score, paired=paired), over_seeds)


def held_out(run: Mapping) -> np.ndarray | None:
    """The columns, NxC in float64, of the score that a run is judged by; None where they are missing."""
    kept, names = run["held_out"], judged(run).columns
    if kept is None or not kept.keys() >= set(names):
        return None
    return np.stack([np.asarray(kept[name], np.float64) for name in names], axis=-1)
