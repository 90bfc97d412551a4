"""Claims of a sweep: chance finds a winner that the same data picked as rarely as stated; few seeds say little."""

import numpy as np
import pytest
from scipy import stats
from test_compare import LOSS, run

from mlm.report import compare, table


def runs(name, values, predictions=10.0, score=LOSS):
    """A run a value, with seeds from 0, whose two held-out rows have that loss."""
    return [
        run(name, seed, np.array([[value - 1, 1.0], [value + 1, 1.0]]) * predictions, score)
        for seed, value in enumerate(values)
    ]


def groups(loss_GxS):
    return {f"g{place}": runs(f"g{place}", values) for place, values in enumerate(loss_GxS)}


def build_claims_table(groups, planned=None):
    return compare.build_claims_table(groups, compare.rank_families(groups), planned)


def test_of_equal_groups_some_claim_is_made_in_one_table_of_twenty_at_most():
    """Six groups of three seeds that share what a seed does to all, and differ by chance alone."""
    rng, tables = np.random.default_rng(0), 200
    loss_TxGxS = 3 + rng.normal(0, 0.3, (tables, 1, 3)) + rng.normal(0, 0.1, (tables, 6, 3))
    claimed = extreme = 0
    for loss_GxS in loss_TxGxS:
        rows, _ = build_claims_table(groups(loss_GxS))
        assert len(rows) == 5
        claimed += any(row["corrected_p"] < 0.05 for row in rows)
        best, worst = loss_GxS[np.argmin(loss_GxS.mean(1))], loss_GxS[np.argmax(loss_GxS.mean(1))]
        extreme += stats.ttest_rel(best, worst, alternative="less").pvalue < 0.05
    assert claimed / tables < stats.binom.ppf(0.999, tables, 0.05) / tables
    assert extreme / tables > 0.2  # what was said without a correction


def test_the_correction_holds_for_many_groups_and_seeds_at_once():
    rng, tables = np.random.default_rng(1), 4000
    for count, seeds in ((2, 3), (6, 3), (14, 3), (6, 10)):
        loss_TxGxS = rng.normal(size=(tables, count, seeds))
        first, second = np.triu_indices(count, 1)
        p_TxP = compare.student_p(loss_TxGxS[:, first] - loss_TxGxS[:, second])
        wrong = (compare.holm_p(p_TxP) < 0.05).any(1).mean()
        assert wrong < stats.binom.ppf(0.9999, tables, 0.05) / tables, (count, seeds)
        if count > 2:
            assert (p_TxP < 0.05).any(1).mean() > 0.25


def test_equal_differences_tell_nothing_and_p_is_corrected_by_holm():
    assert compare.student_p(np.zeros(3)) == 1 and compare.student_p(np.ones(3)) == 1
    assert compare.holm_p(np.array([0.03, 0.01, 0.04, 0.5])) == pytest.approx([0.09, 0.04, 0.09, 0.5])
    assert compare.holm_p(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]


def test_a_claim_that_was_named_is_tested_alone_and_a_picked_one_against_all_pairs():
    loss_GxS = [[3.0, 3.1, 3.25], [3.3, 3.5, 3.61], [3.2, 3.4, 3.33], [3.9, 3.7, 3.8]]
    rows, columns = build_claims_table(groups(loss_GxS), [("g1", "g0"), ("g1", "g3"), ("g1", "unknown")])
    assert [(row["better"], row["worse"], row["selection"]) for row in rows] == [
        ("g1", "g0", "planned"),
        ("g1", "g3", "planned"),
        ("g0", "g2", "best"),
        ("g0", "g1", "best"),
        ("g0", "g3", "best"),
    ]
    for row, (a, b) in zip(rows[:2], ((1, 0), (1, 3)), strict=True):
        test = stats.ttest_rel(loss_GxS[a], loss_GxS[b], alternative="less")
        both = stats.ttest_rel(loss_GxS[a], loss_GxS[b]).confidence_interval(0.95)
        assert row["p"] == pytest.approx(test.pvalue)
        assert row["over_seeds"][1:] == pytest.approx(both)
    pairs = [(a, b) for a in range(4) for b in range(a)]
    alone = {pair: stats.ttest_rel(loss_GxS[pair[0]], loss_GxS[pair[1]]).pvalue for pair in pairs}
    least = min(alone, key=alone.get)
    by_names = {tuple(sorted((row["better"], row["worse"]))): row for row in rows[2:]}
    assert by_names["g0", "g1"]["corrected_p"] == pytest.approx(6 * alone[1, 0]) and least == (1, 0)
    assert not any({"p", "over_seeds", "over_seeds_and_examples", "over_examples"} & row.keys() for row in rows[2:])
    said = " ".join(table.collect_notes(rows, columns))
    assert "without a correction" in said and "selected on the same runs" in said and "for all pairs" in said


def test_a_verdict_stands_first_and_follows_from_the_corrected_p():
    """Whether or not the experiment named the pair; one seed has no test."""
    rng, verdicts = np.random.default_rng(3), set()
    for seeds in (1, *[3] * 20):
        loss_GxS = 3 + rng.normal(0, 0.1, (4, 1)) + rng.normal(0, 0.03, (4, seeds))
        rows, columns = build_claims_table(groups(loss_GxS), [("g1", "g0")])
        assert columns[0].name == "verdict"
        for row in rows:
            is_sure = row.get("corrected_p", 1) < 0.05
            assert row["verdict"] == (("yes" if row["difference"] < 0 else "no") if is_sure else "undecided")
            verdicts.add((row["selection"], row["verdict"]))
    assert len(verdicts) == 5 and ("best", "no") not in verdicts


@pytest.mark.parametrize(
    ("seeds", "cells", "said"),
    [
        (1, {"over_examples"}, "1 seed: no test"),
        (2, {"over_seeds", "p"}, "2 paired"),
        (4, {"over_seeds", "p"}, "4 paired"),
        (5, {"over_seeds", "p", "over_seeds_and_examples", "seeds_and_examples_p"}, "5 paired"),
    ],
)
def test_fewer_seeds_say_less(seeds, cells, said):
    losses = [[3 + seed / 10 for seed in range(seeds)], [3.2 + seed / 8 for seed in range(seeds)]]
    (row,), columns = build_claims_table(groups(losses), [("g0", "g1")])
    assert {"over_seeds", "p", "over_seeds_and_examples", "seeds_and_examples_p", "over_examples"} & row.keys() == cells
    assert row["seeds"] == said and row["difference"] < 0
    text = table.to_markdown([row], columns)
    if seeds == 1:
        assert "over examples only" in text and "no test" in text and " p" not in "".join(c.title for c in columns)
    if seeds == 2:
        assert "±" not in text and "(-0.2250 to -0.2000)" in text
    (picked,), _ = build_claims_table(groups(losses))
    assert ("corrected_p" in picked) == (seeds > 1) and picked["seeds"] == said


def test_seeds_that_differ_are_no_pairs_and_from_five_on_are_resampled():
    alone = {"a": runs("a", [3.0, 3.1]), "b": runs("b", [3.0, 3.1, 3.3])[2:]}
    (row,), _ = build_claims_table(alone, [("a", "b")])
    assert row["seeds"] == "2 and 1: no test"
    assert not {"p", "over_seeds_and_examples", "over_examples", "over_seeds"} & row.keys()
    values = np.linspace(3, 3.4, 10)
    many = {"a": runs("a", values)[:5], "b": runs("b", values)[5:]}
    (row,), _ = build_claims_table(many, [("a", "b")])
    assert row["seeds"] == "5 and 5" and row["over_seeds_and_examples"].high < 0 and row["seeds_and_examples_p"] < 0.01
    assert "p" not in row
    one_sided = [row | {"seeds_and_examples_p": p} for p in (0.02, 0.03, 0.97)]
    verdicts = [compare.judge_claim(each, LOSS, {})["verdict"] for each in one_sided]
    assert verdicts == ["yes", "undecided", "undecided"]  # of two sides


def test_where_higher_is_better_the_claim_is_of_the_higher():
    losses = [[3.0, 3.1, 3.2], [3.3, 3.45, 3.5]]
    for better, best in ((-1, "g0"), (1, "g1")):
        score = LOSS._replace(better=better)
        both = {f"g{place}": runs(f"g{place}", values, score=score) for place, values in enumerate(losses)}
        (row,), _ = build_claims_table(both)
        assert row["better"] == best and row["corrected_p"] < 0.05
        row = build_claims_table(both, [("g0", "g1")])[0][0]
        assert (row["p"] < 0.05) == (best == "g0") and row["p"] != 0.5
