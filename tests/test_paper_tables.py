"""Papers' ablations beside ours: the paper's numbers as they are, ours by seed, and no comparison of what does not."""

import importlib

import numpy as np
import pytest
from test_experiments import NAMES

from mlm.base.estimates import EvaluationMetric, EvaluationScore, Score
from mlm.report import paper_tables, series

LOSS = Score("loss", "held-out loss", ("nats", "predictions"), unit="nats per prediction", better=-1)
TASK = EvaluationMetric("task_a", "accuracy", "0" * 64, "A")
UNDEFINED = -1.0
TABLES = {
    name: experiment.PAPER_TABLES
    for name in NAMES
    if hasattr(experiment := importlib.import_module(f"experiments.{name}"), "PAPER_TABLES")
}
PAPER = paper_tables.PaperTable(
    "a paper",
    ("MNLI", "loss"),
    {"15%": (84.2, 1.5), "40%": (84.5, 1.25), "80%": (80.8, 2.0)},
    {"15%": "0.15", "40%": "0.4"},
)


def make_run(name, seed, loss, score=None, predictions=10.0):
    """A run of four held-out examples with equal losses."""
    weight_N = np.full(4, predictions)
    scores = [] if score is None else [EvaluationScore(TASK, None if score == UNDEFINED else score)]
    return {
        "config": {"seed": seed, "workdir": f"runs/{name}-seed{seed}-012345"},
        "scores": [LOSS._asdict()],
        "evaluation": {"loss": loss, "predictions": float(weight_N.sum())},
        "held_out": {"nats": loss * weight_N, "predictions": weight_N},
        "evaluation_scores": scores,
    }


def build(*runs):
    return paper_tables.build_table([PAPER], series.group_runs(runs))


def test_a_change_has_the_paper_s_scores_with_their_differences_and_ours_by_seed():
    made = build(
        *(make_run("tiny-0.15", seed, loss, score) for seed, loss, score in ((0, 3.0, 0.5), (1, 4.0, 0.6))),
        *(make_run("tiny-0.4", seed, loss, score) for seed, loss, score in ((1, 3.5, 0.9), (0, 2.9, 0.7))),
        make_run("mini-0.15", 0, 2.0),
        make_run("mini-0.4", 0, 2.5),
        make_run("small-0.4", 0, 1.0),
    )
    titles = ", ".join(column.title for column in made.columns)
    assert titles == "paper, change, there, our row, loss (nats), A: accuracy"
    assert [column.format for column in made.columns[4:]] == ["+.3f", "+.3f"]
    tiny, mini, other = made.rows
    assert tiny["change"] == "40% for 15%" and tiny["there"] == "MNLI 84.5 (+0.3), loss 1.25 (-0.25)"
    assert tiny["here"] == "tiny-0.4" and tiny["task_a"] == pytest.approx((0.25, 0.2, 0.3))
    assert tiny["difference"] == pytest.approx((-0.3, -0.5, -0.1))  # the range of two seeds, which are not mixed
    assert mini["here"] == "mini-0.4" and mini["difference"] == (0.5, None, None) and "task_a" not in mini
    assert other["there"] == "MNLI 80.8 (-3.4), loss 2 (+0.5)" and "here" not in other  # of which we have no row


def test_losses_of_other_examples_do_not_compare_but_a_task_does():
    made = build(make_run("a-0.15", 0, 3.0, 0.5, predictions=10.0), make_run("a-0.4", 0, 2.0, 0.25, predictions=20.0))
    assert "difference" not in made.rows[0] and made.rows[0]["task_a"].mean == pytest.approx(-0.25)
    for run in (make_run("a-0.4", 0, 2.0), make_run("a-0.4", 0, 2.0, score=UNDEFINED)):
        made = build(make_run("a-0.15", 0, 3.0, 0.5), run)
        assert "task_a" not in made.rows[0] and made.rows[0]["difference"].mean == -1.0
    made = build(make_run("a-0.15", 0, 3.0, 0.5), make_run("a-0.4", 1, 2.0, 0.5))  # other seeds
    assert made.rows[0].keys() == {"source", "change", "there", "here"}


def test_a_part_of_a_name_is_a_whole_word_and_the_rest_is_equal():
    names = [
        "segment-pairs",
        "segment-pairs-nsp",
        "x-0.4-mask",
        "x-0.15-mask",
        "y-0.15-mask",
        "x-0.40-mask",
        "x-0.150-mask",
    ]
    assert paper_tables.find_pairs(names, "0.4", "0.15") == [("x-0.4-mask", "x-0.15-mask")]
    assert paper_tables.find_pairs(names, "segment-pairs-nsp", "segment-pairs") == [(names[1], names[0])]
    assert paper_tables.find_pairs(names, None, "0.15") == paper_tables.find_pairs(names, "0.4", None) == []


@pytest.mark.parametrize("name", TABLES)
def test_the_papers_rows_are_whole_and_stand_beside_rows_of_ours(name):
    experiment = importlib.import_module(f"experiments.{name}")
    points = [[point.partition("-seed")[0] for point in experiment.sweep(scale)] for scale in experiment.SCALES]
    for one in TABLES[name]:
        assert all(len(scores) == len(one.scores) for scores in one.rows.values()) and one.ours.keys() <= {*one.rows}
        base, *others = one.rows
        for row in one.ours.keys() & {*others}:
            pairs = [paper_tables.find_pairs(names, one.ours[row], one.ours[base]) for names in points]
            assert any(pairs), f"{one.source}: no row of ours is {one.ours[row]} where another is {one.ours[base]}"
