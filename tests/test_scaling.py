"""Scaling laws: fitted to made-up losses of known exponents, they come back, with intervals that cover them."""

import collections
import operator

import numpy as np
import pytest
from scipy import stats

from experiments import scaling
from mlm.report import scaling_law

TRUE = scaling_law.ScalingLaw(np.log(60.0), 0.4, np.log(900.0), 0.5, 0.0, np.log(9.0), 0.9)
FLOOR = 2.0


def make_cells(law=TRUE, noise=0.0, seeds=2, seed=0, floor=FLOOR):
    rng = np.random.default_rng(seed)
    size_P, token_P = (x.ravel() for x in np.meshgrid(np.geomspace(2e3, 4e5, 4), np.geomspace(4e5, 6e6, 4)))
    flops_P = np.exp(law.log_k) * size_P**law.p * token_P
    losses = [
        law.predict(size, tokens) * np.exp(noise * rng.normal(size=seeds))
        for size, tokens in zip(size_P, token_P, strict=True)
    ]
    return scaling_law.Cells(size_P, token_P, flops_P, losses, floor)


def test_a_law_comes_back_from_exact_losses_with_the_floor_known_and_fitted():
    for fits_floor in (False, True):
        law = scaling_law.fit_law(make_cells(), fits_floor=fits_floor).law
        assert law[:4] == pytest.approx(TRUE[:4], rel=1e-3) and law[5:] == pytest.approx(TRUE[5:], rel=1e-6)
        assert law.floor == pytest.approx(FLOOR, rel=1e-4)


def test_the_compute_optimal_size_has_the_lowest_loss_of_its_compute():
    size_N = np.geomspace(1e2, 1e7, 20_001)
    for flops in (1e11, 1e13):
        loss_N = [TRUE.predict(size, TRUE.find_tokens(flops, size)) for size in size_N]
        assert TRUE.find_optimal_size(flops) == pytest.approx(size_N[np.argmin(loss_N)], rel=1e-3)
        assert TRUE.predict_frontier(flops) == pytest.approx(min(loss_N), rel=1e-6)
    ends = [np.log(TRUE.predict_frontier(flops)) for flops in (1e12, 1e12 * np.e)]
    assert ends[0] - ends[1] == pytest.approx(TRUE.frontier_exponent, rel=1e-6)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("fits_floor", [False, True], ids=["E known", "E fitted"])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_cover_the_truth_as_often_as_they_say(seeds, fits_floor, monkeypatch):
    """Of 200 simulations, whose share has a standard error of 0.015. The starts are one, the truth: that saves time."""
    monkeypatch.setattr(scaling_law, "STARTS", ((TRUE.alpha, TRUE.beta),))
    functions = {
        **{name: operator.attrgetter(name) for name in ("alpha", "beta", "frontier_exponent", "size_exponent")},
        "size": lambda law: law.find_optimal_size(1e12),
        "loss": lambda law: law.predict_frontier(1e12),
        "floor": operator.attrgetter("floor"),
    }
    if not fits_floor:
        del functions["floor"]
    estimates = collections.defaultdict(list)
    for seed in range(200):
        cells = make_cells(noise=0.02, seeds=seeds, seed=seed)
        fit = scaling_law.fit_law(cells, fits_floor=fits_floor)
        for name, function in functions.items():
            estimates[name].append(fit.estimate(function))
        if not fits_floor and seeds == 2:
            estimates["break"].append(scaling.compare_halves(cells)["break"])
    for name, found in estimates.items():
        truth = 0.0 if name == "break" else functions[name](TRUE._replace(floor=FLOOR))
        covered = np.mean([own.low <= truth <= own.high for own in found])
        assert 0.92 <= covered <= 0.995, (name, covered)


def test_a_law_moves_with_each_cell_by_the_standard_error_of_its_mean():
    cells = make_cells(noise=0.02, seeds=3)
    mean_P, error_P = np.array([(values_S.mean(), stats.sem(values_S)) for values_S in cells.losses]).T
    moved = scaling_law.fit_law(cells, fits_floor=False).moved[5]
    for law, sign in zip(moved, (1, -1), strict=True):
        loss_P = mean_P + sign * error_P * (np.arange(len(mean_P)) == 5)
        alone = cells._replace(losses=list(loss_P[:, None]))
        assert law[:4] == pytest.approx(scaling_law.fit_law(alone, fits_floor=False).law[:4], rel=1e-4)


def test_cells_of_one_seed_have_no_interval():
    cells = make_cells(noise=0.02)
    cells.losses[3] = cells.losses[3][:1]
    assert scaling_law.fit_law(cells, fits_floor=False).estimate(lambda law: law.alpha)[1:] == (None, None)


def test_a_fit_that_has_to_guess_the_floor_is_less_sure():
    cells = make_cells(noise=0.03)
    known, free = (scaling_law.fit_law(cells, fits_floor=fits_floor) for fits_floor in (False, True))
    for name in ("beta", "frontier_exponent"):
        known_one, free_one = (fit.estimate(lambda law, name=name: getattr(law, name)) for fit in (known, free))
        assert free_one.high - free_one.low > 1.2 * (known_one.high - known_one.low)


def test_one_law_is_not_broken_and_a_plateau_at_small_compute_breaks_it():
    one = make_cells(noise=0.02)
    whole = scaling.compare_halves(one)["break"]
    assert abs(whole.mean) < 0.05  # as wide as the noise makes it
    height = np.median([values_S.mean() for values_S in one.losses])
    plateau = one._replace(losses=[height * np.tanh(values_S / height) for values_S in one.losses])
    broken = scaling.compare_halves(plateau)
    assert broken["break"].low > 0.05 and broken["large"].mean > broken["small"].mean
    assert scaling.compare_halves(one._replace(floor=None)) == {}


def test_the_frontier_is_what_nothing_cheaper_is_better_than():
    flops_P, loss_P = np.array([4.0, 1.0, 2.0, 3.0, 3.0]), np.array([1.0, 3.0, 3.5, 2.0, 1.5])
    assert scaling.find_frontier(flops_P, loss_P).tolist() == [1, 4, 0]


def test_laws_cross_where_their_frontiers_do():
    other = TRUE._replace(log_a=np.log(6.0), alpha=0.2, log_b=np.log(90.0), beta=0.35)
    a, b = (scaling_law.LawFit(law, [], np.zeros(0)) for law in (TRUE._replace(floor=0.5), other._replace(floor=0.6)))
    flops = scaling.find_crossing(a, b, 1e6, 1e20).mean
    assert 0.5 + TRUE.predict_frontier(flops) == pytest.approx(0.6 + other.predict_frontier(flops), rel=1e-6)
    assert scaling.find_crossing(a, b, flops * 2, 1e20) is None


def test_a_fit_is_not_caught_where_a_neighboring_law_is_worse():
    """Causal LSTMs (experiments/results/scaling.md): exponents of 0.3 and 1 lead to a frontier of 0.715."""
    size_P, token_P, flops_P, loss_P = np.transpose(
        [
            (54464, 978702, 5.193e11, 0.26383),
            (215424, 391457, 6.767e11, 0.48106),
            (13920, 6115476, 1.122e12, 0.0449),
            (54464, 2446470, 1.298e12, 0.04531),
            (215424, 978702, 1.692e12, 0.08103),
            (54464, 6115476, 3.246e12, 0.01357),
            (215424, 2446470, 4.229e12, 0.01714),
            (215424, 6115476, 1.057e13, 0.0081),
        ]
    )
    cells = scaling_law.Cells(size_P, token_P, flops_P, [loss_P[i : i + 1] for i in range(8)], FLOOR)
    assert scaling_law.fit_law(cells, fits_floor=False).law.frontier_exponent == pytest.approx(0.618, abs=2e-3)


def test_too_few_cells_have_no_law():
    cells = make_cells()
    few = cells._replace(
        **{name: getattr(cells, name)[:4] for name in ("parameters_P", "tokens_P", "flops_P", "losses")}
    )
    assert scaling_law.fit_law(few, fits_floor=False) is None
