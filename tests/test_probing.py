"""The tables of probing.py and features.py, from what runs gave: by hand."""

import math

import numpy as np
import pytest
from test_downstream_table import answers, tuned
from test_experiments import result

from experiments import probing
from mlm.base.estimates import Score, SeedRange
from mlm.evaluation import evaluation_tasks, finetuned_tasks

F1 = Score("f1", "held-out micro-F1", ("right", "found", "weight", "weight"), "f1", better=1, share=True)
GRAVITY = Score("gravity", "centre of gravity", ("gravity", "weight"))


def make_run(name, seed, score_KxS, gravity_S, *, size="micro", task="tag", depths=None):
    """A run of as many layers as probes, the embeddings' beside, each of several seeds."""
    run = result(name, seed, 3.0)
    run["config"] |= {"model.cell": "lstm", "model.size": size, "model.num_layers": len(score_KxS) - 1}
    tasks = run["summary"]["finetuned_tasks"] = {}
    for depth, score_S in list(enumerate(score_KxS))[:depths]:
        each = []
        for probe, value in enumerate(score_S):
            one = tuned(1e-3, probe, value, F1, task) | {"variant": f"{probing.PROBE} finetune.max_layer={depth}"}
            one["evaluation"]["gravity"] = gravity_S[probe]
            each.append(one | {"scores": [*one["scores"], GRAVITY._asdict()]})
        tasks |= finetuned_tasks.summarize(answers(*each, name=f"{task}-{depth}"))
    return evaluation_tasks.add_scores(run)


def test_the_layers_of_one_run_are_over_its_probes_and_of_several_over_runs():
    one = make_run("lstm", 0, [(0.5, 0.5), (0.8, 0.5), (0.8, 0.8)], (0.5, 1.5))
    made, columns = probing.table([one])
    assert made[0]["tag_expected"] == SeedRange(1.5, 1.0, 2.0) and made[0]["tag_gravity"] == SeedRange(1.0, 0.5, 1.5)
    assert [made[0][f"task_tag_{depth}"].mean for depth in range(3)] == pytest.approx([50, 65, 80])
    titles = [column.title for column in columns]
    assert "tag, layers 0 to 2: micro-F1 (%)" in titles and "tag: expected layer" in titles
    other = make_run("lstm", 1, [(0.5, 0.5), (0.5, 0.5), (0.8, 0.8)], (1.0, 1.0))
    both = probing.table([one, other])[0][0]
    assert both["tag_expected"].mean == pytest.approx((1.5 + 2.0) / 2) and both["tag_gravity"].mean == 1.0
    assert (both["tag_expected"].low, both["tag_expected"].high) == pytest.approx((1.5, 2.0))


def test_a_task_that_was_not_probed_at_each_depth_has_no_layer():
    short = make_run("lstm", 0, [(0.5,), (0.6,), (0.8,)], (0.5,), depths=2)
    made, _ = probing.table([short, make_run("lstm", 1, [(0.5,), (0.6,), (0.8,)], (0.5,))])
    assert "tag_expected" not in made[0]
    alone = probing.table([short])
    assert "tag_expected" not in alone[0][0]
    assert len([one for one in alone[1] if one.name.startswith("task_tag")]) == 2  # what was asked is there


def test_runs_may_have_other_numbers_of_probes_and_all_of_them_diverge():
    three = make_run("lstm", 0, [(0.5, 0.5), (0.6, 0.6), (0.8, 0.8)], (0.5, 0.5))
    one = make_run("lstm", 1, [(0.5,), (0.6,), (0.8,)], (1.5,))
    assert probing.table([three, one])[0][0]["tag_gravity"].mean == 1.0
    deepest = one["summary"]["finetuned_tasks"]["tag-2"]
    deepest["other_scores"] = {}
    assert "tag_gravity" not in probing.table([one])[0][0]


def test_the_paper_s_layers_stand_beside_those_of_its_model_alone():
    for size, there in (("large", True), ("base", False)):
        made, columns = probing.table([make_run("bert", 0, [(0.5,), (0.6,), (0.8,)], (0.5,), size=size, task="ud_pos")])
        assert (made[0].get("ud_pos_expected_paper") == 3.39) is there
        assert ("paper's ud_pos: centre of gravity" in [column.title for column in columns]) is there


@pytest.mark.parametrize(
    ("score_K", "layer"),
    [
        ((0.5, 0.8, 0.8), 1.0),
        ((0.5, 0.5, 0.8), 2.0),
        ((0.5, 0.6, 0.8), (1 * 0.1 + 2 * 0.2) / 0.3),
        ((0.5, 0.9, 0.8, 0.8), (1 * 0.4 - 2 * 0.1) / 0.3),  # a layer that makes it worse
        ((0.5, 0.4, 0.8), (-1 * 0.1 + 2 * 0.4) / 0.3),
    ],
)
def test_the_expected_layer_weighs_layers_by_what_each_adds_and_clips_nothing(score_K, layer):
    assert probing.compute_expected_layer(score_K) == pytest.approx(layer)
    np.testing.assert_allclose(probing.compute_expected_layer([score_K, score_K]), layer)


def test_no_layer_is_expected_where_no_probe_is_better():
    for score_K in ([0.5, 0.5, 0.5], [0.5, 0.7, 0.5]):
        assert math.isnan(probing.compute_expected_layer(score_K))
