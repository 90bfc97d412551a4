"""Claims that A is better than B: intervals hold what they say, pairing helps, sides are not mixed."""
import numpy as np
import pytest
from scipy import stats

from mlm.report import compare


def drawn(rng, shift=0.0, seeds=20, rows=150, shared=0.2):
    """nats_a_SxN, nats_b_SxN, predictions_N: losses that vary by seed (partly shared), by row and by chance."""
    predictions_N = rng.integers(0, 20, rows).astype(float)
    shared_Sx1, row_N = rng.normal(0, shared, (seeds, 1)), rng.normal(3, 0.5, rows)

    def group():
        own_Sx1 = rng.normal(0, 0.2, (seeds, 1))
        return (row_N + shared_Sx1 + own_Sx1 + rng.normal(0, 0.3, (seeds, rows))) * predictions_N

    return group() + shift * predictions_N, group(), predictions_N


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_covers_the_true_difference_nineteen_times_in_twenty(paired):
    rng, covered, sets = np.random.default_rng(0), 0, 200
    for _ in range(sets):
        arrays = drawn(rng, -0.1, shared=0.2 if paired else 0.0)
        found = compare.multi_bootstrap(*arrays, paired=paired, resamples=400)
        covered += found.low <= -0.1 <= found.high
    assert 0.9 < covered / sets < 0.985


def test_pairing_takes_out_what_seeds_share_and_no_pairing_does_not():
    rng = np.random.default_rng(1)
    predictions_N = np.full(200, 10.0)
    seed_Sx1 = rng.normal(0, 1, (8, 1))
    a_SxN = (3 + seed_Sx1 + rng.normal(0, 0.1, (8, 200))) * predictions_N
    b_SxN = (3.05 + seed_Sx1 + rng.normal(0, 0.1, (8, 200))) * predictions_N
    both = [compare.multi_bootstrap(a_SxN, b_SxN, predictions_N, paired=paired) for paired in (True, False)]
    assert both[0].mean == pytest.approx(both[1].mean) == pytest.approx(-0.05, abs=0.02)
    assert both[0].high < 0 and both[0].p < 0.001
    assert both[1].low < -0.5 and both[1].high > 0.5 and both[1].p > 0.2


def test_rows_weigh_by_their_predictions_and_the_sides_are_not_mixed():
    rng = np.random.default_rng(2)
    a_SxN, b_SxN, predictions_N = drawn(rng, -1.0)
    found = compare.multi_bootstrap(a_SxN, b_SxN, predictions_N, paired=True, resamples=500)
    losses = [nats_SxN.sum(1) / predictions_N.sum() for nats_SxN in (a_SxN, b_SxN)]
    assert found.mean == pytest.approx(np.mean(losses[0]) - np.mean(losses[1]))
    assert found.low < found.mean < found.high < 0 and found.p == 1 / 500
    back = compare.multi_bootstrap(b_SxN, a_SxN, predictions_N, paired=True, resamples=500)
    assert back.p == 1 and back.mean == pytest.approx(-found.mean)
    with pytest.raises(ValueError, match="20 of A and 19 of B"):
        compare.multi_bootstrap(a_SxN, b_SxN[1:], predictions_N, paired=True)


def test_resampling_in_parts_changes_nothing_but_the_draws(monkeypatch):
    arrays = drawn(np.random.default_rng(3))
    whole = compare.multi_bootstrap(*arrays, paired=True, resamples=4000)
    monkeypatch.setattr(compare, "CHUNK", 150 * 37)
    parts = compare.multi_bootstrap(*arrays, paired=True, resamples=4000)
    assert parts.mean == whole.mean
    assert parts[1:] == pytest.approx(whole[1:], abs=0.1 * (whole.high - whole.low))


def test_paired_seeds_is_students():
    a_S, b_S = np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.1, 4.9])
    found = compare.paired_seeds(a_S, b_S)
    low, high = stats.t.interval(0.95, 2, (a_S - b_S).mean(), stats.sem(a_S - b_S))
    assert found[:3] == pytest.approx(((a_S - b_S).mean(), low, high))
    assert found.p == pytest.approx(stats.t.cdf((a_S - b_S).mean() / stats.sem(a_S - b_S), 2))


def run(root, name, seed, nats_N=None, predictions_N=None):
    (root / f"{name}{seed}").mkdir(exist_ok=True)
    if nats_N is not None:
        np.savez(root / f"{name}{seed}" / "held_out.npz", nats_N=nats_N, predictions_N=predictions_N)
    loss = None if nats_N is None else nats_N.sum() / predictions_N.sum()
    return {"config": {"seed": seed, "workdir": f"elsewhere/{name}{seed}"}, "evaluation": {"loss": loss}}


def test_runs_are_paired_by_their_seed_not_by_their_order(tmp_path):
    a_SxN, b_SxN, predictions_N = drawn(np.random.default_rng(4), -0.2, seeds=3)
    a = [run(tmp_path, "a", seed, a_SxN[seed], predictions_N) for seed in (2, 0, 1)]
    b = [run(tmp_path, "b", seed, b_SxN[seed], predictions_N) for seed in (0, 1, 2)]
    found = compare.compare(tmp_path, a, b)
    losses = [nats_SxN.sum(1) / predictions_N.sum() for nats_SxN in (a_SxN, b_SxN)]
    assert found.paired and found.seeds == (3, 3)
    assert found.over_seeds == pytest.approx(compare.paired_seeds(*losses))
    one_shared = compare.compare(tmp_path, a[:2], [b[0], run(tmp_path, "b", 7, b_SxN[1], predictions_N)])
    assert not one_shared.paired and one_shared.seeds == (2, 2) and one_shared.over_seeds is None
    alone = compare.compare(tmp_path, a[1:2], b[:1])
    assert alone.paired and alone.seeds == (1, 1) and alone.over_seeds is None


def test_claims_leave_out_what_cannot_be_compared(tmp_path):
    a_SxN, b_SxN, predictions_N = drawn(np.random.default_rng(5), -0.2, seeds=2)
    groups = {"a": [run(tmp_path, "a", seed, a_SxN[seed], predictions_N) for seed in (0, 1)],
              "b": [run(tmp_path, "b", seed, b_SxN[seed], predictions_N) for seed in (0, 1)],
              "c": [run(tmp_path, "c", 5, b_SxN[0] + 9, predictions_N)],
              "masks": [run(tmp_path, "masks", 0, b_SxN[0], predictions_N + 1)],
              "absent": [run(tmp_path, "absent", 0)]}
    groups["absent"][0]["evaluation"]["loss"] = 9.0
    rows, _ = compare.claims(tmp_path, groups)
    assert [(row["better"], row["worse"], row["seeds"]) for row in rows] == [
        ("a", "b", "2 paired"), ("a", "c", "2 and 1")]
    rows, _ = compare.claims(tmp_path, groups, [("b", "a"), ("b", "unknown"), ("b", "masks"), ("absent", "a")])
    assert [(row["better"], row["worse"]) for row in rows] == [("b", "a")] and rows[0]["difference"] > 0
