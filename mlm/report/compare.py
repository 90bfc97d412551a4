"""Is A better than B? Differences of a held-out score over seeds, and over seeds and held-out rows at once.

Claims that were named before the runs are tested one by one; that of the best against each other group, which the same
runs have picked, against all pairs that could have been picked.

Letters in array names: S seeds, N held-out rows, C columns of the score, R resamples.
"""
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from mlm.base.estimates import FUNCTIONS, Estimate, OverRows, Score, estimate, scores_of
from mlm.report.rows import alike
from mlm.report.table import Column

RESAMPLES = 10_000
CHUNK = 2**24  # weights drawn at a time
FEWEST = 5     # seeds for the Multi-Bootstrap: its 95% misses no difference in 21, 15, 8, 6% with 2, 3, 5, 10 of them


class Difference(NamedTuple):
    """A's score less B's (in the score's unit), its 95% interval, and the one-sided p-value of "A is better".

    p is the chance of what was seen, or of more, if A were no better than B.
    """

    mean: float
    low: float
    high: float
    p: float


class OverBoth(Estimate):
    """A difference of groups of seeds, of which seeds and rows are resampled."""

    __slots__ = ()
    of, how = "95% interval over seeds and rows", f"multi-bootstrap, from {FEWEST} seeds on"


class Pair(NamedTuple):
    """Two groups of runs that were judged on the same rows: their seeds, paired where they share them.

    ?_SxNxC: what each row gives to each of the score's columns.
    """

    score: Score
    paired: bool
    a_SxNxC: np.ndarray
    b_SxNxC: np.ndarray

    @property
    def seeds(self) -> tuple[int, int]:
        return len(self.a_SxNxC), len(self.b_SxNxC)

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        return tuple(of_sums(self.score, found_SxNxC.sum(1)) for found_SxNxC in (self.a_SxNxC, self.b_SxNxC))

    def mean(self) -> float:
        value_a_S, value_b_S = self.values()
        return float(value_a_S.mean() - value_b_S.mean())

    def differences(self) -> np.ndarray | None:
        """A's less B's by seed; None where fewer than two are shared, which no test can do without."""
        value_a_S, value_b_S = self.values()
        return value_a_S - value_b_S if self.paired and len(value_a_S) > 1 else None


def judged(run: Mapping) -> Score:
    """What runs are compared by: the first of their scores."""
    return scores_of(run)[0]


def claims(groups: Mapping[str, Sequence[dict]],
           named: Iterable[tuple[str, str]] | None = None) -> tuple[list[dict], Sequence[Column]]:
    """A table of claims "the first is better than the second", as an experiment's `table` gives it.

    groups: runs by name. named: the claims that the experiment made beforehand, pairs of names; those of groups that
    are not there are left out. Below them the best group is held against each other one that was judged alike.
    """
    there = [(a, b) for a, b in dict.fromkeys(named or ()) if a in groups and b in groups]
    pairs = {names: match(*(groups[name] for name in names)) for names in there}
    rows = [{"better": a, "worse": b, "chosen": "beforehand", **told(pair), **tested(pair)}
            for (a, b), pair in pairs.items() if pair]
    said = [of_named(sum("p" in row or "both_p" in row for row in rows))] if rows else []
    if apart := [f"{a} and {b}" for (a, b), pair in pairs.items() if pair is None]:
        said.append(f"Not compared, as they were not judged on the same rows by the same score: {', '.join(apart)}.")
    counts = []
    for family in families(groups):
        found = {names: pair for names, pair in against_best(groups, family).items() if names not in pairs}
        p, count = corrected(groups, family)
        rows += [{"better": a, "worse": b, "chosen": "as the best", **told(pair)}
                 | ({"corrected_p": p[frozenset((a, b))]} if frozenset((a, b)) in p else {})
                 for (a, b), pair in found.items()]
        counts += [count] if found else []
    said += [of_picked(counts)] if counts else []
    made = columns(judged(next(iter(groups.values()))[0]), " ".join(said))
    return rows, [column for column in made if any(column.name in row for row in rows)]


def columns(score: Score, said: str) -> list[Column]:
    """The columns of a table of claims about a score; said: below it."""
    unit = f" ({score.unit.split()[0]})" if score.unit else ""
    return [Column("better", "better"), Column("worse", "than"), Column("chosen", "chosen", note=said),
            Column("seeds", "seeds"), Column("difference", f"difference{unit}", "+.4f"),
            Column("over_seeds", "over paired seeds", "+.4f"), Column("p", "its p, one-sided (Student)", ".2g"),
            Column("both", "over seeds and rows", "+.4f"), Column("both_p", "its p", ".2g"),
            Column("over_rows", "over rows alone", "+.4f"), Column("corrected_p", "p for a picked best (Holm)", ".2g")]


def of_named(tests: int) -> str:
    return "Beforehand: what the experiment itself names." + (
        f" Their {tests} p are each its own: were no claim true, some p would be below 0.05 in up to "
        f"{min(1, 0.05 * tests):.0%} of such tables all the same." if tests > 1 else "")


def of_picked(counts: Sequence[int]) -> str:
    """counts: how many pairs can be tested of each family, judged alike, of which there is a best."""
    pairs = " and ".join(str(count) for count in dict.fromkeys(counts) if count > 1)
    return ("As the best: picked on the same runs, which makes its lead look larger than it is"
            + (f"; p is two-sided, and Holm's over all {pairs} pairs that could have been picked"
               f"{', judged alike' if pairs.count(' ') else ''}." if pairs else
               "; p is two-sided." if any(counts) else "; no test without two seeds."))


def told(pair: Pair) -> dict:
    """The cells of any claim: its difference, and of how many seeds it is."""
    one, other = pair.seeds
    seeds = f"{one} paired" if pair.paired and one > 1 else "1 seed" if pair.paired else f"{one} and {other}"
    testable = pair.differences() is not None or min(pair.seeds) >= FEWEST
    return {"seeds": seeds if testable else f"{seeds}: no test", "difference": pair.mean()}


def tested(pair: Pair) -> dict:
    """The cells of a claim that was named beforehand, as far as its seeds carry them."""
    row, difference_S, better = {}, pair.differences(), pair.score.better
    if difference_S is not None:
        p = float(student(difference_S))
        row = {"over_seeds": estimate(difference_S), "p": p / 2 if better * difference_S.mean() > 0 else 1 - p / 2}
    if min(pair.seeds) >= FEWEST or pair.seeds == (1, 1):
        mean, low, high, p = multi_bootstrap(pair.a_SxNxC, pair.b_SxNxC, pair.score, paired=pair.paired)
        alone = pair.seeds == (1, 1)
        row |= {"over_rows": OverRows(mean, low, high)} if alone else {
            "both": OverBoth(mean, low, high), "both_p": p}
    return row


def families(groups: Mapping[str, Sequence[dict]]) -> list[list[str]]:
    """The groups that were judged alike, those with their columns at hand alone."""
    found: list[list[str]] = []
    for name, runs in groups.items():
        if match(runs, runs):
            family = next((names for names in found if match(groups[names[0]], runs)), [])
            found += [] if family else [family]
            family.append(name)
    return found


def against_best(groups: Mapping[str, Sequence[dict]], family: Sequence[str]) -> dict[tuple[str, str], Pair]:
    """The best group of a family beside each other one, from the next best to the worst."""
    score = judged(groups[family[0]][0])
    best, *others = sorted(family, key=lambda name: -score.better * float(np.mean(
        [run["evaluation"][score.name] for run in groups[name]])))
    return {(best, name): match(groups[best], groups[name]) for name in others}


def corrected(groups: Mapping[str, Sequence[dict]], family: Sequence[str]) -> tuple[dict[frozenset, float], int]:
    """Holm's p of every pair of a family that can be tested, two-sided, and how many those are."""
    found = {frozenset(names): match(*(groups[name] for name in names)).differences()
             for names in itertools.combinations(family, 2)}
    p = {names: float(student(difference_S)) for names, difference_S in found.items() if difference_S is not None}
    return dict(zip(p, holm(np.array(list(p.values()))).tolist(), strict=True)), len(p)


def student(difference_xS: np.ndarray) -> np.ndarray:
    """The two-sided p of Student's test that paired seeds do not differ; 1 where they are too much alike for a test."""
    seeds = difference_xS.shape[-1]
    error_x = difference_xS.std(-1, ddof=1) / np.sqrt(seeds)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_x = difference_xS.mean(-1) / error_x
    return np.where(np.isfinite(t_x), 2 * special.stdtr(seeds - 1, -np.abs(t_x)), 1.0)


def holm(p_xP: np.ndarray) -> np.ndarray:
    """The p of P tests, such that where none is true any at all is below 0.05 in at most 5% of cases (Holm 1979).

    The smallest times P, the next times P - 1, and so on, none below the one before it.
    """
    order_xP = np.argsort(p_xP, axis=-1)
    count = p_xP.shape[-1]
    times_xP = np.take_along_axis(p_xP, order_xP, -1) * np.arange(count, 0, -1)
    sorted_xP = np.minimum(np.maximum.accumulate(times_xP, axis=-1), 1.0) if count else times_xP
    return np.take_along_axis(sorted_xP, np.argsort(order_xP, axis=-1), -1)


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


def match(a: Sequence[dict], b: Sequence[dict]) -> Pair | None:
    """Two groups of runs side by side in the columns of what they are judged by.

    None where those are missing, or of other rows or masks, or where the groups are judged by different scores. Runs
    are paired where two seeds or more are shared, or where each group has the same one seed.
    """
    score = judged(a[0])
    if any(judged(run).name != score.name or held_out(run) is None or not alike(a[0], run) for run in (*a, *b)):
        return None
    of_a, of_b = ({run["config"]["seed"]: held_out(run) for run in runs} for runs in (a, b))
    shared = sorted(of_a.keys() & of_b.keys())
    paired = len(shared) > 1 or of_a.keys() == of_b.keys()
    return Pair(score, paired, *(np.array([of[seed] for seed in (shared if paired else of)]) for of in (of_a, of_b)))


def held_out(run: Mapping) -> np.ndarray | None:
    """The columns, NxC in float64, of the score that a run is judged by; None where they are missing."""
    kept, names = run["held_out"], judged(run).columns
    if kept is None or not kept.keys() >= set(names):
        return None
    return np.stack([np.asarray(kept[name], np.float64) for name in names], axis=-1)
