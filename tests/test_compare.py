"""Claims that A is better than B: intervals hold what they say, pairing helps, sides are not mixed."""
import numpy as np
import pytest
from scipy import stats

from mlm.base.estimates import Score
from mlm.report import compare

LOSS = Score("loss", "held-out loss", ("nats", "predictions"), unit="nats per prediction", better=-1)


def drawn(rng, shift=0.0, seeds=20, rows=150, shared=0.2):
    """a_SxNxC, b_SxNxC: nats that vary by seed (partly shared), by row and by chance, and predictions of each row."""
    predictions_N = rng.integers(0, 20, rows).astype(float)
    shared_Sx1, row_N = rng.normal(0, shared, (seeds, 1)), rng.normal(3, 0.5, rows)

    def group():
        own_Sx1 = rng.normal(0, 0.2, (seeds, 1))
        return (row_N + shared_Sx1 + own_Sx1 + rng.normal(0, 0.3, (seeds, rows))) * predictions_N

    return stacked(group() + shift * predictions_N, predictions_N), stacked(group(), predictions_N)


def stacked(nats_SxN, predictions_N):
    return np.stack([nats_SxN, np.broadcast_to(predictions_N, nats_SxN.shape)], axis=-1)


def means(x_SxNxC):
    return x_SxNxC[:, :, 0].sum(1) / x_SxNxC[:, :, 1].sum(1)


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_covers_the_true_difference_nineteen_times_in_twenty(paired):
    rng, covered, sets = np.random.default_rng(0), 0, 200
    for _ in range(sets):
        arrays = drawn(rng, -0.1, shared=0.2 if paired else 0.0)
        found = compare.multi_bootstrap(*arrays, LOSS, paired=paired, resamples=400)
        covered += found.low <= -0.1 <= found.high
    assert 0.9 < covered / sets < 0.985


def test_pairing_takes_out_what_seeds_share_and_no_pairing_does_not():
    rng = np.random.default_rng(1)
    predictions_N = np.full(200, 10.0)
    seed_Sx1 = rng.normal(0, 1, (8, 1))
    a, b = (stacked((mean + seed_Sx1 + rng.normal(0, 0.1, (8, 200))) * predictions_N, predictions_N)
            for mean in (3, 3.05))
    both = [compare.multi_bootstrap(a, b, LOSS, paired=paired) for paired in (True, False)]
    assert both[0].mean == pytest.approx(both[1].mean) == pytest.approx(-0.05, abs=0.02)
    assert both[0].high < 0 and both[0].p < 0.001
    assert both[1].low < -0.5 and both[1].high > 0.5 and both[1].p > 0.2


def test_rows_weigh_by_their_predictions_and_the_sides_are_not_mixed():
    a, b = drawn(np.random.default_rng(2), -1.0)
    found = compare.multi_bootstrap(a, b, LOSS, paired=True, resamples=500)
    assert found.mean == pytest.approx(means(a).mean() - means(b).mean())
    assert found.low < found.mean < found.high < 0 and found.p == 1 / 500
    back = compare.multi_bootstrap(b, a, LOSS, paired=True, resamples=500)
    assert back.p == 1 and back.mean == pytest.approx(-found.mean)
    with pytest.raises(ValueError, match="20 of A and 19 of B"):
        compare.multi_bootstrap(a, b[1:], LOSS, paired=True)


def test_where_higher_is_better_the_claim_is_of_the_higher():
    a, b = drawn(np.random.default_rng(2), -0.05, seeds=4)
    higher = LOSS._replace(better=1)
    as_loss, as_score = (compare.multi_bootstrap(a, b, score, paired=True) for score in (LOSS, higher))
    assert as_score[:3] == as_loss[:3] and as_score.p == pytest.approx(1 - as_loss.p) and as_loss.p != as_score.p
    students = [compare.paired_seeds(means(a), means(b), better).p for better in (-1, 1)]
    assert sum(students) == pytest.approx(1) and students[0] != students[1]
    groups = {name: [run(name, 0, found[0])] for name, found in (("low", a - 1.0 * (np.arange(2) == 0)), ("high", b))}
    for better, best in ((-1, "low"), (1, "high")):
        for runs in groups.values():
            runs[0]["scores"][0]["better"] = better
        (row,), _ = compare.claims(groups)
        assert row["better"] == best and row["p"] < 0.05


def test_a_resample_is_worth_what_the_scores_function_says_of_its_sums():
    a, b = drawn(np.random.default_rng(6), -0.2, seeds=1, rows=40)
    found = compare.multi_bootstrap(a, b, LOSS._replace(of="exp_mean"), paired=True)
    rng = np.random.default_rng(7)
    place_RxN = rng.integers(40, size=(20_000, 40))
    sums_a_RxC, sums_b_RxC = a[0][place_RxN].sum(1), b[0][place_RxN].sum(1)
    by_hand_R = np.exp(sums_a_RxC[:, 0] / sums_a_RxC[:, 1]) - np.exp(sums_b_RxC[:, 0] / sums_b_RxC[:, 1])
    assert found.mean == pytest.approx(np.exp(means(a)[0]) - np.exp(means(b)[0]))
    assert found[1:3] == pytest.approx(np.quantile(by_hand_R, (0.025, 0.975)), abs=0.1 * (found.high - found.low))


def test_resampling_in_parts_changes_nothing_but_the_draws(monkeypatch):
    arrays = drawn(np.random.default_rng(3))
    whole = compare.multi_bootstrap(*arrays, LOSS, paired=True, resamples=4000)
    monkeypatch.setattr(compare, "CHUNK", 150 * 37)
    parts = compare.multi_bootstrap(*arrays, LOSS, paired=True, resamples=4000)
    assert parts.mean == whole.mean
    assert parts[1:] == pytest.approx(whole[1:], abs=0.1 * (whole.high - whole.low))


def test_paired_seeds_is_students():
    a_S, b_S = np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.1, 4.9])
    found = compare.paired_seeds(a_S, b_S)
    low, high = stats.t.interval(0.95, 2, (a_S - b_S).mean(), stats.sem(a_S - b_S))
    assert found[:3] == pytest.approx(((a_S - b_S).mean(), low, high))
    assert found.p == pytest.approx(stats.t.cdf((a_S - b_S).mean() / stats.sem(a_S - b_S), 2))


def run(name, seed, x_NxC=None, score=LOSS):
    held_out = None if x_NxC is None else dict(zip(score.columns, x_NxC.T, strict=True))
    value = 9.0 if x_NxC is None else x_NxC[:, 0].sum() / x_NxC[:, 1].sum()
    return {"config": {"seed": seed, "workdir": f"runs/{name}{seed}"}, "evaluation": {score.name: value},
            "scores": [score._asdict()], "held_out": held_out}


def test_runs_are_paired_by_their_seed_not_by_their_order():
    a_SxNxC, b_SxNxC = drawn(np.random.default_rng(4), -0.2, seeds=3)
    a, b = [run("a", seed, a_SxNxC[seed]) for seed in (2, 0, 1)], [run("b", seed, b_SxNxC[seed]) for seed in (0, 1, 2)]
    found = compare.compare(a, b)
    assert found.paired and found.seeds == (3, 3)
    assert found.over_seeds == pytest.approx(compare.paired_seeds(means(a_SxNxC), means(b_SxNxC)))
    one_shared = compare.compare(a[:2], [b[0], run("b", 7, b_SxNxC[1])])
    assert not one_shared.paired and one_shared.seeds == (2, 2) and one_shared.over_seeds is None
    alone = compare.compare(a[1:2], b[:1])
    assert alone.paired and alone.seeds == (1, 1) and alone.over_seeds is None


def test_claims_leave_out_what_cannot_be_compared():
    a_SxNxC, b_SxNxC = drawn(np.random.default_rng(5), -0.2, seeds=2)
    more_2 = np.arange(2) == 1  # a prediction more in each row
    groups = {"a": [run("a", seed, a_SxNxC[seed]) for seed in (0, 1)],
              "b": [run("b", seed, b_SxNxC[seed]) for seed in (0, 1)],
              "c": [run("c", 5, b_SxNxC[0] + 9 * ~more_2)],
              "masks": [run("masks", 0, b_SxNxC[0] + more_2)],
              "score": [run("score", 0, b_SxNxC[0], LOSS._replace(name="other"))],
              "absent": [run("absent", 0)]}
    rows, columns = compare.claims(groups)
    assert [(row["better"], row["worse"], row["seeds"]) for row in rows] == [
        ("a", "b", "2 paired"), ("a", "c", "2 and 1")]
    assert "difference (nats)" in [column.title for column in columns]
    rows, _ = compare.claims(groups, [("b", "a"), ("b", "unknown"), ("b", "masks"), ("b", "score"), ("absent", "a")])
    assert [(row["better"], row["worse"]) for row in rows] == [("b", "a")] and rows[0]["difference"] > 0
