"""How the loss falls with parameters N, tokens D and compute C: laws with a known floor, and with a fitted one.

The law is that of Hoffmann et al. 2022 (arXiv:2203.15556, approach 3), L = E + A N^-alpha + B D^-beta. Elsewhere E is a
guess among the fitted numbers; where the floor is known, L - E is the excess loss and E is fitted for comparison alone.
Compute is C = k N^p D as measured, which is not 6 N D in a small model. The compute-optimal size then is a power of C,
and so is the loss on it, the frontier.

Intervals are of a bootstrap over seeds: each cell, a size and a number of tokens, draws its seeds anew, and its
fit starts at the law of all runs: where another local minimum is about as good, the interval does not reach it. Of S
seeds the draws show (S - 1) / S of the variance, which a factor of S / (S - 1) makes up for. With two seeds intervals
are still too narrow: of made-up losses that obey the law, 16 cells with 2% noise, those of alpha, beta and the
frontier's exponent covered the truth in 93, 90 and 88 of 100, that of the difference of two halves in 80.

Letters in array names: P cells, R resamples.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize

from mlm.base.estimates import Estimate

RESAMPLES, SEED = 100, 0
MIN_LOSS = 1e-4  # nats: an excess loss at or below the floor, by chance, has no logarithm
MIN_CELLS = 5  # one more than a law with a known floor has parameters
STARTS = tuple(itertools.product((0.3, 1.0, 2.0), repeat=2))  # alpha, beta; four times as many found no better fit
MAX_EXPONENT = 5.0
HUBER = 0.1  # logarithm of the loss: from here a cell's residual counts linearly


class Cells(NamedTuple):
    """The runs of one kind of model, by size and number of tokens."""

    parameters_P: np.ndarray
    tokens_P: np.ndarray
    flops_P: np.ndarray
    losses: list[np.ndarray]  # of each cell, by seed; the excess loss where the floor is known
    floor: float | None  # None: not known

    def mean_losses(self) -> np.ndarray:
        """Returns loss_P: the mean over seeds."""
        return np.array([values_S.mean() for values_S in self.losses])


class ScalingLaw(NamedTuple):
    """L = E + A N^-alpha + B D^-beta, and C = k N^p D."""

    log_a: float
    alpha: float
    log_b: float
    beta: float
    floor: float  # E, as it is known or fitted
    log_k: float
    p: float

    @property
    def frontier_exponent(self) -> float:
        """Returns the exponent a of the loss above E on the compute-optimal sizes, K C^-a."""
        return self.alpha * self.beta / max(self.alpha + self.p * self.beta, 1e-12)

    @property
    def size_exponent(self) -> float:
        """Returns the exponent of the compute-optimal size in C."""
        return self.beta / max(self.alpha + self.p * self.beta, 1e-12)

    def find_optimal_size(self, flops: float) -> float:
        """The number of parameters with the lowest loss at a compute."""
        log_ratio = self.log_a - self.log_b + math.log(max(self.alpha, 1e-12) / max(self.p * self.beta, 1e-12))
        log_size = log_ratio / max(self.alpha + self.p * self.beta, 1e-12)
        log_size += self.size_exponent * (math.log(flops) - self.log_k)
        return math.exp(min(max(log_size, -50.0), 200.0))

    def find_tokens(self, flops: float, parameters: float) -> float:
        """The number of tokens that a model of a size reads for a compute."""
        return math.exp(math.log(flops) - self.log_k - self.p * math.log(parameters))

    def predict(self, parameters: float, tokens: float) -> float:
        """The loss above E."""
        return math.exp(self.log_a) * parameters**-self.alpha + math.exp(self.log_b) * tokens**-self.beta

    def predict_frontier(self, flops: float) -> float:
        """The loss above E of the compute-optimal size."""
        size = self.find_optimal_size(flops)
        return self.predict(size, self.find_tokens(flops, size))


class LawFit(NamedTuple):
    """A law, and those of resampled seeds; none if no cell has two seeds."""

    law: ScalingLaw
    resamples: list[ScalingLaw]

    def estimate(self, function: Callable[[ScalingLaw], float]) -> Estimate:
        """A number that follows from the law, with its 95% interval."""
        return bound_estimate(function(self.law), [function(law) for law in self.resamples])


class BootstrapInterval(Estimate):
    """A number that follows from all runs of a kind of model."""

    __slots__ = ()
    bounds_title, bounds_method = "95% interval over seeds", f"{RESAMPLES} bootstrap resamples within each cell"


def bound_estimate(value: float, resampled: Sequence[float]) -> Estimate:
    """A value with the middle 95% of its resamples."""
    if not resampled:
        return Estimate(value, None, None)
    low, high = np.quantile(resampled, (0.025, 0.975))
    return BootstrapInterval(value, float(low), float(high))


def fit_law(cells: Cells, *, fits_floor: bool) -> LawFit | None:
    """The law of some runs; None if there are too few cells, or too few sizes or numbers of tokens.

    fits_floor: whether E is fitted to the loss, as if nobody knew the floor; else the floor is known.
    """
    fewest = min(len(set(x_P.tolist())) for x_P in (cells.parameters_P, cells.tokens_P))
    if len(cells.losses) < MIN_CELLS + fits_floor or fewest < 2 + fits_floor:  # two sizes cannot tell E from A N^-alpha
        return None
    offset = (cells.floor or 0.0) if fits_floor else 0.0
    ratio_P = np.log(cells.flops_P / cells.tokens_P)
    p, log_k = np.polyfit(np.log(cells.parameters_P), ratio_P, 1)

    def fit(loss_P, starts):
        fits = [_fit_once(cells, np.maximum(loss_P, MIN_LOSS) + offset, fits_floor, start) for start in starts]
        best = min(fits, key=lambda result: result.cost)
        floor = math.exp(best.x[4]) if fits_floor else cells.floor or 0.0
        log_a, alpha, log_b, beta = map(float, best.x[:4])
        return ScalingLaw(log_a, alpha, log_b, beta, floor, float(log_k), float(p)), best.x

    loss_P = cells.mean_losses()
    law, solution = fit(loss_P, [_make_start(cells, loss_P + offset, fits_floor, *start) for start in STARTS])
    return LawFit(law, [fit(resampled_P, [solution])[0] for resampled_P in resample_losses(cells)])


def _make_start(cells, loss_P, fits_floor, alpha, beta):
    floor = max(0.9 * float(loss_P.min()), MIN_LOSS) if fits_floor else 0.0
    log_half = math.log(max(float(np.median(loss_P)) - floor, MIN_LOSS) / 2)
    means = (np.log(cells.parameters_P).mean(), np.log(cells.tokens_P).mean())
    start = [log_half + alpha * means[0], alpha, log_half + beta * means[1], beta]
    return np.array([*start, *([math.log(floor)] if fits_floor else [])])


def _fit_once(cells, loss_P, fits_floor, start):
    """Least squares of log loss, with Huber's function."""
    log_n_P, log_d_P, log_loss_P = np.log(cells.parameters_P), np.log(cells.tokens_P), np.log(loss_P)

    def make_terms(x):
        terms = [x[0] - x[1] * log_n_P, x[2] - x[3] * log_d_P, *([np.full_like(log_n_P, x[4])] if fits_floor else [])]
        term_TxP = np.stack(terms)
        total_P = np.logaddexp.reduce(term_TxP, axis=0)
        return total_P, np.exp(term_TxP - total_P)

    def compute_jacobian(x):
        share_TxP = make_terms(x)[1]
        columns = [share_TxP[0], -share_TxP[0] * log_n_P, share_TxP[1], -share_TxP[1] * log_d_P, *share_TxP[2:]]
        return np.stack(columns, axis=1)

    bound = np.array([np.inf, MAX_EXPONENT, np.inf, MAX_EXPONENT, *([np.inf] if fits_floor else [])])
    low = np.array([-np.inf, 0.0, -np.inf, 0.0, *([-np.inf] if fits_floor else [])])
    start = np.clip(start, low + 1e-9, bound - 1e-9)
    return optimize.least_squares(
        lambda x: make_terms(x)[0] - log_loss_P,
        start,
        jac=compute_jacobian,  # pyright: ignore[reportArgumentType]  # SciPy's signature shows its default, a word
        bounds=(low, bound),
        loss="huber",
        f_scale=HUBER,
        x_scale="jac",
        max_nfev=200,
    )


def resample_losses(cells: Cells) -> list[np.ndarray]:
    """loss_P of each resample: the means of as many seeds, drawn with replacement; none if no cell has two seeds."""
    if max(map(len, cells.losses)) < 2:
        return []
    rng, mean_P = np.random.default_rng(SEED), cells.mean_losses()
    resampled = []
    for _ in range(RESAMPLES):
        drawn_P = np.array([rng.choice(values_S, len(values_S)).mean() for values_S in cells.losses])
        factor_P = np.array([math.sqrt(len(values_S) / max(len(values_S) - 1, 1)) for values_S in cells.losses])
        resampled.append(mean_P + factor_P * (drawn_P - mean_P))
    return resampled


def find_frontier(flops_P: np.ndarray, loss_P: np.ndarray) -> np.ndarray:
    """The cells, by compute, that no cell with as little compute is better than."""
    order = np.lexsort((loss_P, flops_P))
    best_P = np.minimum.accumulate(loss_P[order])
    return order[(loss_P[order] <= best_P) & np.append(True, np.diff(best_P) < 0)]


class Break(NamedTuple):
    """The frontier's exponent by the cells of small and of large compute, and the second less the first."""

    small: Estimate
    large: Estimate
    difference: Estimate


def compare_halves(cells: Cells) -> Break | None:
    """Whether one law holds for all compute: the laws of the half of the cells with less compute, and of the other.

    The exponents of the measured frontier would differ even under one law, since sizes are few and the cells of most
    compute are not compute-optimal. None where the floor is not known, or where a half has too few cells for a law.
    """
    if cells.floor is None:
        return None
    order, half = np.argsort(cells.flops_P), len(cells.losses) // 2
    fits = [fit_law(select_cells(cells, part), fits_floor=False) for part in (order[:half], order[-half:])]
    small, large = fits
    if small is None or large is None:
        return None
    pairs = zip(small.resamples, large.resamples[::-1], strict=False)  # resampled with one seed: the order undoes it
    return Break(
        small.estimate(lambda law: law.frontier_exponent),
        large.estimate(lambda law: law.frontier_exponent),
        bound_estimate(
            large.law.frontier_exponent - small.law.frontier_exponent,
            [upper.frontier_exponent - lower.frontier_exponent for lower, upper in pairs],
        ),
    )


def select_cells(cells: Cells, selected: np.ndarray) -> Cells:
    """The cells of these numbers."""
    return Cells(
        cells.parameters_P[selected],
        cells.tokens_P[selected],
        cells.flops_P[selected],
        [cells.losses[cell] for cell in selected],
        cells.floor,
    )


def find_crossing(a: LawFit, b: LawFit, low: float, high: float) -> Estimate | None:
    """The compute between low and high at which both frontiers have the same loss; None if there is none.

    The interval is of the resamples that cross there, too; without bounds if that is less than 95% of them.
    """

    def solve(first: ScalingLaw, second: ScalingLaw) -> float | None:
        def compute_difference(log_c):
            flops = math.exp(log_c)
            return first.floor + first.predict_frontier(flops) - second.floor - second.predict_frontier(flops)

        ends = math.log(low), math.log(high)
        if compute_difference(ends[0]) * compute_difference(ends[1]) >= 0:
            return None
        return math.exp(float(np.asarray(optimize.brentq(compute_difference, *ends))))

    crossing = solve(a.law, b.law)
    if crossing is None:
        return None
    pairs = zip(a.resamples, b.resamples[::-1], strict=False)  # resampled with one seed: the order undoes it
    resampled = [value for first, second in pairs if (value := solve(first, second)) is not None]
    return bound_estimate(crossing, resampled if len(resampled) >= 0.95 * RESAMPLES else [])
