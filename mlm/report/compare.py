"""Is A better than B? Differences of a held-out score over seeds, and over seeds and held-out examples together.

Claims that the experiment planned are tested one by one. The best group is selected on the same runs, so its tests are
corrected for all pairs that could have been selected.

Letters in array names: S seeds, N held-out examples, C columns of the score, R resamples, G groups.
"""

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import special

from mlm.base.estimates import SCORE_FUNCTIONS, Estimate, ExampleInterval, Score, estimate_mean, read_first_score
from mlm.report.series import are_comparable
from mlm.report.table import Column

RESAMPLES = 10_000
MAX_P = 0.05  # of a difference that counts
MAX_CHUNK_VALUES = 2**24  # resampling weights that are held in memory
MIN_SEEDS = 5  # for the Multi-Bootstrap: its 95% interval excludes a true zero in 21, 15, 8, 6% with 2, 3, 5, 10 seeds
K = TypeVar("K", bound=Hashable)


class SeedExampleInterval(Estimate):
    """A difference between groups of seeds, with seeds and examples resampled."""

    __slots__ = ()
    bounds_title, bounds_method = "95% interval over seeds and examples", f"multi-bootstrap, from {MIN_SEEDS} seeds on"


class GroupPair(NamedTuple):
    """Two groups of runs on the same examples: each example's value in each of the score's columns."""

    score: Score
    paired: bool  # whether both groups have the same seeds, in the same order
    a_SxNxC: np.ndarray
    b_SxNxC: np.ndarray

    @property
    def seeds(self) -> tuple[int, int]:
        """Returns the numbers of seeds of A and of B."""
        return len(self.a_SxNxC), len(self.b_SxNxC)

    def compute_values(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns value_S of A and of B: each seed's score over all examples."""
        return compute_score(self.score, self.a_SxNxC.sum(1)), compute_score(self.score, self.b_SxNxC.sum(1))

    def paired_differences(self) -> np.ndarray | None:
        """A's score minus B's by seed; None without two paired seeds, which a test needs."""
        value_a_S, value_b_S = self.compute_values()
        return value_a_S - value_b_S if self.paired and len(value_a_S) > 1 else None


class Family(NamedTuple):
    """Groups that were evaluated on the same examples."""

    names: list[str]  # the best first
    p_by_pair: Mapping[frozenset[str], float]  # of every pair that can be tested, by Holm, two-sided


def build_claims_table(
    groups: Mapping[str, Sequence[dict]], families: Sequence[Family], planned: Iterable[tuple[str, str]] | None = None
) -> tuple[list[dict], Sequence[Column]]:
    """A table (rows, columns) of claims "the first group is better than the second", of runs by their group's name.

    After the planned claims, the best group is compared with every other one that was evaluated on the same examples.
    families: of `rank_families`; planned: pairs of names; those of missing groups are left out.
    """
    score = read_first_score(next(iter(groups.values()))[0])
    claims = [(a, b) for a, b in dict.fromkeys(planned or ()) if a in groups and b in groups]
    selected = [(best, name) for (best, *others), _ in families for name in others if (best, name) not in claims]
    p_by_pair = {pair: p for family in families for pair, p in family.p_by_pair.items()}
    rows, incomparable = [], []
    for a, b in (*claims, *selected):
        pair, is_planned = match_groups(groups[a], groups[b]), (a, b) in claims
        if pair is None:
            incomparable += [f"{a} and {b}"] if is_planned else []
            continue
        row = {"better": a, "worse": b, "selection": "planned" if is_planned else "best", **difference_cells(pair)}
        row |= test_cells(pair) if is_planned else {}
        rows.append(row | judge_claim(row, score, p_by_pair))
    note = f" Not compared, since their examples or scores differ: {', '.join(incomparable)}." if incomparable else ""
    columns = build_columns(score, note)
    return rows, [column for column in columns if any(column.name in row for row in rows)]


def build_columns(score: Score, note: str) -> list[Column]:
    """The columns of a table of claims about a score; note: at the end of the note on claims."""
    unit = f" ({score.unit.split()[0]})" if score.unit else ""
    verdict = (
        f"Verdict: yes or no where the corrected p is below {MAX_P:g}; if seeds are not paired, where the "
        "Multi-Bootstrap's is, two-sided."
    )
    claim = (
        "Planned: a claim that the experiment makes in advance. Best: selected on the same runs, which exaggerates its "
        f"lead.{note}"
    )
    one_sided = "p, one-sided: of the claim alone, without a correction."
    corrected = (
        "p, corrected: two-sided (Student), by Holm's method for all pairs of groups that have the same examples."
    )
    return [
        Column("verdict", "verdict", note=verdict),
        Column("better", "is this better"),
        Column("worse", "than this?"),
        Column("selection", "claim", note=claim),
        Column("seeds", "seeds"),
        Column("difference", f"difference{unit}", "+.4f"),
        Column("over_seeds", "over paired seeds", "+.4f"),
        Column("p", "p, one-sided (Student)", ".2g", one_sided),
        Column("over_seeds_and_examples", "over seeds and examples", "+.4f"),
        Column("seeds_and_examples_p", "p, one-sided (Multi-Bootstrap)", ".2g", one_sided),
        Column("over_examples", "over examples only", "+.4f"),
        Column("corrected_p", "p, corrected (Holm)", ".2g", corrected),
    ]


def judge_claim(row: Mapping, score: Score, p_by_pair: Mapping[frozenset[str], float]) -> dict:
    """What all pairs say of a claim: the corrected p, if there is one, and the verdict; no: the second is better."""
    p = p_by_pair.get(frozenset((row["better"], row["worse"])))
    cells = {} if p is None else {"corrected_p": p}
    if p is None and "seeds_and_examples_p" in row:
        p = 2 * min(row["seeds_and_examples_p"], 1 - row["seeds_and_examples_p"])  # of one side
    if p is None or p >= MAX_P:
        return cells | {"verdict": "undecided"}
    return cells | {"verdict": "yes" if score.better * row["difference"] > 0 else "no"}


def difference_cells(pair: GroupPair) -> dict:
    """The cells of any claim: its difference and the number of seeds."""
    seeds_a, seeds_b = pair.seeds
    seeds = f"{seeds_a} and {seeds_b}"
    if pair.paired:
        seeds = f"{seeds_a} paired" if seeds_a > 1 else "1 seed"
    is_testable = pair.paired_differences() is not None or min(pair.seeds) >= MIN_SEEDS
    mean_a, mean_b = (value_S.mean() for value_S in pair.compute_values())
    return {"seeds": seeds if is_testable else f"{seeds}: no test", "difference": float(mean_a - mean_b)}


def test_cells(pair: GroupPair) -> dict:
    """The test results of a planned claim; which ones depends on the number of seeds."""
    row, difference_S, better = {}, pair.paired_differences(), pair.score.better
    if difference_S is not None:
        p = float(student_p(difference_S))
        row = {"over_seeds": estimate_mean(difference_S), "p": p / 2 if better * difference_S.mean() > 0 else 1 - p / 2}
    if min(pair.seeds) >= MIN_SEEDS or pair.seeds == (1, 1):
        interval, p = multi_bootstrap(pair.a_SxNxC, pair.b_SxNxC, pair.score, paired=pair.paired)
        if pair.seeds == (1, 1):
            return row | {"over_examples": ExampleInterval(*interval)}
        row |= {"over_seeds_and_examples": interval, "seeds_and_examples_p": p}
    return row


def rank_families(groups: Mapping[str, Sequence[dict]]) -> list[Family]:
    """The groups by the examples that they were evaluated on.

    Those without saved columns are left out, and those that diverged, which old runs say by NaN.
    """

    def rank(name: str) -> float:
        score = read_first_score(groups[name][0])
        return -score.better * float(np.mean([run["evaluation"][score.name] for run in groups[name]]))

    families: list[list[str]] = []
    for name, runs in groups.items():
        if match_groups(runs, runs) and math.isfinite(rank(name)):
            family = next((names for names in families if match_groups(groups[names[0]], runs)), [])
            families += [] if family else [family]
            family.append(name)

    return [Family(sorted(names, key=rank), compute_holm_p(groups, names)) for names in families]


def compute_holm_p(groups: Mapping[str, Sequence[dict]], family: Sequence[str]) -> dict[frozenset[str], float]:
    """Holm's two-sided p of every pair of a family that can be tested."""
    p = {}
    for names in itertools.combinations(family, 2):
        pair = match_groups(*(groups[name] for name in names))
        if pair is not None and (difference_S := pair.paired_differences()) is not None:
            p[frozenset(names)] = float(student_p(difference_S))
    return dict(zip(p, holm_p(np.array([*p.values()])).tolist(), strict=True))


def student_p(difference_xS: np.ndarray) -> np.ndarray:
    """The two-sided p of Student's test on paired seeds; 1 if all differences are equal."""
    num_seeds = difference_xS.shape[-1]
    error_x = difference_xS.std(-1, ddof=1) / np.sqrt(num_seeds)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_x = difference_xS.mean(-1) / error_x
    return np.where(np.isfinite(t_x), 2 * special.stdtr(num_seeds - 1, -np.abs(t_x)), 1.0)


def holm_p(p_xP: np.ndarray) -> np.ndarray:
    """The p-values by Holm's correction (1979): the smallest times P, the next times P - 1, none below the last."""
    order_xP = np.argsort(p_xP, axis=-1)
    count = p_xP.shape[-1]
    times_xP = np.take_along_axis(p_xP, order_xP, -1) * np.arange(count, 0, -1)
    sorted_xP = np.minimum(np.maximum.accumulate(times_xP, axis=-1), 1.0) if count else times_xP
    return np.take_along_axis(sorted_xP, np.argsort(order_xP, axis=-1), -1)


def multi_bootstrap(
    a_SxNxC: np.ndarray, b_SxNxC: np.ndarray, score: Score, *, paired: bool, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[SeedExampleInterval, float]:
    """A's score minus B's, and the one-sided p of "A is better", with seeds and held-out examples resampled.

    This is the Multi-Bootstrap (Sellam et al. 2022, arXiv 2106.16163).

    Each resample draws examples, the same for A and B, and seeds, the same for A and B if `paired`. A group's value is
    the mean over its seeds of the score of the resampled examples. The interval holds the middle 95% of the
    differences; p is the share of resamples in which A is not better, at least 1/resamples. With S seeds the variance
    over seeds is underestimated by the factor (S-1)/S; with one seed it is left out.
    a_SxNxC, b_SxNxC: the value of each example in each of the score's columns; the last column is the same for all.
    paired: whether A and B have the same seeds, in the same order.
    """
    rng, num_examples, differences = np.random.default_rng(seed), a_SxNxC.shape[1], []
    for start in range(0, resamples, size := max(1, MAX_CHUNK_VALUES // num_examples)):
        count = min(size, resamples - start)
        example_RxN, a_RxS = draw_counts(rng, num_examples, count), draw_counts(rng, len(a_SxNxC), count) / len(a_SxNxC)
        b_RxS = a_RxS if paired else draw_counts(rng, len(b_SxNxC), count) / len(b_SxNxC)
        value_a_SxR, value_b_SxR = (compute_score(score, example_RxN @ x_SxNxC) for x_SxNxC in (a_SxNxC, b_SxNxC))
        differences.append((a_RxS * value_a_SxR.T).sum(1) - (b_RxS * value_b_SxR.T).sum(1))
    difference_R = np.concatenate(differences)
    low, high = np.quantile(difference_R, (0.025, 0.975))
    mean = compute_score(score, a_SxNxC.sum(1)).mean() - compute_score(score, b_SxNxC.sum(1)).mean()
    p = max(float((score.better * difference_R <= 0).mean()), 1 / resamples)
    return SeedExampleInterval(float(mean), float(low), float(high)), p


def compute_score(score: Score, sums_xC: np.ndarray) -> np.ndarray:
    """The score of sums over examples; the last axis holds its columns."""
    return SCORE_FUNCTIONS[score.function](*np.moveaxis(sums_xC, -1, 0))


def draw_counts(rng: np.random.Generator, n: int, resamples: int) -> np.ndarray:
    """How often each of n items occurs in n draws with replacement: resamples x n."""
    index_RxN = rng.integers(n, size=(resamples, n)) + n * np.arange(resamples)[:, None]
    return np.bincount(index_RxN.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)


def match_groups(a: Sequence[dict], b: Sequence[dict]) -> GroupPair | None:
    """Two groups of runs with the columns of their primary score.

    None if columns are missing, or if examples, masks or primary scores differ. Runs are paired if the groups share at
    least two seeds, or if each group has the same single seed.
    """
    score = read_first_score(a[0])
    if any(
        read_first_score(run).name != score.name or score_columns(run) is None or not are_comparable(a[0], run)
        for run in (*a, *b)
    ):
        return None
    columns_a, columns_b = ({run["config"]["seed"]: score_columns(run) for run in runs} for runs in (a, b))
    shared = sorted(columns_a.keys() & columns_b.keys())
    paired = len(shared) > 1 or columns_a.keys() == columns_b.keys()
    return GroupPair(
        score,
        paired,
        *(np.array([columns[seed] for seed in (shared if paired else columns)]) for columns in (columns_a, columns_b)),
    )


def score_columns(run: Mapping) -> np.ndarray | None:
    """The columns of a run's primary score, NxC in float64; None if they are missing."""
    held_out, names = run["held_out"], read_first_score(run).columns
    if held_out is None or not held_out.keys() >= set(names):
        return None
    return np.stack([np.asarray(held_out[name], np.float64) for name in names], axis=-1)


class BlockInterval(Estimate):
    """A difference between two rows, with the spread over seeds pooled over all rows."""

    __slots__ = ()
    bounds_title = "95% interval over seeds"
    bounds_method = "seeds as blocks, their spread pooled over rows; only p is corrected for the number of comparisons"


class BlockTest(NamedTuple):
    """The first row's mean minus the second's, and the two-sided p of no difference."""

    difference: Estimate
    p: float


def compare_rows(values: Mapping[K, Mapping[int, float]], pairs: Iterable[tuple[K, K]]) -> dict[tuple[K, K], BlockTest]:
    """The test of each pair of rows with the spread over seeds pooled over all, without a correction for their number.

    With two or three seeds a paired test of two rows hardly knows how much seeds differ. In a randomized block design
    (Box, Hunter & Hunter 2005, section 4.2) all rows say it together: what remains of the values once each row's and
    each seed's mean is taken off. It supposes that seeds spread the rows' values alike; rows that spread more make the
    test of the others stricter, and their own milder. For two rows it is Student's paired test.

    Args:
        values: of each row, by seed; seeds that a row lacks are left out for all.
        pairs: of rows; those with a row that is missing are left out.

    Returns:
        A test for each pair; none at all with less than two seeds or rows, or if nothing spreads.
    """
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in values.values()))) if values else []
    if len(seeds) < 2 or len(values) < 2:
        return {}
    value_GxS = np.array([[by_seed[seed] for seed in seeds] for by_seed in values.values()], np.float64)
    mean_G = value_GxS.mean(1)
    rest_GxS = value_GxS - mean_G[:, None] - value_GxS.mean(0) + value_GxS.mean()
    freedom = (len(values) - 1) * (len(seeds) - 1)
    error = math.sqrt(float((rest_GxS**2).sum()) / freedom * 2 / len(seeds))
    means = dict(zip(values, mean_G.tolist(), strict=True))
    if not error:
        return {}
    half = float(special.stdtrit(freedom, 0.975)) * error
    tests = {}
    for first, second in pairs:
        if first in means and second in means:
            difference = means[first] - means[second]
            p = 2 * float(special.stdtr(freedom, -abs(difference) / error))
            tests[first, second] = BlockTest(BlockInterval(difference, difference - half, difference + half), p)
    return tests


def correct_p(tests: Mapping[K, BlockTest]) -> dict[K, BlockTest]:
    """The tests with Holm's correction of p for their number; the intervals stay those of one difference each."""
    p_P = holm_p(np.array([test.p for test in tests.values()]))
    return {key: test._replace(p=p) for (key, test), p in zip(tests.items(), p_P.tolist(), strict=True)}
