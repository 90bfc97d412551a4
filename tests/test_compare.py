"""Two groups of runs: intervals hold what they say, pairing helps, sides are not mixed."""

import numpy as np
import pytest

from mlm.base.estimates import Score
from mlm.report import compare

LOSS = Score("loss", "held-out loss", ("nats", "predictions"), unit="nats per prediction", better=-1)


def draw_nats(rng, shift=0.0, seeds=20, rows=150, shared=0.2):
    """a_SxNxC, b_SxNxC: nats that vary by seed (partly shared), by row and by chance, and predictions of each row."""
    predictions_N = rng.integers(0, 20, rows).astype(float)
    shared_Sx1, row_N = rng.normal(0, shared, (seeds, 1)), rng.normal(3, 0.5, rows)

    def group():
        own_Sx1 = rng.normal(0, 0.2, (seeds, 1))
        return (row_N + shared_Sx1 + own_Sx1 + rng.normal(0, 0.3, (seeds, rows))) * predictions_N

    return stack(group() + shift * predictions_N, predictions_N), stack(group(), predictions_N)


def stack(nats_SxN, predictions_N):
    return np.stack([nats_SxN, np.broadcast_to(predictions_N, nats_SxN.shape)], axis=-1)


def means(x_SxNxC):
    return x_SxNxC[:, :, 0].sum(1) / x_SxNxC[:, :, 1].sum(1)


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_covers_the_true_difference_nineteen_times_in_twenty(paired):
    rng, covered, sets = np.random.default_rng(0), 0, 200
    for _ in range(sets):
        arrays = draw_nats(rng, -0.1, shared=0.2 if paired else 0.0)
        found, _ = compare.multi_bootstrap(*arrays, LOSS, paired=paired, resamples=400)
        covered += found.low <= -0.1 <= found.high
    assert 0.9 < covered / sets < 0.985


@pytest.mark.exhaustive
def test_pairing_takes_out_what_seeds_share_and_no_pairing_does_not():
    rng = np.random.default_rng(1)
    predictions_N = np.full(200, 10.0)
    seed_Sx1 = rng.normal(0, 1, (8, 1))
    a, b = (
        stack((mean + seed_Sx1 + rng.normal(0, 0.1, (8, 200))) * predictions_N, predictions_N) for mean in (3, 3.05)
    )
    (paired, p), (alone, p_alone) = (compare.multi_bootstrap(a, b, LOSS, paired=paired) for paired in (True, False))
    assert paired.mean == pytest.approx(alone.mean) == pytest.approx(-0.05, abs=0.02)
    assert paired.high < 0 and p < 0.001
    assert alone.low < -0.5 and alone.high > 0.5 and p_alone > 0.2


def test_rows_weigh_by_their_predictions_and_the_sides_are_not_mixed():
    a, b = draw_nats(np.random.default_rng(2), -1.0)
    found, p = compare.multi_bootstrap(a, b, LOSS, paired=True, resamples=500)
    assert found.mean == pytest.approx(means(a).mean() - means(b).mean())
    assert found.low < found.mean < found.high < 0 and p == 1 / 500
    back, p_back = compare.multi_bootstrap(b, a, LOSS, paired=True, resamples=500)
    assert p_back == 1 and back.mean == pytest.approx(-found.mean)


def test_a_resample_is_worth_what_the_scores_function_says_of_its_sums():
    a, b = draw_nats(np.random.default_rng(6), -0.2, seeds=1, rows=40)
    found, _ = compare.multi_bootstrap(a, b, LOSS._replace(function="exp_mean"), paired=True)
    rng = np.random.default_rng(7)
    place_RxN = rng.integers(40, size=(20_000, 40))
    sums_a_RxC, sums_b_RxC = a[0][place_RxN].sum(1), b[0][place_RxN].sum(1)
    by_hand_R = np.exp(sums_a_RxC[:, 0] / sums_a_RxC[:, 1]) - np.exp(sums_b_RxC[:, 0] / sums_b_RxC[:, 1])
    assert found.mean == pytest.approx(np.exp(means(a)[0]) - np.exp(means(b)[0]))
    assert found[1:3] == pytest.approx(np.quantile(by_hand_R, (0.025, 0.975)), abs=0.1 * (found.high - found.low))


def test_resampling_in_parts_changes_nothing_but_the_draws(monkeypatch):
    arrays = draw_nats(np.random.default_rng(3))
    whole, _ = compare.multi_bootstrap(*arrays, LOSS, paired=True, resamples=4000)
    monkeypatch.setattr(compare, "MAX_CHUNK_VALUES", 150 * 37)
    parts, _ = compare.multi_bootstrap(*arrays, LOSS, paired=True, resamples=4000)
    assert parts.mean == whole.mean
    assert parts[1:] == pytest.approx(whole[1:], abs=0.1 * (whole.high - whole.low))


def run(name, seed, x_NxC=None, score=LOSS):
    held_out = None if x_NxC is None else dict(zip(score.columns, x_NxC.T, strict=True))
    value = 9.0 if x_NxC is None else x_NxC[:, 0].sum() / x_NxC[:, 1].sum()
    return {
        "config": {"seed": seed, "workdir": f"runs/{name}{seed}"},
        "evaluation": {score.name: value},
        "scores": [score._asdict()],
        "held_out": held_out,
    }


def test_runs_are_paired_by_their_seed_not_by_their_order():
    a_SxNxC, b_SxNxC = draw_nats(np.random.default_rng(4), -0.2, seeds=3)
    a, b = [run("a", seed, a_SxNxC[seed]) for seed in (2, 0, 1)], [run("b", seed, b_SxNxC[seed]) for seed in (0, 1, 2)]
    found = compare.match_groups(a, b)
    assert found.paired and found.seeds == (3, 3)
    assert found.paired_differences() == pytest.approx(means(a_SxNxC) - means(b_SxNxC))
    one_shared = compare.match_groups(a[:2], [b[0], run("b", 7, b_SxNxC[1])])
    assert not one_shared.paired and one_shared.seeds == (2, 2) and one_shared.paired_differences() is None
    alone = compare.match_groups(a[1:2], b[:1])
    assert alone.paired and alone.seeds == (1, 1) and alone.paired_differences() is None
