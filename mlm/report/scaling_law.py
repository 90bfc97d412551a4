"""How the loss falls with parameters N, tokens D and compute C: laws with a known floor, and with a fitted one.

The law is that of Hoffmann et al. 2022 (arXiv:2203.15556, approach 3), L = E + A N^-alpha + B D^-beta. Elsewhere E is a
guess among the fitted numbers; where the floor is known, L - E is the excess loss and E is fitted for comparison alone.
Compute is C = k N^p D as measured, which is not 6 N D in a small model. The compute-optimal size then is a power of C,
and so is the loss on it, the frontier.

Intervals are over seeds, by the law of propagation of uncertainty: the mean of each cell, a size and a number of
tokens, moves up and down by its standard error, and the law is fitted again, from the law of all runs on (where another
local minimum is about as good, the interval does not reach it). Half the difference is what the cell adds to the
standard error. The quantile is Student's, with Welch's and Satterthwaite's degrees of freedom, so that cells may differ
in how much their seeds spread. Of losses that obey the law, with 2% noise, the intervals cover the truth in 95 to 98 of
100, of two seeds the most.

Letters in array names: P cells, R fits, K parameters of a law, T its terms.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from mlm.base.estimates import Estimate

MIN_LOSS = 1e-4  # nats: an excess loss at or below the floor, by chance, has no logarithm
MIN_CELLS = 5  # one more than a law with a known floor has parameters
STARTS = tuple(itertools.product((0.3, 1.0, 2.0), repeat=2))  # alpha, beta; four times as many found no better fit
MAX_EXPONENT = 5.0
NUM_STEPS, DAMPING = 100, 1e-4  # of fits that start near their solution
HUBER = 0.1  # logarithm of the loss: from here a cell's residual counts linearly


class Cells(NamedTuple):
    """The runs of one kind of model, by size and number of tokens."""

    parameters_P: np.ndarray
    tokens_P: np.ndarray
    flops_P: np.ndarray
    losses: list[np.ndarray]  # of each cell, by seed; the excess loss where the floor is known
    floor: float | None  # None: not known

    def select(self, part: np.ndarray) -> "Cells":
        """Returns the cells with these indices."""
        losses = [self.losses[cell] for cell in part]
        return Cells(self.parameters_P[part], self.tokens_P[part], self.flops_P[part], losses, self.floor)

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
    """A law, and the two where a cell's mean loss is a standard error higher or lower; none if a cell has one seed."""

    law: ScalingLaw
    moved: list[tuple[ScalingLaw, ScalingLaw]]
    degrees_P: np.ndarray  # degrees of freedom of each cell's standard error

    def estimate(self, function: Callable[[ScalingLaw], float], *, positive: bool = True) -> Estimate:
        """`estimate_number` of this law alone."""
        return estimate_number(function, [self], positive=positive)


class PropagatedInterval(Estimate):
    """A number that follows from all runs of a kind of model."""

    __slots__ = ()
    bounds_title, bounds_method = "95% interval over seeds", "Student's t, by propagation of each cell's standard error"


def estimate_number(function: Callable[..., float], fits: Sequence[LawFit], *, positive: bool = True) -> Estimate:
    """A number of several laws, with its interval if all moved laws have it: in its logarithm if it is positive."""

    def read(*laws):
        value = function(*laws)
        return math.log(max(value, 1e-300)) if positive else value

    laws, changes = [fit.law for fit in fits], []
    for index, fit in enumerate(fits):
        for pair in fit.moved:
            high, low = (read(*laws[:index], law, *laws[index + 1 :]) for law in pair)
            changes.append((high - low) / 2)
    variance_P, value = np.square(changes), function(*laws)
    if not 0 < variance_P.sum() < math.inf:
        return Estimate(value, None, None)
    degrees_P = np.concatenate([fit.degrees_P for fit in fits])
    degrees = variance_P.sum() ** 2 / (variance_P**2 / degrees_P).sum()
    half = float(special.stdtrit(degrees, 0.975)) * math.sqrt(variance_P.sum())
    if positive:
        return PropagatedInterval(value, value * math.exp(-min(half, 600)), value * math.exp(min(half, 600)))
    return PropagatedInterval(value, value - half, value + half)


def fit_law(cells: Cells, *, fits_floor: bool) -> LawFit | None:
    """The law of some runs, None if these are too few; fits_floor: whether E is fitted, as if it were not known."""
    fewest = min(len(set(x_P.tolist())) for x_P in (cells.parameters_P, cells.tokens_P))
    if len(cells.losses) < MIN_CELLS + fits_floor or fewest < 2 + fits_floor:  # two sizes cannot tell E from A N^-alpha
        return None
    offset = (cells.floor or 0.0) if fits_floor else 0.0
    ratio_P = np.log(cells.flops_P / cells.tokens_P)
    p, log_k = np.polyfit(np.log(cells.parameters_P), ratio_P, 1)

    def make_law(x):
        floor = math.exp(x[4]) if fits_floor else cells.floor or 0.0
        log_a, alpha, log_b, beta = map(float, x[:4])
        return ScalingLaw(log_a, alpha, log_b, beta, floor, float(log_k), float(p))

    mean_P = cells.mean_losses() + offset
    loss_P = np.maximum(mean_P, MIN_LOSS + offset)
    fits = [_fit_once(cells, loss_P, fits_floor, _make_start(cells, mean_P, fits_floor, *start)) for start in STARTS]
    solution = min(fits, key=lambda result: result.cost).x
    degrees_P = np.array([len(values_S) - 1 for values_S in cells.losses])
    if not degrees_P.all():
        return LawFit(make_law(solution), [], degrees_P[:0])
    error_P = np.array([values_S.std(ddof=1) / math.sqrt(len(values_S)) for values_S in cells.losses])
    moved_RxP = loss_P + np.concatenate([np.diag(error_P), -np.diag(error_P)])
    laws = [make_law(x) for x in _refit(cells, np.maximum(moved_RxP, MIN_LOSS + offset), fits_floor, solution)]
    return LawFit(make_law(solution), list(zip(laws[: len(error_P)], laws[len(error_P) :], strict=True)), degrees_P)


def _make_start(cells, loss_P, fits_floor, alpha, beta):
    floor = max(0.9 * float(loss_P.min()), MIN_LOSS) if fits_floor else 0.0
    log_half = math.log(max(float(np.median(loss_P)) - floor, MIN_LOSS) / 2)
    means = (np.log(cells.parameters_P).mean(), np.log(cells.tokens_P).mean())
    start = [log_half + alpha * means[0], alpha, log_half + beta * means[1], beta]
    return np.array([*start, *([math.log(floor)] if fits_floor else [])])


def _predict(cells, fits_floor, x_RxK):
    """The logarithm of the loss, RxP, and its derivatives, RxPxK."""
    log_n_P, log_d_P = np.log(cells.parameters_P), np.log(cells.tokens_P)
    x_KxRx1 = np.moveaxis(x_RxK, -1, 0)[..., None]
    terms = [x_KxRx1[0] - x_KxRx1[1] * log_n_P, x_KxRx1[2] - x_KxRx1[3] * log_d_P]
    terms += [x_KxRx1[4] + 0 * log_n_P] if fits_floor else []
    total_RxP = np.logaddexp.reduce(terms)
    share_TxRxP = np.exp(terms - total_RxP)
    columns = [share_TxRxP[0], -share_TxRxP[0] * log_n_P, share_TxRxP[1], -share_TxRxP[1] * log_d_P, *share_TxRxP[2:]]
    return total_RxP, np.stack(columns, axis=-1)


def _find_bounds(fits_floor):
    high = np.array([np.inf, MAX_EXPONENT, np.inf, MAX_EXPONENT, *([np.inf] if fits_floor else [])])
    return np.where(np.isinf(high), -np.inf, 0.0), high


def _fit_once(cells, loss_P, fits_floor, start):
    """Least squares of log loss, with Huber's function."""
    low, high = _find_bounds(fits_floor)
    return optimize.least_squares(
        lambda x: _predict(cells, fits_floor, x)[0] - np.log(loss_P),
        np.clip(start, low + 1e-9, high - 1e-9),
        jac=lambda x: _predict(cells, fits_floor, x)[1],  # pyright: ignore[reportArgumentType]  # SciPy's signature
        bounds=(low, high),
        loss="huber",
        f_scale=HUBER,
        x_scale="jac",
        max_nfev=200,
    )


def _refit(cells, loss_RxP, fits_floor, solution):
    """x_RxK of `_fit_once` for several losses at once, near the solution of others: damped Gauss-Newton steps."""
    x_RxK = np.tile(solution, (len(loss_RxP), 1))
    for _ in range(NUM_STEPS):
        predicted_RxP, jac_RxPxK = _predict(cells, fits_floor, x_RxK)
        residual_RxP = predicted_RxP - np.log(loss_RxP)
        weight_RxP = HUBER / np.maximum(np.abs(residual_RxP), HUBER)
        weighted_RxKxP = np.swapaxes(jac_RxPxK * weight_RxP[..., None], 1, 2)
        curvature_RxKxK = weighted_RxKxP @ jac_RxPxK
        damping_RxKxK = DAMPING * curvature_RxKxK * np.eye(len(solution)) + 1e-12 * np.eye(len(solution))
        step_RxKx1 = np.linalg.solve(curvature_RxKxK + damping_RxKxK, weighted_RxKxP @ residual_RxP[..., None])
        x_RxK = np.clip(x_RxK - step_RxKx1[..., 0], *_find_bounds(fits_floor))
        if np.abs(step_RxKx1).max() < 1e-8:
            break
    return x_RxK
